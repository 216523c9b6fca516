"""The threads of the host on the clocks of the machines, and the one lock of all public calls.

Each thread that calls is a *participant* with a position of its own on each machine's clock. A call is one step:

1. It waits for its turn: until no running participant is behind its position (ties go by participant number). The
   device meanwhile runs no further than the smallest position of those who run.
2. It runs with the lock held, and takes the device with it to its end.
3. A wait (`Waits.block`) is the one place where it lets others go on. The thread that finds nothing else to do steps
   the device from interrupt to interrupt, as far as the running participants allow, and wakes whoever's job has ended,
   at that position.

So the order of calls follows from positions, not from the machine that simulates. Exceptions are noted, and the
machine is then not reproducible: a participant that stays silent for `GRACE_S` while others wait for it is set aside,
and threads that turn up side by side outside of a team (`host_team.py`) are in the order of their arrival.

One thread alone, the usual case, pays for none of this (`Host.solo`).

`Host` is built in layers, each on those before: `host_participants.py` (who: the data), `host_positions.py` (where each
is on the clocks), `host_waking.py` (the device goes on, and wakes who waits for it), `host_turns.py` (whose turn it is,
and for how long others wait for a silent thread), `host_waits.py` (waits, deadlocks), and here the calls themselves.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.host_participants import Participant, State, Wait
from libnpu.runtime.host_turns import open_node
from libnpu.runtime.host_waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libnpu.runtime.call_log import CallLog
    from libnpu.syscalls import Node


class Host(Waits):
    """The threads' calls. One instance, `HOST`; its methods are called with `lock` held, but for `arrive`, `has_arrived` and
    `position_of_caller`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.call_log: CallLog | None = None  # while somebody keeps records

    # ---- calls ----

    def arrive(self) -> None:
        """Note, before the lock is taken, that the calling thread is not silent."""
        me = self.known()
        if me is not None:
            me.arrived = True

    def has_arrived(self) -> None:
        """End `arrive`: the calling thread has the lock, or gave up to get it."""
        me = self.known()
        if me is not None:
            me.arrived = False

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
        self.note_drift(me, machine)
        self.take_turn(me, node, call)

    def position_of_caller(self, node: Node) -> int:
        """Return where the calling thread is, which need not hold the lock. Its first look at a machine is a call, as
        `enter`.
        """
        machine, me, now_ps = node.machine, self.known(), node.machine.now_ps
        if self.forked:
            return now_ps
        if me is None or me not in machine.positions:
            self.arrive()
            try:
                with self.lock:
                    me = self.enter(node, "Device.now_ps")
                    try:
                        return machine.now_ps
                    finally:
                        self.leave(me, node)
            finally:
                self.has_arrived()
        if me.drifted:
            self.note_drift(me, machine)
        if self._current is me:  # by now still: nobody but `me` makes it so, `now_ps` is of its time
            return now_ps
        return machine.positions.get(me, now_ps)

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
            first.rouse()
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

    # ---- the thread of host functions ----

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
        me.rouse()

    def rest(self, me: Participant) -> None:
        """Take no part until `add_again`."""
        self.remove(me)
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
        me.depth, me.machine = 1, node.machine
        if me.state is not State.RUNNING:
            self.come_back(me)
        try:
            if self.keeps_order or open_node(node).is_usable:  # whether or not the machine was reset meanwhile
                self.take_turn(me, node)
            action()
        finally:
            self.leave(me, node)


def _forget_parent() -> None:
    """In a forked child: the lock may be held by a thread that is not there, and no device is the child's."""
    used = HOST.forked or bool(HOST.machines)
    HOST.__init__()  # type: ignore[misc]
    HOST.forked = used


HOST = Host()
os.register_at_fork(after_in_child=_forget_parent)
