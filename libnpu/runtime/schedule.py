"""Schedules: in which order the work of a program runs. All are legal orders of the same program, so one without missing
synchronisation gives the same bytes under all of them.

- timed: by the model's time, the only one whose times mean something.
- eager: the device runs until it is idle before the enqueuing call returns.
- lazy: jobs are held back; only what a wait or query needs runs, by the order of streams and by fences.
- newest-first: jobs are held back until a wait or query; then, of the streams whose next job is ready, the one
  enqueued last goes first and runs to its end, until what is asked for is done.
- seed:N: tasks take random times, and some jobs begin late, from the seed.
- hold:...: jobs run one by one as soon as they can, but for those that are named (`hold.py`): any order, as a line of text.

The order within a stream is never touched. A query counts as a need, so that polling ends. What holds jobs back takes
any number: a queue that is full, and cannot get empty, then shows at the wait for what it does not take, and not at the
call that enqueues.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import shown
from libnpu.runtime.dispatch import Dispatcher
from libnpu.runtime.dispatchers import Eager, Lazy, NewestFirst
from libnpu.runtime.hold import Held, Hold, parse, text_of
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.runtime.context import Context
    from libnpu.syscalls import Node

MAX_SEED = (1 << 64) - 1


KINDS: dict[str, Callable[[Context], Dispatcher]] = {
    "timed": lambda _: Dispatcher(),
    "eager": Eager,
    "lazy": Lazy,
    "newest-first": NewestFirst,
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule by its name: one of `KINDS`, or "seed" with a seed, or "hold" with what is held."""

    kind: str
    seed: int | None = None
    holds: tuple[Held, ...] = ()

    @property
    def name(self) -> str:
        """The name, as `schedule_of` takes it."""
        if self.kind == "hold":
            return f"hold:{text_of(self.holds)}"
        return self.kind if self.seed is None else f"seed:{self.seed}"

    def dispatcher(self, context: Context) -> Dispatcher:
        """Return what hands the jobs of a context over."""
        if self.kind == "hold":
            return Hold(context, self.holds)
        return KINDS.get(self.kind, KINDS["timed"])(context)

    def apply(self, node: Node) -> None:
        """Tell the device how long tasks take."""
        request = Request(C.NPU_IOCTL_EMU_SET_SCHEDULE, "npu_emu_schedule", "EMU_SET_SCHEDULE")
        if self.seed is not None:
            request.arg.kind, request.arg.seed = C.NPU_SCHEDULE_SEED, self.seed
        node.ioctl(request)


TIMED = Schedule("timed")


def schedule_of(name: str | None, seed: int | None = None) -> Schedule:
    """Return the schedule `name` (None: seed:`seed`, or timed without one). Raises INVALID_VALUE."""
    if name is None:
        name = "timed" if seed is None else f"seed:{index(seed)}"
    elif seed is not None:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"schedule {shown(name)} with a seed beside it")
    if isinstance(name, str) and name in KINDS:
        return TIMED if name == TIMED.kind else Schedule(name)
    kind, _, number = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind == "seed" and number.isascii() and number.isdecimal() and int(number) <= MAX_SEED:
        return Schedule("seed", int(number))
    if kind == "hold":
        try:
            return Schedule("hold", holds=parse(number))
        except ValueError as error:
            raise NpuError(
                C.NPU_ERROR_INVALID_VALUE,
                f"schedule {shown(name)}: {str(error)!r} is no list of operations such as '1.3@2.1,1.5'",
            ) from None
    known = ", ".join(map(repr, KINDS))
    raise NpuError(
        C.NPU_ERROR_INVALID_VALUE,
        f"schedule {shown(name)}; there are {known}, 'seed:0' to 'seed:{MAX_SEED}', 'hold:1.3@2.1'",
    )
