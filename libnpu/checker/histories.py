"""What is known of a context that is watched, and of the jobs of its streams."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from libnpu.checker.allocations import Allocations

if TYPE_CHECKING:
    from libnpu.checker.sources import Source
    from libnpu.checker.steps import Step
    from libnpu.runtime.context import Context
    from libnpu.runtime.stream import Stream

Run = tuple[int, int, bool]  # first address, bytes, whether it writes


class StreamHistory:
    """The jobs of a stream."""

    def __init__(self, actor: int, name: str, stream: Stream) -> None:
        self.actor = actor
        self.name = name
        self.stream = stream
        self.steps: dict[int, Step] = {}  # by number, those that the host may not know to have ended
        self.last: Step | None = None
        self.behind: list[Step] = []  # what the next job comes behind besides
        self.point: Step | None = None  # the last one of those that are no jobs: allocations, waits that were over

    def forget(self, number: int) -> None:
        """Forget the jobs up to `number`, which whatever is enqueued from now on comes behind; not those whose errors are untold."""
        untold = {job.number for job in self.stream.untold}
        for old in [*takewhile(lambda old: old <= number, self.steps)]:
            if old not in untold:
                del self.steps[old]


class ContextWatch:
    """What is known of a context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.allocations = Allocations()
        self.streams: dict[Stream, StreamHistory] = {}
        self.jobs: dict[int, list[tuple[int, int, int]]] = {}  # job id -> (since when, actor, number), oldest first
        self.runs: dict[
            tuple[int, int], list[Run]
        ] = {}  # (actor, number) -> what it touched, as far as the device said
        self.pending: dict[Step, None] = {}  # jobs that were not looked at yet
        self.sources: dict[tuple[int, int], list[Source]] = {}  # (actor, number) -> pinned memory that its copies read
