"""Whose turn it is: the running participant's that is furthest behind; and for how long the others wait for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from libnpu.errors import NpuError
from libnpu.runtime.host_order import COMES_BACK, GOES_ON, Line
from libnpu.runtime.host_participants import ACTIVE, Participant, State
from libnpu.runtime.host_waking import Waking
from libnpu.runtime.time import NEVER_PS

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.runtime.host_order import Replay
    from libnpu.syscalls import Machine, Node

GRACE_S = 0.05  # chosen: how long the others wait for a silent thread
STARVED_S = 5.0  # chosen: how long in addition while it is not silent, but the system does not let it run
TEAM_GRACE_S = 10.0  # chosen: the same while there is a team: its threads may compute, and take long to start
REPLAY_GRACE_S = 30.0  # chosen: how long a replay waits for the next recorded call
SLICE_S = 0.01  # chosen: how often a waiting thread looks for interrupts, ended and silent threads


class Turns(Waking):
    """The order of calls. `pending` is a signal's handler, until the main thread may run it."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: Callable[[], object] | None = None
        self.main_pauses = False
        self.refusal: BaseException | None = None  # the last that a signal's handler was given in the middle of a call
        self.broke_off: BaseException | None = None  # came out of a pause: nothing of the device's was interrupted

    # ---- whose turn ----

    def take_turn(self, me: Participant, node: Node, what: str = GOES_ON) -> None:
        """Return when no running participant is behind `me`, or when a recorded order has `what` of `me` next. Others may
        have run in between. A machine that is closed has no turns.
        """
        if not self.replay_turn(me, node, what) and not node.machine.is_closed:
            self._take_free_turn(me, node)
            self._note_turn(me, node, what)

    def _take_free_turn(self, me: Participant, node: Node) -> None:
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
                self.move(first, machine, self.position(me, machine))
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

    def _first(self, machine: Machine) -> Participant | None:
        """Return the running participant of the machine that is furthest behind."""
        running = [who for who in self.participants if who.state in ACTIVE and who in machine.positions]
        return min(running, key=lambda who: self._order(who, machine), default=None)

    def _bound(self, first: Participant | None, machine: Machine) -> int:
        """Return how far the device may run while `first` is the one furthest behind."""
        return NEVER_PS if first is None else self.position(first, machine)

    def _order(self, who: Participant, machine: Machine) -> tuple[int, int]:
        """Return what a participant goes by: its position, then its number."""
        return (self.position(who, machine) if who in machine.positions else NEVER_PS, who.number)

    # ---- turns in a recorded order ----

    def replay_turn(self, me: Participant, node: Node, what: str) -> bool:
        """Wait for the turn of `me` in the recorded order, which must be to do `what`, and be where it was. False when there
        is no order, or no more of it, or the machine is closed. Raises BAD_STATE.
        """
        machine = node.machine
        while (replay := self.replay) is not None and not machine.is_closed:
            if replay.is_over:
                self._end_replay()
            elif replay.is_next(me.number, machine.number):
                self.switch(me)
                try:
                    line = replay.take(me.number, machine.number, machine.now_ps, what)
                except NpuError:
                    self._end_replay()
                    raise
                self._be_as_recorded(me, node, line)
                self._note_turn(me, node, what)
                if not replay.is_over and (following := self._expected(replay)) is not None:
                    following.rouse()
                return True
            else:
                self._wait_for_recorded(me, replay, what)
        return False

    def _wait_for_recorded(self, me: Participant, replay: Replay, what: str) -> None:
        """Pause, unless whose turn is next will not come. Raises BAD_STATE."""
        following, expected = replay.next_turn, self._expected(replay)
        self._pause(me, expected)
        if self.replay is not replay or replay.is_over or replay.next_turn != following or me.number < 0:
            return
        of_functions = following[0] < 0  # a thread that is in a call, or gone, while it has nothing to run
        if expected is not None and (expected.function if of_functions else expected.depth or expected.arrived):
            return  # it takes the time that it takes
        gone = not of_functions and expected is not None and expected not in self.participants
        if gone or replay.waited_s > REPLAY_GRACE_S:
            self._end_replay()
            replay.depart(f"thread {me.number} calls {what}")

    def _expected(self, replay: Replay) -> Participant | None:
        """Return whose turn is next, if it takes part; of the threads of host functions the one of the turn's machine."""
        number, on = replay.next_turn
        machines = [machine for machine in self.machines if machine.number == on]
        for who in self.participants:
            if who.number == number and (number >= 0 or any(who in machine.positions for machine in machines)):
                return who
        return None

    def _end_replay(self) -> None:
        self.replay = None
        self.notify()

    def _be_as_recorded(self, me: Participant, node: Node, line: Line) -> None:
        """Bring the device and `me` to where they were."""
        machine, node = node.machine, open_node(node)
        if node.is_usable:
            while self._is_before(now_ps := self.device_ps(node), line):
                after_ps, interrupts = self._run_to(node, line.device_ps)
                if after_ps == now_ps and not interrupts:
                    break  # more is due at this time than was when the order was recorded: it comes with the next turn
            self._wake(node)
        worked_to_ps = (
            self.position(me, machine) if me.wait is None else 0
        )  # a wait may have been given up before its end
        self.set_position(me, machine, max(worked_to_ps, line.position_ps))
        machine.begun_ps[me] = line.begun_ps
        machine.disorder = line.disorder
        for number, position_ps, drifted in line.moves:
            for moved in self.machines:
                if moved.number == number and me in moved.positions:
                    self.move(me, moved, position_ps)
                    if drifted:
                        me.drifted.add(moved)

    def _is_before(self, now_ps: int, line: Line) -> bool:
        """Whether the device that ran last, to `now_ps`, had done more when `line` was recorded."""
        due = self._due_after(now_ps)
        return now_ps < line.device_ps or (due is not None and (line.due_after is None or due < line.due_after))

    def _note_turn(self, me: Participant, node: Node, what: str) -> None:
        """Write down that `me` has its turn, if the order is recorded."""
        moves, me.moves = me.moves, {}
        if self.recorder is not None and not node.machine.is_closed:
            machine, node = node.machine, open_node(node)
            device_ps = self.device_ps(node) if node.is_usable else 0
            due = self._due_after(device_ps) if node.is_usable else None
            times = self.position(me, machine), machine.begun_ps.get(me, 0), device_ps
            others = [(moved.number, ps, moved in me.drifted) for moved, ps in moves.items() if moved is not machine]
            line = Line(me.number, machine.number, *times, due, what, machine.disorder, tuple(sorted(others)))
            self.recorder.note(line)

    # ---- who is waited for ----

    def give_way(self, me: Participant, machine: Machine) -> None:
        """Let the program's threads go on to their next calls, or until they are silent, before a host function of `me` begins: so what
        they do to memory until then comes before what it does, in each run.
        """
        places = {who: self.position(who, machine) for who in self.participants if self._is_outside(who, machine)}
        for who, place_ps in places.items():
            who.awaited_since = None
            while (
                who in self.participants and self._is_outside(who, machine) and self.position(who, machine) == place_ps
            ):
                who.look_at(time.monotonic(), 2 * SLICE_S)
                if who.silent_s > GRACE_S or who.has_ended:
                    break
                self._pause(me, None)

    def _is_outside(self, who: Participant, machine: Machine) -> bool:
        """Whether a thread of the program that uses a machine runs, and is in no call, but maybe about to be."""
        return who.number >= 0 and who.state is State.RUNNING and who in machine.positions and not who.depth

    def come_back(self, me: Participant) -> None:
        """Let a participant that was not waited for go on, where the devices are now."""
        was_silent = me.state is State.SUSPENDED
        gone = [who for who in me.company if who not in self.participants]
        me.company = []
        if was_silent:
            self.race(me, self.participants)
        me.state = State.RUNNING
        for machine in sorted(self.machines, key=lambda machine: machine.number):
            node = machine.any_node()
            if me in machine.positions and node is not None:
                if was_silent and self.replay_turn(me, node, COMES_BACK):
                    continue
                device_ps = self.device_ps(node)
                if was_silent and self._is_busy(machine, me):
                    self.disorder(f"thread {me.number} ended its silence while the device went on for others")
                if gone and self.replay is None:  # a faster machine would have let it come back before
                    why = f"thread {me.number} ended its silence after thread {gone[0].number} had left"
                    machine.disorder = machine.disorder or why
                self.skip_to(me, machine, device_ps)
                me.moves[machine] = self.position(me, machine)
                if was_silent:
                    self._note_turn(me, node, COMES_BACK)

    def _is_busy(self, machine: Machine, me: Participant) -> bool:
        """Whether the device, which was asked for its time, is going on for others than `me`, as fast as it is simulated, or would
        when it is found out what their calls wait for.
        """
        if any(who.depth and who.machine is machine for who in self.participants if who is not me and who.number >= 0):
            return True
        waits = [who.wait for who in self.participants if who in machine.positions and who.wait is not None]
        runs = not self._is_idle and any(wait.targets and not wait.woken for wait in waits)
        return runs or any(who.function and who in machine.positions for who in self.participants)

    def _pause(
        self, me: Participant, other: Participant | None, *, patient: bool = False, least_s: float = GRACE_S
    ) -> None:
        """Let other threads run; then find out whether `other`, for whom `me` waits, has ended or, unless `patient`, is
        silent for `least_s` or longer.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if other is not None:
            other.rouse()
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
        if other is None or other.depth or other.arrived or (other.number < 0 and not other.function):
            return  # it is in a call, or about to be, or will run a function as soon as the machine lets it
        if other in self.participants:
            self._judge(other, patient, least_s)

    def _judge(self, other: Participant, patient: bool, least_s: float) -> None:
        """Remove a running participant that has ended, set one aside that is silent."""
        if other.has_ended:
            self.remove(other)
            return
        if self.replay is not None or patient:
            return  # a replay says who comes next
        now_s = time.monotonic()
        other.look_at(now_s, 2 * SLICE_S)
        assert other.awaited_since is not None
        grace_s = TEAM_GRACE_S if any(who.in_team for who in self.participants) else least_s
        if other.state in ACTIVE and (other.silent_s > grace_s or now_s - other.awaited_since > grace_s + STARVED_S):
            other.awaited_since = None
            other.state = State.ASIDE
            what = "a host function" if other.function else f"thread {other.number}"
            self.disorder(f"{what} was silent for {grace_s * 1000:.0f} ms of wall time")


def open_node(node: Node) -> Node:
    """Return a node of the same machine that is open, if there is any: the context of this one may be gone."""
    return node if node.is_usable else node.machine.any_node() or node
