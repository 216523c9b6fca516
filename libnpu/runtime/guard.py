"""One public call of a device at a time, whole or not at all: the lock around it, and what an interrupt may do to it.

`public` marks the methods that programs call. They may come from any thread and take the device's one lock, which is
re-entrant: a public method may use others. Ctrl-C must not stop the simulator in the middle of a step:

1. While the main thread is in a call, SIGINT is noted, and its handler runs when the call has ended, with all work
   and all state in order. A second SIGINT does not wait.
2. Whatever else breaks out of a call that had reached the driver (a second SIGINT, another signal's handler that
   raises, a defect) leaves a device in an unknown state. It is lost, by name, and `Device.reset` begins anew.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from libnpu.errors import NpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from libnpu.syscalls import Node

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")


class Guard:
    """The lock of a device, and the signal that waits for the end of the call that holds it."""

    __slots__ = ("__weakref__", "lock", "node", "pending")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.lock: Any = threading.RLock()
        self.pending: Callable[[], object] | None = None
        _defer_interrupts(self)

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread is in a public call."""
        return bool(self.lock._is_owned())  # as threading.Condition asks; there is no public way in Python 3.11

    def settle(self) -> None:
        """Let the signal that came during the outermost call have its effect."""
        pending = self.pending
        if pending is not None and not self.is_held_here and threading.current_thread() is threading.main_thread():
            self.pending = None
            pending()


def public(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Make a method of an object with a `guard` one public call (see above)."""

    @functools.wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        guard: Guard = self.guard  # type: ignore[attr-defined]
        try:
            with guard.lock:
                node = guard.node
                before = node.calls
                try:
                    return method(self, *args, **kwargs)
                except NpuError:
                    raise
                except BaseException as error:
                    if node.calls != before:
                        node.lose(error)
                    raise
        finally:
            if guard.pending is not None:
                guard.settle()

    return call


@contextlib.contextmanager
def failures_yield_to(kind: type[BaseException] | None) -> Iterator[None]:
    """End a `with` block: an NpuError of the clean-up must not take the place of the block's own exception `kind`."""
    try:
        yield
    except NpuError:
        if kind is None:
            raise


class _Deferral:
    """The handler of SIGINT in front of the one that was there: it waits while a guard is held by the main thread."""

    def __init__(self, previous: Callable[[int, FrameType | None], object]) -> None:
        self._previous = previous
        self.guards: weakref.WeakSet[Guard] = weakref.WeakSet()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for guard in list(self.guards):
            if guard.is_held_here:
                if guard.pending is None:
                    guard.pending = functools.partial(self._previous, number, None)
                    return
                guard.pending = None
        self._previous(number, frame)


def _defer_interrupts(guard: Guard) -> None:
    """Put a `_Deferral` in front of a SIGINT handler of Python's, once per process; other threads leave it alone."""
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, _Deferral):
        if not callable(handler):  # ignored, default of the system, or C's
            return
        handler = _Deferral(handler)
        signal.signal(signal.SIGINT, handler)
    handler.guards.add(guard)
