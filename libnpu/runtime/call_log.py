"""The calls that the host's threads have made, while somebody keeps records: for timelines and traces."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libnpu.syscalls import Machine, Node


@dataclass(frozen=True, slots=True)
class HostCall:
    """A public call: where its thread was on the clock when it began and ended, in ps, and from when to when it was
    blocked in waits for the device. `thread` is the number of the thread, 0 the first that called.
    """

    thread: int
    name: str
    begin_ps: int
    end_ps: int
    blocked: tuple[tuple[int, int], ...]

    @property
    def blocked_ps(self) -> int:
        """How long it was blocked."""
        return sum(end - begin for begin, end in self.blocked)


class Mark:
    """A call under way."""

    __slots__ = ("_begin_ps", "_log", "_name", "blocked", "machine")

    def __init__(self, log: CallLog, machine: Machine, name: str) -> None:
        self._log = log
        self._name = name
        self._begin_ps = machine.now_ps
        self.machine = machine
        self.blocked: list[tuple[int, int]] = []

    def end(self) -> None:
        """Note the call, unless it took no time."""
        machine, who = self.machine, self.machine.caller
        self._log.under_way.pop(get_ident(), None)
        end_ps = machine.now_ps
        if end_ps > self._begin_ps:
            call = HostCall(who.number if who else 0, self._name, self._begin_ps, end_ps, tuple(self.blocked))
            self._log.calls.setdefault(machine, []).append(call)


class CallLog:
    """Calls by machine, in the order of their ends. Calls inside of calls are not noted."""

    def __init__(self) -> None:
        self.users = 0
        self.calls: dict[Machine, list[HostCall]] = {}
        self.under_way: dict[int, Mark] = {}  # by the identity of the thread

    def begin(self, node: Node, name: str) -> Mark | None:
        """Begin a call of the calling thread; None inside of another one."""
        thread = get_ident()
        if thread in self.under_way:
            return None
        mark = self.under_way[thread] = Mark(self, node.machine, name)
        return mark

    def note_blocked(self, machine: Machine, since_ps: int) -> None:
        """The calling thread, which is in a call, was blocked until now."""
        mark = self.under_way.get(get_ident())
        if mark is not None and mark.machine is machine and machine.now_ps > since_ps:
            if mark.blocked and mark.blocked[-1][1] == since_ps:  # one wait after the other
                since_ps, _ = mark.blocked.pop()
            mark.blocked.append((since_ps, machine.now_ps))
