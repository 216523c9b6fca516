"""The calls that the host's threads have made, while somebody keeps records: for timelines and traces."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libnpu.syscalls import Machine, Node


@dataclass(frozen=True, slots=True)
class HostCall:
    """A public call: where its thread was on the clock when it began and ended, in ps, and how much of that it was
    blocked. `thread` is the number of the thread, 0 the first that called.
    """

    thread: int
    name: str
    begin_ps: int
    end_ps: int
    blocked_ps: int


class Mark:
    """A call under way."""

    __slots__ = ("_begin_ps", "_blocked_ps", "_log", "_machine", "_name")

    def __init__(self, log: CallLog, machine: Machine, name: str) -> None:
        self._log = log
        self._machine = machine
        self._name = name
        self._begin_ps = machine.now_ps
        self._blocked_ps = machine.host_times(machine.caller)[1]

    def end(self) -> None:
        """Note the call, unless it took no time."""
        machine, who = self._machine, self._machine.caller
        self._log.under_way.discard(get_ident())
        end_ps = machine.now_ps
        if end_ps > self._begin_ps:
            blocked_ps = machine.host_times(who)[1] - self._blocked_ps
            call = HostCall(who.number if who else 0, self._name, self._begin_ps, end_ps, blocked_ps)
            self._log.calls.setdefault(machine, []).append(call)


class CallLog:
    """Calls by machine, in the order of their ends. Calls inside of calls are not noted."""

    def __init__(self) -> None:
        self.users = 0
        self.calls: dict[Machine, list[HostCall]] = {}
        self.under_way: set[int] = set()  # identities of the threads

    def begin(self, node: Node, name: str) -> Mark | None:
        """Begin a call of the calling thread; None inside of another one."""
        thread = get_ident()
        if thread in self.under_way:
            return None
        self.under_way.add(thread)
        return Mark(self, node.machine, name)
