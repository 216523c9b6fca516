"""What jobs wait for: other jobs, and signals that nobody gives yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.runtime.operation import NotifyWait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.runtime.fences import Signal
    from libnpu.runtime.job import Job


def waits_for_a_record(job: Job) -> bool:
    """Whether `job`, or what must end before it, waits for a notify that has no record yet."""
    seen: set[Job] = set()
    open_jobs = [job]
    while open_jobs:
        last = open_jobs.pop()
        if last.done or last in seen:
            continue
        for before in last.stream.jobs:
            seen.add(before)
            for signal in before.signals:
                if signal.job is not None:
                    open_jobs.append(signal.job)
                elif isinstance(before.operation, NotifyWait):
                    return True
            if before is last:
                break
    return False


def links(job: Job) -> Iterator[tuple[Signal, Job | None]]:
    """Yield a signal that `job` waits for and the job at the head of the stream that is to give it, None when it is not known; then what
    that one waits for, and so on, to one that was there before.
    """
    seen = {job}
    while job.signals:
        signal = next((signal for signal in job.signals if not signal.over), job.signals[0])
        head = signal.job.stream.jobs[0] if signal.job is not None and signal.job.stream.jobs else None
        yield signal, head
        if head is None or head in seen:
            return
        seen.add(head)
        job = head


def waits_for(job: Job) -> str:
    """Say what `job` waits for, and what that waits for in turn, as far as the streams tell."""
    chain, seen = [], {job}
    for signal, head in links(job):
        if head is None or head in seen:
            chain += [signal.what, "it"][: 1 + (head is not None)]
        else:
            chain.append(f"{signal.what} in stream {head.stream.id}, where {head.operation.name!r} is at the head")
            seen.add(head)
    return f"it waits for {', which waits for '.join(chain)}" if chain else "nothing will signal it"
