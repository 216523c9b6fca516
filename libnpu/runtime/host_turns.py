"""Whose turn it is: the running participant's that is furthest behind; and for how long the others wait for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from libnpu.errors import NpuError
from libnpu.runtime.host_participants import ACTIVE, Participant, State
from libnpu.runtime.host_waking import Waking
from libnpu.runtime.time import NEVER_PS

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.syscalls import Machine, Node

GRACE_S = 0.05  # chosen: how long the others wait for a silent thread
TEAM_GRACE_S = 10.0  # chosen: the same while there is a team: its threads may compute, and take long to start
REPLAY_GRACE_S = 30.0  # chosen: how long a replay waits for the next recorded call
SLICE_S = 0.01  # chosen: how often a waiting thread looks for interrupts, ended and silent threads


class Turns(Waking):
    """The order of calls. `pending` is a signal's handler, until the main thread may run it."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: Callable[[], object] | None = None
        self.main_pauses = False
        self.broke_off: BaseException | None = None  # came out of a pause: nothing of the device's was interrupted

    # ---- whose turn ----

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

    def _first(self, machine: Machine) -> Participant | None:
        """Return the running participant of the machine that is furthest behind."""
        running = [who for who in machine.positions if who.state in ACTIVE]
        return min(running, key=lambda who: self._order(who, machine), default=None)

    def _bound(self, first: Participant | None, machine: Machine) -> int:
        """Return how far the device may run while `first` is the one furthest behind."""
        return NEVER_PS if first is None else self._next_ps(first, machine)

    def _order(self, who: Participant, machine: Machine) -> tuple[int, int]:
        """Return what a participant goes by: its position, then its number."""
        return (self._next_ps(who, machine) if who in machine.positions else NEVER_PS, who.number)

    def _next_ps(self, who: Participant, machine: Machine) -> int:
        """Return the earliest time of who's next call."""
        position = self.position(who, machine)
        if self.replay is None or who.depth or who.number < 0:  # host functions are in no record
            return position
        return max(position, self.replay.next_ps(who.number, machine.number))

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

    # ---- who is waited for ----

    def _pause(self, me: Participant, other: Participant | None, *, patient: bool = False) -> None:
        """Let other threads run; then find out whether `other`, for whom `me` waits, has ended or, unless `patient`, is
        silent.
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
        grace_s = TEAM_GRACE_S if any(who.in_team for who in self.participants) else GRACE_S
        if other.state in ACTIVE and now_s - other.awaited_since > grace_s:
            other.awaited_since = now_s
            other.state = State.ASIDE
            what = "a host function" if other.function else f"thread {other.number}"
            self.disorder(f"{what} was silent for {grace_s * 1000:.0f} ms of wall time")
