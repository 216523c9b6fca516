"""One public call at a time, whole or not at all: the lock around it, and what an interrupt may do to it.

`public` marks the methods that programs call. They may come from any thread and take the process's one lock, which is
re-entrant: a public method may use others. When a call's turn comes, and who goes on while it waits for the device, is
`host_threads.py`. Ctrl-C must not stop the simulator in the middle of a step:

1. While the main thread is in a call, SIGINT is noted, and its handler runs when the call has ended, with all work
   and all state in order; at once when the call has let other threads go on. A second SIGINT does not wait.
2. Whatever breaks out of the driver, or out of a call that had reached the driver (a second SIGINT, another signal's
   handler that raises, a defect), leaves a device in an unknown state. It is lost, by name, and `Device.reset` begins
   anew.
3. A signal's handler that has interrupted a call cannot call: what it would ask is in the middle of something.
4. Not so an exception of the kinds that wrong arguments cause (`ARGUMENT_ERRORS`), from the library or from what it asks
   of an argument, such as `__index__`, outside of the driver: calls look at their arguments before they change
   anything. A signal's handler does not look, whatever it raises.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import struct
import sys
import threading
import traceback
from threading import get_ident
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime import observer
from libnpu.runtime.host_threads import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from libnpu.syscalls import Node

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")
ARGUMENT_ERRORS = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, BufferError, RecursionError, struct.error
)  # fmt: skip
INSIDE: set[int] = set()  # threads in a public call
WRAPPERS: set[CodeType | None] = (
    set()
)  # what calls begin and end in, before they have the lock and when they have let it go
PART_OF = {  # the classes as programs know them
    "ContextMemory": "Context",
    "ContextStreams": "Context",
    "DeviceMachine": "Device",
    "StreamQueue": "Stream",
    "StreamWaits": "Stream",
}


class Guard:
    """What the public calls of an object have in common: the device node that they reach, and the process's lock."""

    __slots__ = ("__weakref__", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        with HOST.lock:
            HOST.check_permitted()
            node.machine.host = HOST
            HOST.add_machine(node.machine)
        _defer_interrupts()


def _settle() -> None:
    """Let the signal that came during the outermost call have its effect."""
    pending = HOST.pending
    if pending is not None and not _is_held_here() and threading.current_thread() is threading.main_thread():
        HOST.pending = None
        pending()


def _is_held_here() -> bool:
    """Whether the calling thread is in a public call."""
    return bool(HOST.lock._is_owned())  # as threading.Condition asks; there is no public way in Python 3.11


def _is_of_a_handler(error: BaseException) -> bool:
    """Whether an exception has come out of a signal's handler."""
    handlers = _handlers()
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _handlers() -> set[CodeType | None]:
    """Return the code of the signals' handlers."""
    return {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}


def _check_caller(call: str) -> None:
    """Refuse a public call inside another one, unless it is the library's own or of what the library has called."""
    frame: FrameType | None = sys._getframe(2)
    if frame is None or frame.f_globals["__name__"].startswith("libnpu."):
        return
    handlers = _handlers()
    while frame is not None and frame.f_globals is not globals():
        if frame.f_code in handlers:
            why = "in a signal's handler that has interrupted a call; let it set a flag"
            HOST.refusal = NpuError(C.NPU_ERROR_NOT_PERMITTED, f"{call}: {why}")
            raise HOST.refusal
        frame = frame.f_back


def _code_of(handler: object) -> CodeType | None:
    """Return the code of a signal's handler, None when it is none of Python's."""
    if isinstance(handler, functools.partial):
        return _code_of(handler.func)
    function = getattr(handler, "__func__", handler)  # of a method
    if callable(function) and not hasattr(function, "__code__"):
        function = getattr(type(function).__call__, "__func__", type(function).__call__)
    return getattr(function, "__code__", None)


def _forget_the_way(error: BaseException) -> None:
    """Take the library's way to where it was interrupted out of the traceback of what a signal's handler has raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals["__name__"].startswith(("libnpu.", "npu_")):
        trace = trace.tb_next
    error.__traceback__ = trace


def public(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Make a method of an object with a `guard` one public call (see above)."""
    host = HOST
    owner, _, short = method.__qualname__.partition(".")
    name = f"{PART_OF.get(owner, owner)}.{short}"

    @functools.wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        node = self.guard.node  # type: ignore[attr-defined]
        ident = get_ident()
        nested = ident in INSIDE
        if nested:
            _check_caller(name)
        else:
            INSIDE.add(ident)
        try:
            if host.solo != ident:
                host.arrive()
            with host.lock:
                if observer.current is not None and not nested:
                    observer.current.called()
                me = None if host.solo == ident else host.enter(node, name)
                before = node.calls
                mark = host.call_log.begin(node, name) if host.call_log is not None else None
                try:
                    return method(self, *args, **kwargs)
                except NpuError as error:
                    if error is host.refusal:
                        if node.calls != before:
                            node.lose(error)
                        _forget_the_way(error)
                    raise
                except BaseException as error:
                    of_handler = error is host.broke_off or _is_of_a_handler(error)
                    unknown = node.calls != before and error is not host.broke_off  # how far the driver got
                    if unknown and (of_handler or not isinstance(error, ARGUMENT_ERRORS)):
                        node.lose(error)
                    if of_handler:
                        _forget_the_way(error)
                    raise
                finally:
                    if mark is not None:
                        mark.end()
                    if me is not None:
                        host.leave(me, node)
        except BaseException as error:
            host.has_arrived()  # also if a signal's handler has raised before the lock was there
            if observer.current is not None and not nested and isinstance(error, NpuError):
                with host.lock:
                    observer.current.refused(node, name, error)
            if error is host.broke_off:
                _forget_the_way(error)
            raise
        finally:
            if not nested:
                INSIDE.discard(ident)
            if host.pending is not None:
                try:
                    _settle()
                except BaseException as error:
                    _forget_the_way(error)
                    raise

    WRAPPERS.add(_code_of(call))
    return call


def told(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Let who watches know when a method of an object with a `guard` is refused that takes no turn: it asks nothing of the device."""
    owner, _, short = method.__qualname__.partition(".")
    name = f"{PART_OF.get(owner, owner)}.{short}"

    @functools.wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except NpuError as error:
            if observer.current is not None and get_ident() not in INSIDE:
                with HOST.lock:
                    observer.current.refused(self.guard.node, name, error)  # type: ignore[attr-defined]
            raise

    return call


def uninterrupted(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function whole as to SIGINT, as a public call is."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            _defer_interrupts()
        except BaseException as error:  # of a signal's handler
            _forget_the_way(error)
            raise
        try:
            with HOST.lock:
                return function(*args, **kwargs)
        finally:
            if HOST.pending is not None:
                try:
                    _settle()
                except BaseException as error:
                    _forget_the_way(error)
                    raise

    WRAPPERS.add(_code_of(call))
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
    """The handler of SIGINT in front of the one that was there: it waits while the main thread is in a public call."""

    def __init__(self, previous: Callable[[int, FrameType | None], object]) -> None:
        is_default = previous is signal.default_int_handler or _is_of_asyncio(previous)
        self._previous = _interrupt if is_default else previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if HOST.main_pauses or _is_held_here() or (frame is not None and frame.f_code in WRAPPERS):
            if HOST.pending is None or HOST.main_pauses:
                HOST.pending = functools.partial(self._previous, number, None)
                return
            HOST.pending = None
        try:
            self._previous(number, frame)
        except BaseException as error:
            _forget_the_way(error)
            raise


def _interrupt(number: int, _: FrameType | None) -> None:
    """Do what SIGINT does by default. `asyncio.run` has a handler of its own, which cancels the main task, but puts it in
    place of the default one only: so here its part is done for it.
    """
    runners, frame = sys.modules.get("asyncio.runners"), sys._getframe().f_back
    while runners is not None and frame is not None:
        if frame.f_code is runners.Runner.run.__code__ and "task" in frame.f_locals:
            frame.f_locals["self"]._on_sigint(number, None, frame.f_locals["task"])
            return
        frame = frame.f_back
    signal.default_int_handler(number, None)


def _is_of_asyncio(handler: object) -> bool:
    """Whether a handler is that of `asyncio.run`, which may outlive the run when another one is in front of it."""
    runners = sys.modules.get("asyncio.runners")
    method = getattr(handler.func, "__func__", None) if isinstance(handler, functools.partial) else None
    return runners is not None and method is runners.Runner._on_sigint


def _defer_interrupts() -> None:
    """Put a `_Deferral` in front of a SIGINT handler of Python's; other threads than the main one leave it alone."""
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, _Deferral) and callable(handler):  # else ignored, default of the system, or C's
        signal.signal(signal.SIGINT, _Deferral(handler))
