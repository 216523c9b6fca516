"""The threads of the host on the clocks of the machines, and the one lock of all public calls.

Each thread that calls is a *participant* with a position of its own on each machine's clock. A call is one step:

1. It waits for its turn: until no running participant is behind its position (ties go by participant number). The
   device meanwhile runs no further than the smallest position of those who run.
2. It runs with the lock held, and takes the device with it to its end.
3. `wait` is the one place where it lets others go on. The thread that finds nothing else to do steps the device from
   interrupt to interrupt, as far as the running participants allow, and wakes whoever's job has ended, at that
   position.

So the order of calls follows from positions, not from the machine that simulates. Exceptions are noted, and the
machine is then not reproducible: a participant that stays silent for `GRACE_S` while others wait for it is set aside,
and threads that turn up side by side outside of a team (`host_team.py`) are in the order of their arrival.

One thread alone, the usual case, pays for none of this (`Host.solo`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from enum import Enum, auto
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.host_order import Numbers
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from libnpu.runtime.call_log import CallLog
    from libnpu.runtime.host_order import Recorder, Replay
    from libnpu.runtime.job import Job
    from libnpu.syscalls import Machine, Node

GRACE_S = 0.05  # design section 4: how long the others wait for a silent thread
TEAM_GRACE_S = 10.0  # chosen: threads that were announced may take long to start
REPLAY_GRACE_S = 30.0  # chosen: how long a replay waits for the next recorded call
DEADLOCK_GRACE_S = 2.0  # chosen: a thread set aside may still do what the blocked ones wait for
SLICE_S = 0.01  # chosen: how often a waiting thread looks for interrupts, ended and silent threads
NEVER_PS = (1 << 64) - 1
FOR_EVER_PS = (1 << 63) - 1  # deadlines from here on never pass
TASKS = Path("/proc/self/task")


class State(Enum):
    """What a participant does, as far as others have to know."""

    RUNNING = auto()  # in the program, or in a call that waits for its turn
    EXPECTED = auto()  # a member of a team whose thread has not entered yet
    BLOCKED = auto()  # in `Host.wait`
    SUSPENDED = auto()  # said that it will be silent
    ASIDE = auto()  # was silent too long


ACTIVE = (State.RUNNING, State.EXPECTED)


class Target:
    """A job that somebody waits for, by its command buffer. `done_ps`: when the host learns of its end. `job`: what it is
    in the runtime, when it may be that the driver does not have it yet.
    """

    __slots__ = ("done_ps", "handle", "job", "node", "status", "taken")

    def __init__(self, node: Node, handle: int, job: Job | None = None) -> None:
        self.node = node
        self.handle = handle
        self.job = job
        self.done_ps: int | None = None
        self.status = 0  # enum npu_job_status, once it is done
        self.taken = False  # another thread took its end from the driver


class Wait:
    """What a blocked participant waits for: the first of `targets`, or the deadline.

    `patient`: it is none of the program's calls, so it is never told of a deadlock.
    """

    __slots__ = ("deadline_ps", "patient", "since_s", "targets", "woken")

    def __init__(self, targets: list[Target], deadline_ps: int, *, patient: bool = False) -> None:
        self.targets = targets
        self.deadline_ps = deadline_ps
        self.patient = patient
        self.woken = False
        self.since_s: float | None = None  # wall time since when nothing is left to happen


class Participant:
    """A thread. `depth` counts the calls that it is in; `function`: it runs a host function; `forbidden`: why it may not
    call now, "" while it may.
    """

    __slots__ = (
        "arrived", "awaited_since", "condition", "depth", "final", "forbidden", "function", "ident", "in_team",
        "machine", "native_id", "number", "raced", "sleeps", "state", "thread", "wait", "waits_for",
    )  # fmt: skip

    def __init__(self, number: int, state: State, condition: threading.Condition) -> None:
        self.number = number
        self.state = state
        self.condition = condition
        self.sleeps = False  # on `condition`
        self.ident = 0
        self.native_id = 0
        self.thread: threading.Thread | None = None
        self.depth = 0
        self.machine: Machine | None = None  # whose turn its outermost call has
        self.arrived = False  # it is about to take the lock
        self.awaited_since: float | None = None  # wall time since when others wait for it
        self.raced: Participant | None = None  # turned up while this one ran
        self.function = False
        self.forbidden = ""
        self.in_team = False
        self.final: dict[Machine, int] = {}  # where it was when it was removed
        self.wait: Wait | None = None
        self.waits_for: Participant | None = None  # in its turn: who is behind it

    def bind(self) -> None:
        """Be the calling thread."""
        self.ident = get_ident()
        self.native_id = threading.get_native_id()
        thread = threading.current_thread()
        self.thread = None if isinstance(thread, threading._DummyThread) else thread

    @property
    def has_ended(self) -> bool:
        """Whether its thread is gone."""
        if not self.native_id:  # it has not begun
            return False
        if self.thread is not None:
            return not self.thread.is_alive()
        return not (TASKS / str(self.native_id)).exists()


class Host:
    """All participants and machines of the process. One instance, `HOST`; every method is called with `lock` held."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.solo = 0  # identity of the only thread, while there is nobody else to think of; else 0
        self.pending: Callable[[], object] | None = None  # a signal's handler, until the main thread may run it
        self.main_pauses = False
        self.broke_off: BaseException | None = None  # came out of a pause: nothing of the device's was interrupted
        self.recorder: Recorder | None = None
        self.replay: Replay | None = None
        self.forked = False
        self.machines: weakref.WeakSet[Machine] = weakref.WeakSet()
        self.participants: list[Participant] = []
        self.call_log: CallLog | None = None  # while somebody keeps records
        self._current: Participant | None = None  # whose positions the machines' now_ps are
        self._local = threading.local()
        self._numbers = 0
        self._machine_numbers = 0
        self._run = Request(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", "EMU_RUN")
        self._look = Request(C.NPU_IOCTL_EMU_JOB, "npu_emu_job", "EMU_JOB")

    # ---- calls ----

    def arrive(self) -> None:
        """Note, before the lock is taken, that the calling thread is not silent."""
        me = self.known()
        if me is not None:
            me.arrived = True

    def enter(self, node: Node, call: str) -> Participant:
        """Begin public call `call` of the calling thread, at its turn. Raises NOT_PERMITTED in a host function, in a
        forked child, and for the owner of a running team.
        """
        self.check_not_forked()
        me = self.me()
        me.arrived = False
        if me.depth:
            me.depth += 1
            if me.machine is not None and me.machine is not node.machine:
                outer = me.machine
                try:
                    self._begin(me, node, call)
                except BaseException:
                    me.depth -= 1
                    raise
                finally:
                    me.machine = outer
            return me
        if me.forbidden:
            raise NpuError(C.NPU_ERROR_NOT_PERMITTED, f"{call}: {me.forbidden}")
        self.switch(me)
        me.depth = 1
        me.awaited_since = None
        try:
            if me.raced is not None:
                other, me.raced = me.raced, None
                self.disorder(f"threads {me.number} and {other.number} ran side by side without a team")
            if me.state is not State.RUNNING:
                self.come_back(me)
            self._begin(me, node, call)
        except BaseException:
            self.leave(me, node)
            raise
        return me

    def _begin(self, me: Participant, node: Node, call: str) -> None:
        """Let the call of `me` have its turn on a machine."""
        machine = me.machine = node.machine
        self._join_machine(me, machine, node)
        if self.replay is not None:
            self._replay_turn(me, machine, call)
        self.take_turn(me, node)
        if self.recorder is not None:
            self.recorder.note_call(me.number, machine.number, machine.now_ps, call)

    def leave(self, me: Participant, node: Node) -> None:
        """End a public call."""
        me.depth -= 1
        if me.depth:
            return
        me.machine = None
        me.awaited_since = None
        if node.is_usable:
            self._wake(node)
        for who in self.participants:
            if who.wait is not None:
                who.wait.since_s = None  # this call may have given the device something to do
        first = self._first(node.machine)
        if first is not None:
            self.rouse(first)
        self.update_solo()

    @contextlib.contextmanager
    def inside(self) -> Iterator[Participant]:
        """Let the calling thread do something that is no call of a device. Raises NOT_PERMITTED as `enter`."""
        with self.lock:
            self.check_permitted()
            me = self.me()
            self.switch(me)
            me.depth += 1
            try:
                yield me
            finally:
                me.depth -= 1
                me.awaited_since = None
                self.notify()
                self.update_solo()

    def check_permitted(self) -> None:
        """Raise NOT_PERMITTED when the calling thread may not use devices at all."""
        self.check_not_forked()
        me = self.known()
        if me is not None and me.forbidden:
            raise NpuError(C.NPU_ERROR_NOT_PERMITTED, me.forbidden)

    def check_not_forked(self) -> None:
        """Raise NOT_PERMITTED in a forked child."""
        if self.forked:
            raise NpuError(C.NPU_ERROR_NOT_PERMITTED, "this process was forked: devices belong to the parent process")

    def known(self) -> Participant | None:
        """Return the calling thread's participant, None for a thread that was never seen."""
        return getattr(self._local, "me", None)

    @property
    def in_function(self) -> bool:
        """Whether the calling thread runs a host function."""
        me = self.known()
        return me is not None and me.function

    def me(self) -> Participant:
        """Return the calling thread's participant; a thread that was never seen becomes one."""
        me = self.known()
        if me is None:
            number = self.replay.number_of(threading.current_thread().name) if self.replay is not None else None
            me = self.add(State.RUNNING, number)
            me.bind()
            self.be(me)
            if self.recorder is not None:
                self.recorder.note_thread(me.number, threading.current_thread().name)
            self.race(me, self.participants)
        return me

    def be(self, me: Participant | None) -> None:
        """Make `me` the calling thread's participant."""
        self._local.me = me

    def add(self, state: State, number: int | None = None) -> Participant:
        """Add a participant; its thread is not known yet."""
        if number is None:
            number = self._numbers
        self._numbers = max(self._numbers, number + 1)
        self.leave_solo()
        made = Participant(number, state, threading.Condition(self.lock))
        self.participants.append(made)
        return made

    def leave_solo(self) -> None:
        """Keep account of positions, for there may be other threads from now on."""
        if self.solo:
            (only,) = self.participants
            only.arrived = False
            for machine in self.machines:
                machine.positions.setdefault(only, machine.now_ps)
            self.solo = 0

    def remove(self, participant: Participant) -> None:
        """Forget a participant; twice is allowed."""
        if participant not in self.participants:
            return
        self.participants.remove(participant)
        if self._current is participant:
            self._save()
            self._current = None
        for machine in self.machines:
            if participant in machine.positions:
                participant.final[machine] = machine.positions.pop(participant)

    def update_solo(self) -> None:
        """Find out whether the calling thread is alone by now."""
        for who in self.participants[:]:
            if who is not self._current and not who.depth and who.state is not State.BLOCKED and who.has_ended:
                self.remove(who)
        alone = len(self.participants) == 1 and self.recorder is None and self.replay is None and not self.forked
        only = self.participants[0] if alone else None
        free = only is not None and only is self._current and only.state is State.RUNNING and not only.forbidden
        self.solo = only.ident if only is not None and free else 0

    def numbers(self) -> tuple[Numbers, Numbers]:
        """Return the numbers of threads and of machines in a file of the order of calls that begins now."""
        open_machines = sorted(machine.number for machine in self.machines if machine.any_node() is not None)
        threads = Numbers([who.number for who in self.participants if who.number >= 0], self._numbers)
        return threads, Numbers(open_machines, self._machine_numbers)

    def race(self, me: Participant, others: Iterable[Participant]) -> None:
        """Note that `me` turned up: the order of its calls and those of others that run is nobody's."""
        if self.replay is None:
            for other in others:
                if other is not me and other.state is State.RUNNING and not other.has_ended:
                    other.raced = me

    def disorder(self, why: str) -> None:
        """Note that the order of calls depended on the machine that simulates."""
        for machine in self.machines:
            if machine.disorder is None and len(machine.positions) > 1:
                machine.disorder = why

    # ---- positions ----

    def position(self, who: Participant, machine: Machine) -> int:
        """Return where `who` is on the machine's clock."""
        return machine.now_ps if who is self._current else machine.positions[who]

    def position_of_caller(self, machine: Machine) -> int:
        """Return where the calling thread is, which need not hold the lock."""
        me = self.known()
        return machine.now_ps if me is None or me is self._current else machine.positions.get(me, machine.now_ps)

    def set_position(self, who: Participant, machine: Machine, position_ps: int) -> None:
        """Move `who` on the machine's clock."""
        machine.positions[who] = position_ps
        if who is self._current:
            machine.now_ps, machine.behind = position_ps, True

    def add_machine(self, machine: Machine) -> None:
        """Take note of a machine that the calling thread has started."""
        if machine not in self.machines:
            machine.number = self._machine_numbers
            self._machine_numbers += 1
            self.machines.add(machine)
            if not self.solo and not self.forked:
                me = self.me()
                self.switch(me)
                machine.positions[me] = machine.now_ps
                self.update_solo()

    def device_ps(self, node: Node) -> int:
        """Return the device's time."""
        return self._run_to(node, 0)[0]

    def come_back(self, me: Participant) -> None:
        """Let a participant that was not waited for go on, where the devices are now."""
        if me.state is State.SUSPENDED:
            self.race(me, self.participants)
        me.state = State.RUNNING
        for machine in self.machines:
            node = machine.any_node()
            if me in machine.positions and node is not None:
                self.skip_to(me, machine, self.device_ps(node))

    def skip_to(self, who: Participant, machine: Machine, position_ps: int) -> None:
        """Move `who` on; it has neither worked nor been blocked meanwhile."""
        skipped = position_ps - self.position(who, machine)
        if skipped > 0:
            self.set_position(who, machine, position_ps)
            machine.begun_ps[who] = machine.begun_ps.get(who, 0) + skipped

    def switch(self, me: Participant) -> None:
        """Make `me` the one whose positions the machines show."""
        if self._current is not me:
            self._save()
            for machine in self.machines:
                if me in machine.positions:
                    machine.now_ps, machine.behind = machine.positions[me], True
            self._current = me

    def _save(self) -> None:
        old = self._current
        if old is not None:
            for machine in self.machines:
                if old in machine.positions:
                    machine.positions[old] = machine.now_ps

    def _join_machine(self, me: Participant, machine: Machine, node: Node) -> None:
        if me not in machine.positions:
            start_ps = self.device_ps(node) if machine.positions and node.is_usable else machine.now_ps
            if self.replay is not None:
                start_ps = min(start_ps, self.replay.next_ps(me.number, machine.number))
            self.race(me, machine.positions)
            self.set_position(me, machine, start_ps)
            machine.begun_ps[me] = start_ps

    # ---- turns ----

    def take_turn(self, me: Participant, node: Node) -> None:
        """Return when no running participant is behind `me`. Others may have run in between."""
        machine = node.machine
        while True:
            me.waits_for = None
            first = self._first(machine)
            if node.is_usable and self._step(node, self._bound(first, machine)):
                continue
            if first is None or first is me:
                return
            me.waits_for = first
            if self._has_priority(me):
                self.set_position(first, machine, self.position(me, machine))
                return
            self._pause(me, first)

    def _has_priority(self, me: Participant) -> bool:
        """Whether threads wait for each other on several machines, and `me` is the one that goes, to end that."""
        number, who = me.number, me
        for _ in self.participants:
            other, machine = who.waits_for, who.machine
            if other is None or machine is None or self._order(other, machine) > self._order(who, machine):
                return False  # it is not waiting, or need not wait any more
            if other is me:
                return number == me.number
            number, who = min(number, other.number), other
        return False

    def _order(self, who: Participant, machine: Machine) -> tuple[int, int]:
        return (self._next_ps(who, machine) if who in machine.positions else NEVER_PS, who.number)

    def _first(self, machine: Machine) -> Participant | None:
        """Return the running participant of the machine that is furthest behind."""
        running = [who for who in machine.positions if who.state in ACTIVE]
        return min(running, key=lambda who: self._order(who, machine), default=None)

    def _next_ps(self, who: Participant, machine: Machine) -> int:
        """Return the earliest time of who's next call."""
        position = self.position(who, machine)
        if self.replay is None or who.depth or who.number < 0:  # host functions are in no record
            return position
        return max(position, self.replay.next_ps(who.number, machine.number))

    def _bound(self, first: Participant | None, machine: Machine) -> int:
        return NEVER_PS if first is None else self._next_ps(first, machine)

    def _pause(self, me: Participant, other: Participant | None, *, patient: bool = False) -> None:
        """Let other threads run; then find out whether `other`, for whom `me` waits, has ended or, unless `patient`, is
        silent.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if other is not None:
            self.rouse(other)
        self.main_pauses |= is_main
        me.sleeps = True
        me.condition.wait(SLICE_S)
        me.sleeps = False
        if is_main:
            self.main_pauses = False
        self.switch(me)
        if is_main and self.pending is not None:
            pending, self.pending = self.pending, None
            try:
                pending()
            except BaseException as error:
                self.broke_off = error
                raise
        if other is not None and other in self.participants and not other.depth and not other.arrived:
            self._judge(other, patient)

    def _judge(self, other: Participant, patient: bool) -> None:
        """Remove a running participant that has ended, set one aside that is silent."""
        if other.has_ended:
            self.remove(other)
            return
        if self.replay is not None or patient:
            return  # a replay says who comes next
        now_s = time.monotonic()
        if other.awaited_since is None:
            other.awaited_since = now_s
            return
        grace_s = GRACE_S if other.native_id else TEAM_GRACE_S
        if other.state in ACTIVE and now_s - other.awaited_since > grace_s:
            other.awaited_since = now_s
            other.state = State.ASIDE
            what = "a host function" if other.function else f"thread {other.number}"
            self.disorder(f"{what} was silent for {grace_s * 1000:.0f} ms of wall time")

    def notify(self) -> None:
        """Let the waiting threads look again."""
        for who in self.participants:
            self.rouse(who)

    def rouse(self, who: Participant) -> None:
        """Let `who` look again, if it waits."""
        if who.sleeps:
            who.condition.notify()

    def _replay_turn(self, me: Participant, machine: Machine, call: str) -> None:
        """Wait until the recorded order has this call next."""
        while (replay := self.replay) is not None:
            if replay.is_over:
                self.replay = None
                return
            if replay.next_number == me.number:
                try:
                    if replay.next_ps(me.number, machine.number) < machine.now_ps:
                        replay.depart(f"thread {me.number} calls {call} at {machine.now_ps} ps")
                    position = replay.take(me.number, machine.number, call)
                except NpuError:
                    self.replay = None
                    raise
                self.set_position(me, machine, position)
                self.notify()
                return
            expected = next((who for who in self.participants if who.number == replay.next_number), None)
            self._pause(me, expected)
            if self.replay is not replay or replay.is_over:
                continue
            gone = expected is not None and expected not in self.participants and replay.next_number == expected.number
            if gone or replay.waited_s > REPLAY_GRACE_S:
                self.replay = None
                replay.depart(f"thread {me.number} calls {call}")

    # ---- waiting for the device ----

    def wait(self, node: Node, request: Any, deadline_ps: int) -> int:
        """As `Node.wait`."""
        me = self.me()
        machine = node.machine
        target = Target(node, request.arg.handle)
        if deadline_ps > machine.now_ps:
            self.block(me, node, Wait([target], deadline_ps))
        if target.taken:
            return -errno.EAGAIN
        request.arg.handle, request.arg.deadline_ps = target.handle, deadline_ps
        ret = node.try_ioctl(request)
        if ret == 0:
            self.take(node, target.handle)
        return ret

    def wait_ahead(self, node: Node, handle: int, deadline_ps: int) -> None:
        """As `Node.wait_ahead`."""
        me, machine = self.me(), node.machine
        before_ps = machine.now_ps
        self.block(me, node, Wait([Target(node, handle)], deadline_ps))
        machine.note_blocked(before_ps)

    def block(self, me: Participant, node: Node, wait: Wait) -> None:
        """Return at the turn of `me` when one of the targets is done, or the deadline has passed, or nothing that
        could bring it about is left: then the driver will say so.
        """
        machine = node.machine
        me.wait = wait
        me.state = State.BLOCKED
        machine.positions[me] = machine.now_ps
        try:
            self._wake(node)
            while not wait.woken:
                self._progress(me, node, wait)
            me.state = State.RUNNING
            self._follow(me, machine)
            self.take_turn(me, node)  # meanwhile another thread may take the end of the job: `take`
        finally:
            me.wait = None
            me.state = State.RUNNING

    def wait_for_first(self, node: Node, targets: list[Target]) -> None:
        """Block the calling thread, which is in a call, until one of `targets`, of one machine, is done, or nothing is
        left to happen: then none is.
        """
        machine, me = node.machine, self.me()
        for target in targets:
            self._look_at(target)
        if all(target.done_ps is None for target in targets):
            before_ps = machine.now_ps
            self.block(me, node, Wait(targets, FOR_EVER_PS))
            machine.note_blocked(before_ps)
            for target in targets:
                self._look_at(target)

    def take(self, node: Node, handle: int) -> None:
        """Tell those who wait for the same job that its end was taken from the driver."""
        for who in self.participants:
            for target in who.wait.targets if who.wait is not None else ():
                if target.node is node and target.handle == handle and not target.taken:
                    self._look_at(target)
                    target.taken = True
                    self._wake_at(who, node.machine, target.done_ps or 0)

    def _follow(self, me: Participant, machine: Machine) -> None:
        """On other machines that others use, a thread that was blocked is where the device is by now."""
        for other in self.machines:
            if other is not machine and len(other.positions) > 1 and me in other.positions:
                node = other.any_node()
                if node is not None:
                    self.set_position(me, other, max(self.position(me, other), self.device_ps(node)))

    def block_on_any(self, me: Participant, wait: Wait) -> None:
        """As `block`, for the thread of host functions, whose targets may be on several machines."""
        me.depth = 1
        while not wait.woken:
            nodes = {target.node.machine: target.node for target in wait.targets}
            first = None
            for machine, node in nodes.items():
                ahead = self._first(machine)
                first = first or ahead
                if self._wake(node) or (node.is_usable and self._step(node, self._bound(ahead, machine))):
                    break
            else:
                self._pause(me, first)

    def watch(self) -> None:
        """Keep account of the calling thread, which may be alone now: there will be a thread of host functions."""
        self.switch(self.me())
        self.leave_solo()

    def add_again(self, me: Participant, wait: Wait) -> None:
        """Let a participant that may rest take part again: it waits for another target of `wait`."""
        if me not in self.participants:
            self.leave_solo()
            self.participants.append(me)
            wait.woken = False
            me.wait, me.state = wait, State.BLOCKED
        self.rouse(me)

    def rest(self, me: Participant) -> None:
        """Take no part until `add_again`."""
        self.remove(me)
        me.final.clear()
        self.notify()
        while me not in self.participants:
            me.sleeps = True
            me.condition.wait()
            me.sleeps = False

    def release(self, me: Participant, function: Callable[[], None]) -> None:
        """Call `function` in the name of `me` without the lock, which is held once."""
        me.depth, me.awaited_since = 0, None
        self.lock.release()
        try:
            function()
        finally:
            me.arrived = True
            self.lock.acquire()
            me.arrived = False

    def retake(self, me: Participant, node: Node, action: Callable[[], None]) -> None:
        """Do `action`, which is like a call of `me`, at its turn."""
        self.switch(me)
        me.depth = 1
        if me.state is not State.RUNNING:
            self.come_back(me)
        try:
            if node.is_usable:
                self.take_turn(me, node)
            action()
        finally:
            self.leave(me, node)

    def _progress(self, me: Participant, node: Node, wait: Wait) -> None:
        """Step the device, or wait for who may not be overtaken, or give up."""
        machine = node.machine
        first = self._first(machine)
        if not node.is_usable:
            wait.woken = True
            return
        bound = self._bound(first, machine)
        deadlines = (who.wait.deadline_ps for who in machine.positions if who.wait and not who.wait.woken)
        deadline = min(deadlines, default=FOR_EVER_PS)
        if self._step(node, min(bound, deadline) if deadline < FOR_EVER_PS else bound):
            wait.since_s = None
            return
        other = first if bound < NEVER_PS else None  # in a replay, a thread without calls is not waited for
        if other is None and self.replay is None:
            other = next((who for who in self.participants if who.state in ACTIVE), None)
        if other is not None:
            wait.since_s = None
            if other.function and wait.deadline_ps >= FOR_EVER_PS and self._run.arg.next_ps == NEVER_PS:
                self._pause(me, other, patient=True)  # there is nothing that it could be too late for
                return
        elif self._is_dead(wait):
            for who in self.participants:
                if who.wait is not None and not who.wait.patient:
                    who.wait.woken = True
            self.notify()
            return
        self._pause(me, other)

    def _is_dead(self, wait: Wait) -> bool:
        """Whether nobody is left who could end this wait. Nobody runs, and nothing is left to happen on its machine."""
        now_s = time.monotonic()
        wait.since_s = wait.since_s or now_s
        waits = [who.wait for who in self.participants if who.wait is not None and not who.wait.patient]
        if any(other.since_s is None for other in waits):
            return False
        aside = [who for who in self.participants if who.state is State.ASIDE]
        for who in aside:
            if not who.depth and who.has_ended:
                self.remove(who)
            elif who.function or who.arrived:
                return False  # a function takes the time that it takes
        return not aside or now_s - wait.since_s > DEADLOCK_GRACE_S

    def _step(self, node: Node, until_ps: int) -> bool:
        """Run the device for those who are blocked on it, at most to `until_ps`, until one of them is woken."""
        machine = node.machine
        if not any(who.wait is not None and not who.wait.woken and who.wait.targets for who in self.participants):
            return False
        while True:
            now_ps, interrupts = self._run_to(node, until_ps)
            if self._wake(node, now_ps):
                return True
            if not interrupts:
                return False
            assert machine.lost is None

    def _run_to(self, node: Node, until_ps: int) -> tuple[int, int]:
        arg = self._run.arg
        arg.until_ps, arg.now_ps, arg.next_ps, arg.interrupts = until_ps, 0, 0, 0
        behind = node.machine.behind
        # At time 0: the call must not take the device to the caller's position.
        now_ps, node.machine.now_ps = node.machine.now_ps, 0
        try:
            node.ioctl(self._run)
        finally:
            node.machine.now_ps, node.machine.behind = now_ps, behind
        return int(arg.now_ps), int(arg.interrupts)

    def _wake(self, node: Node, now_ps: int = 0) -> bool:
        """Wake who waits for a job of this machine that has ended, or has waited long enough; whether there were any."""
        found = False
        for who in self.participants:
            wait = who.wait
            if wait is None or wait.woken:
                continue
            machine = node.machine
            here = [target for target in wait.targets if target.node.machine is machine]
            done = [target.done_ps for target in here if self._look_at(target) and target.done_ps is not None]
            if done:
                self._wake_at(who, machine, min(*done, wait.deadline_ps))
                found = True
            elif here and now_ps >= wait.deadline_ps:
                self._wake_at(who, machine, wait.deadline_ps)
                found = True
        return found

    def _wake_at(self, who: Participant, machine: Machine, time_ps: int) -> None:
        wait = who.wait
        assert wait is not None
        if not wait.woken:
            wait.woken = True
            who.state = State.RUNNING
            self.rouse(who)
            self._join_position(who, machine)
            self.set_position(who, machine, max(self.position(who, machine), time_ps))

    def _join_position(self, who: Participant, machine: Machine) -> None:
        if who not in machine.positions:
            machine.positions[who] = 0

    def _look_at(self, target: Target) -> bool:
        """Whether a target is done; one whose command buffer is gone is, and was somebody else's."""
        if target.done_ps is not None:
            return True
        node, arg, job = target.node, self._look.arg, target.job
        if job is not None and not job.submitted and not job.done and node.is_usable:
            return False
        if not node.is_usable or (job is not None and not job.submitted):
            target.taken, target.done_ps, target.status = True, 0, int(C.NPU_JOB_ABORTED)
            return True
        arg.handle, arg.finished, arg.done_ps, arg.job_status = target.handle, 0, 0, 0
        machine = node.machine
        now_ps, behind, machine.now_ps = machine.now_ps, machine.behind, 0
        try:
            ret = node.try_ioctl(self._look)
        finally:
            machine.now_ps, machine.behind = now_ps, behind
        if ret < 0:
            target.taken, target.done_ps, target.status = True, 0, int(C.NPU_JOB_ABORTED)
        elif arg.finished:
            target.done_ps, target.status = int(arg.done_ps), int(arg.job_status)
        return target.done_ps is not None


def _forget_parent() -> None:
    """In a forked child: the lock may be held by a thread that is not there, and no device is the child's."""
    used = HOST.forked or bool(HOST.machines)
    HOST.__init__()  # type: ignore[misc]
    HOST.forked = used


HOST = Host()
os.register_at_fork(after_in_child=_forget_parent)
