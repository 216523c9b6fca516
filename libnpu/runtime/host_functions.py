"""Host functions: Python functions that run in the order of a stream, on a thread of their own, one for each device.

A host function is two jobs of its stream, and only that stream waits:

1. a marker: when it has ended and the host knows of it, the function becomes runnable, at that position on the clock;
2. a wait for a fence, behind which the stream goes on. When the function has returned, its thread writes the fence in
   host memory and rings the queue's doorbell.

The thread is a participant like any other (`host_threads.py`), so everybody waits for it to run at its time; it holds no
lock while the function runs. A function that is silent too long, for instance because it waits for something that
another thread will do, is set aside. An exception belongs to the second job: the stream's next wait or query raises it.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import shown
from libnpu.runtime.commands import POOLED_BYTES
from libnpu.runtime.fences import Signal
from libnpu.runtime.host_participants import Participant, State, Target, Wait
from libnpu.runtime.host_threads import HOST
from libnpu.runtime.operation import FenceWait, Marker
from libnpu.runtime.room import make_room
from libnpu.runtime.time import FOR_EVER_PS
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.runtime.commands import CommandWriter
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream
    from libnpu.syscalls import Machine

NUMBER = -1  # of such a thread as a participant: at equal positions functions come first, whenever the thread began
JOBS = 2  # of one function
FORBIDDEN = "a host function may not call the API"


class Trigger(Marker):
    """Its end makes a function runnable; no operation of its own in records."""

    __slots__ = ()
    kind = ""


class Gate(FenceWait):
    """What the stream waits at until the function has returned."""

    __slots__ = ("_end",)
    kind = "host_function"

    def __init__(self, signal: Signal, end: Callable[[Job], None]) -> None:
        super().__init__(signal)
        self.name = signal.what
        self._end = end

    def encode(self, writer: CommandWriter) -> None:
        """As FenceWait."""
        super().encode(writer)
        writer.at_end(self._end)


class HostFunction(Target):
    """A function that was enqueued: the target is the marker's end. `signal` is the fence that it owes the stream,
    `work_ps` the host's time for it.
    """

    __slots__ = ("arguments", "error", "function", "has_ended", "signal", "stream", "work_ps")

    def __init__(
        self, stream: Stream, marker: Job, signal: Signal, function: Callable[..., object], arguments: Any, work_ps: int
    ) -> None:
        assert marker.bo is not None
        super().__init__(marker.stream.context.node, marker.bo.handle, marker)
        self.stream = stream
        self.signal = signal
        self.function = function
        self.arguments = arguments
        self.work_ps = work_ps
        self.error: BaseException | None = None
        self.has_ended = False  # the stream has: nobody waits for the fence

    def begin(self) -> None:
        """Tell who watches that it runs now."""
        observer = self.stream.context.observer
        if self.status == C.NPU_JOB_SUCCESS and observer is not None and self.job is not None:
            observer.reached(self.job)

    def run(self) -> None:
        """Call the function, unless the marker did not end well: the stream was aborted, or its context is lost."""
        if self.status == C.NPU_JOB_SUCCESS:
            try:
                self.function(*self.arguments)
            except BaseException as error:  # whatever it is, it belongs to the stream
                self.error = error

    def finish(self) -> None:
        """Let the stream go on, when the host has done its work."""
        context = self.stream.context
        if self.work_ps and context.node.is_usable:
            context.node.work(self.work_ps)
        if not self.has_ended and context.is_alive and context.node.is_usable:
            context.fences.write(self.signal.cell, self.signal.value)
            ring = Request(C.NPU_IOCTL_CMDQ_RING, "npu_cmdq_ring", "CMDQ_RING")
            ring.arg.cmdq_id = self.stream.cmdq_id
            context.node.try_ioctl(ring)  # a queue that is gone has nobody who waits

    def end(self, job: Job) -> None:
        """The stream has gone on: hand the exception over to `job`."""
        self.has_ended = True
        self.stream.context.fences.release(self.signal.cell)
        if self.error is not None and job.error is None:
            what = f"{job.operation.name}: {type(self.error).__name__}: {self.error}"
            job.error = job.failure(C.NPU_ERROR_HOST_FUNCTION, what)
            job.error.__cause__ = self.error
            self.stream.keep_error(job)


class ThreadEnded(Exception):
    """What a host function, of C, has done: pthread_exit."""


class Runner:
    """A thread, and what it has to run: functions of one machine, `machine`, None while there are none."""

    def __init__(self) -> None:
        self.machine: Machine | None = None
        self._wait = Wait([], FOR_EVER_PS, patient=True)
        self._me: Participant | None = None
        self._running: HostFunction | None = None

    def add(self, function: HostFunction) -> None:
        """Run `function` when its marker has ended. The lock is held."""
        self.machine = function.node.machine
        self._wait.targets.append(function)
        if self._me is None:
            self._me = HOST.add(State.BLOCKED, NUMBER)
            self._me.wait = self._wait
            self._me.final = FINAL
            self._start(self._me)
        else:
            HOST.add_again(self._me, self._wait)
        if self._me not in self.machine.positions:
            HOST.set_position(self._me, self.machine, FINAL.pop(self.machine, 0))

    def remove(self, function: HostFunction) -> None:
        """Forget a function that cannot run."""
        self._wait.targets.remove(function)

    def is_run_by(self, me: Participant | None) -> bool:
        """Whether `me` is its thread."""
        return me is not None and me is self._me

    def replace_thread(self) -> None:
        """Go on in another thread: the function that runs here ends this one, and has failed by that."""
        me, function = self._me, self._running
        assert me is not None and function is not None
        function.error = ThreadEnded("it ended its thread instead of returning")
        self._return(me, function)
        HOST.be(None)
        me.native_id, me.thread = 0, None
        self._wait.woken = False
        me.wait, me.state = self._wait, State.BLOCKED
        self._start(me)

    def _start(self, me: Participant) -> None:
        threading.Thread(target=self._loop, args=(me,), name="npu host functions", daemon=True).start()

    def _loop(self, me: Participant) -> None:
        with HOST.lock:
            me.bind()
            HOST.be(me)
            while True:
                function = self._running = self._next(me)
                if function.stream.context.observer is not None and not function.stream.context.dispatcher.runs_alone:
                    HOST.give_way(me, function.node.machine)
                function.begin()
                me.function, me.forbidden = True, FORBIDDEN
                HOST.release(me, function.run)
                self._return(me, function)

    def _return(self, me: Participant, function: HostFunction) -> None:
        self._running = None
        me.function, me.forbidden = False, ""
        try:
            HOST.retake(me, function.node, function.finish)
        except NpuError as departure:  # from a recorded order, which is free now
            function.error = function.error or departure
            HOST.retake(me, function.node, function.finish)

    def _next(self, me: Participant) -> HostFunction:
        """Return the function that is runnable first, at its position."""
        wait, departure = self._wait, None
        while True:
            if not wait.targets:
                self.machine = None
                HOST.rest(me)
            wait.woken = False
            me.wait, me.state = wait, State.BLOCKED
            try:
                HOST.block_on_any(me, wait)
            except NpuError as error:  # from a recorded order: the next function has failed
                departure = error
                continue
            me.state = (
                State.RUNNING
            )  # `wait` stays: while it runs a function, it is told of those whose job another thread ends
            done = [target for target in wait.targets if target.done_ps is not None]
            if done:
                first = min(done, key=lambda target: target.done_ps or 0)
                wait.targets.remove(first)
                assert isinstance(first, HostFunction)
                first.error = departure
                return first


def add(stream: Stream, function: Callable[..., object], arguments: tuple[Any, ...]) -> Job:
    """As `enqueue`, in a stream that may be captured; with `launch_blocking` the function has returned."""
    job = enqueue(stream, function, arguments)
    if stream.capturing is None:
        stream.settle(job)
    return job


def enqueue(stream: Stream, function: Callable[..., object], arguments: tuple[Any, ...], work_ps: int = 0) -> Job:
    """Enqueue `function(*arguments)` and return the job that ends when it has returned. Inside a public call.

    `work_ps` is the host's time for it, which passes on the clock before the stream goes on; of no function in a capture.
    Raises as `Stream.enqueue`.
    """
    if not callable(function):
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{shown(function)} cannot be called")
    stream.check_open()
    if stream.capturing is None:
        make_room(stream.context, {stream: JOBS})
        stream.check_open()  # another thread may have closed it meanwhile
    if stream.capturing is not None:
        return stream.capturing.add_host_function(stream, function, arguments)
    name = f"host function {getattr(function, '__name__', function)}"
    HOST.watch()
    stream.context.commands.check_available([POOLED_BYTES] * JOBS)
    fences = stream.context.fences
    cell = fences.alloc()
    cell.last += 1
    signal = Signal(cell, cell.last, name)
    made = runner = None
    try:
        made = HostFunction(stream, stream.enqueue(Trigger(name), settle=False), signal, function, arguments, work_ps)
        runner = _runner_of(stream.context.node.machine)
        runner.add(made)
        job = stream.enqueue(Gate(signal, made.end), settle=False)
    except BaseException:
        if runner is not None and made is not None:
            runner.remove(made)
        if made is None or not made.has_ended:
            fences.release(cell)
        raise
    stream.context.dispatcher.function_enqueued()
    return job


def thread_ends() -> None:
    """The calling thread, which runs a host function, is ending: let the stream go on, with an error."""
    me = HOST.known()
    for runner in RUNNERS:
        if runner.is_run_by(me):
            with HOST.lock:
                runner.replace_thread()


def _runner_of(machine: Machine) -> Runner:
    """Return the thread that runs a machine's functions; the clocks of several machines give no common order."""
    found = next((runner for runner in RUNNERS if runner.machine is machine), None)
    found = found or next((runner for runner in RUNNERS if runner.machine is None), None)
    if found is None:
        found = Runner()
        RUNNERS.append(found)
    return found


RUNNERS: list[Runner] = []
FINAL: weakref.WeakKeyDictionary[Machine, int] = weakref.WeakKeyDictionary()  # where a machine's functions have come to


def _forget_parent() -> None:
    RUNNERS.clear()
    FINAL.clear()


os.register_at_fork(after_in_child=_forget_parent)
