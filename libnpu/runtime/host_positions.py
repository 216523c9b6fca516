"""Who takes part, and where each participant is on the clocks of the machines."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.host_order import Numbers
from libnpu.runtime.host_participants import Participant, State, thread_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libnpu.runtime.host_order import Recorder, Replay
    from libnpu.syscalls import Machine


class Positions:
    """All participants and machines of the process. Every method is called with `lock` held."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.solo = 0  # identity of the only thread, while there is nobody else to think of; else 0
        self.forked = False
        self.recorder: Recorder | None = None
        self.replay: Replay | None = None
        self.machines: weakref.WeakSet[Machine] = weakref.WeakSet()
        self.participants: list[Participant] = []
        self._current: Participant | None = None  # whose positions the machines' now_ps are
        self._local = threading.local()
        self._numbers = 0
        self._machine_numbers = 0

    # ---- who takes part ----

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
            number = self.replay.number_of(thread_name()) if self.replay is not None else None
            me = self.add(State.RUNNING, number)
            me.bind()
            self.be(me)
            if self.recorder is not None:
                self.recorder.note_thread(me.number, thread_name())
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

    def remove(self, participant: Participant) -> None:
        """Forget a participant; twice is allowed."""
        if participant not in self.participants:
            return
        self.leave_solo()
        self.participants.remove(participant)
        if self._current is participant:
            self._save()
            self._current = None
        for machine in self.machines:
            if participant in machine.positions:
                final_ps = participant.final[machine] = machine.positions.pop(participant)
                machine.left_ps = max(machine.left_ps, final_ps)

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

    def numbers(self) -> tuple[Numbers, Numbers]:
        """Return the numbers of threads and of machines in a file of the order of calls that begins now."""
        open_machines = sorted(machine.number for machine in self.machines if machine.any_node() is not None)
        threads = Numbers([who.number for who in self.participants if who.number >= 0], self._numbers)
        return threads, Numbers(open_machines, self._machine_numbers)

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

    # ---- one thread alone ----

    def leave_solo(self) -> None:
        """Keep account of positions, for there may be other threads from now on."""
        if self.solo:
            (only,) = self.participants
            only.arrived = False
            for machine in self.machines:
                machine.positions.setdefault(only, machine.now_ps)
            self.solo = 0

    def update_solo(self) -> None:
        """Find out whether the calling thread is alone by now."""
        for who in self.participants[:]:
            if who is not self._current and not who.depth and who.state is not State.BLOCKED and who.has_ended:
                self.remove(who)
        alone = len(self.participants) == 1 and self.recorder is None and self.replay is None and not self.forked
        only = self.participants[0] if alone else None
        free = only is not None and only is self._current and only.state is State.RUNNING and not only.forbidden
        free = free and only is not None and not only.drifted
        self.solo = only.ident if only is not None and free else 0

    # ---- what the order of calls depends on ----

    @property
    def keeps_order(self) -> bool:
        """Whether the order is recorded or forced: then every wait is a turn, whoever else there is by now."""
        return self.recorder is not None or self.replay is not None

    def race(self, me: Participant, others: Iterable[Participant]) -> None:
        """Note that `me` turned up: the order of its calls and those of others that run is nobody's."""
        if self.replay is None:
            for other in others:
                if other is not me and other.state is State.RUNNING and not other.has_ended:
                    other.raced = me

    def disorder(self, why: str) -> None:
        """Note that the order of calls depended on the machine that simulates."""
        if self.replay is not None:
            return
        for machine in self.machines:
            if machine.disorder is None and len(machine.positions) > 1:
                machine.disorder = why

    def note_drift(self, me: Participant, machine: Machine) -> None:
        """Note that the calling thread learns how far a machine went while the thread was blocked on another one."""
        if machine in me.drifted:
            me.drifted.remove(machine)
            why = f"thread {me.number} was blocked on one device while another one that it uses went on"
            machine.disorder = machine.disorder or why

    # ---- positions ----

    def position(self, who: Participant, machine: Machine) -> int:
        """Return where `who` is on the machine's clock."""
        return machine.now_ps if who is self._current else machine.positions[who]

    def furthest_ps(self, machine: Machine) -> int:
        """Return where the last of all threads has come to that take or took part."""
        return max([machine.left_ps, *(self.position(who, machine) for who in machine.positions)])

    def set_position(self, who: Participant, machine: Machine, position_ps: int) -> None:
        """Move `who` on the machine's clock."""
        machine.positions[who] = position_ps
        if who is self._current:
            machine.now_ps, machine.behind = position_ps, True

    def move(self, who: Participant, machine: Machine, position_ps: int) -> None:
        """Move `who` without a turn of it there, which depends on the machine that simulates: its next turn records it."""
        self.set_position(who, machine, position_ps)
        who.moves[machine] = position_ps

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
            self._current = None  # before `now_ps` changes, which a thread without the lock may read
            for machine in self.machines:
                if me in machine.positions:
                    machine.now_ps, machine.behind = machine.positions[me], True
            self._current = me

    def _save(self) -> None:
        """Note where the machines' `now_ps` have come to, which `positions` does not follow during a turn."""
        old = self._current
        if old is not None:
            for machine in self.machines:
                if old in machine.positions:
                    machine.positions[old] = machine.now_ps
