"""The nodes of graphs: captured operations, those that only graphs have, and the modules that nodes hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from libnpu.runtime.operation import BoundModuleLaunch, KernelLaunch, ModuleLaunch, Operation
from libnpu.runtime.site import line_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.runtime.commands import CommandWriter
    from libnpu.runtime.event import Event
    from libnpu.runtime.module import Module
    from libnpu.runtime.site import Place


class EventRecord(Operation):
    """Record an event with each launch."""

    __slots__ = ("event", "inner")
    kind = "event_record"

    def __init__(self, event: Event) -> None:
        self.event = event
        self.inner = event.operation()
        self.name = self.inner.name

    def encode(self, writer: CommandWriter) -> None:
        """Write what the record of an event is."""
        self.inner.encode(writer)


class EventWait(Operation):
    """Wait for what an event has recorded at the time of the launch; None: what is waited for is in the graph itself."""

    __slots__ = ("event",)
    kind = "event_wait"

    def __init__(self, event: Event | None) -> None:
        self.name = "event wait"
        self.event = event

    def encode(self, writer: CommandWriter) -> None:
        """Write a FENCE_WAIT if there is something to wait for."""
        job = self.event.job if self.event is not None else None
        if job is not None:
            writer.wait(job.stream.signal_of(job))


class HostCall(Operation):
    """Call a function on the host. No command of the device: the executable graph enqueues it as streams do."""

    __slots__ = ("arguments", "function")
    kind = "host_function"

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.name = getattr(function, "__name__", "host function")
        self.function = function
        self.arguments = arguments

    def encode(self, writer: CommandWriter) -> None:
        """Never called."""
        raise AssertionError("a host function has no commands")


@dataclass(frozen=True, slots=True)
class Node:
    """One captured operation. `branch`: number of its stream, 0 is the origin's; nodes of a branch run in order.

    `source`: of a wait for another branch, the index of the node whose end it waits for, else None. `place`: where it was captured.
    """

    branch: int
    operation: Operation
    source: int | None = None
    place: Place | str | int = ""

    def bound(self) -> Node:
        """Return it with what its operation needs for itself to be enqueued again and again."""
        return replace(self, operation=bind(self.operation))

    @property
    def site(self) -> str | int:
        """Where it was captured: "file:line", or a code address when C called."""
        return line_of(self.place) if isinstance(self.place, tuple) else self.place

    @property
    def kind(self) -> str:
        """The word of enum npu_op_kind."""
        return self.operation.kind

    @property
    def name(self) -> str:
        """What people call it."""
        return self.operation.name


def module_of(operation: Operation) -> Module | None:
    """Return the module that an operation launches."""
    match operation:
        case ModuleLaunch():
            return operation.module
        case KernelLaunch():
            return operation.kernel.module
    return None


def bind(operation: Operation) -> Operation:
    """Return the operation with what it needs for itself to be enqueued again and again."""
    if isinstance(operation, ModuleLaunch) and not isinstance(operation, BoundModuleLaunch):
        return operation.bound()
    return operation


def hold_modules(user: object, nodes: tuple[Node, ...]) -> None:
    """Keep the modules of nodes from being unloaded as long as `user` lives, or until `release_modules`."""
    for node in nodes:
        module = module_of(node.operation)
        if module is not None:
            module.users.add(user)


def release_modules(user: object, nodes: tuple[Node, ...]) -> None:
    """Undo `hold_modules`."""
    for node in nodes:
        module = module_of(node.operation)
        if module is not None:
            module.users.discard(user)
