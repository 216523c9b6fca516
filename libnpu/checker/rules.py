"""The rules, by stable ids, and what each says: what was found, the missing edge, and the smallest fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.checker.findings import Finding
from libnpu.checker.steps import HOST

if TYPE_CHECKING:
    from libnpu.checker.allocations import Allocation
    from libnpu.checker.shadow import Access
    from libnpu.checker.steps import Act

RULES = {
    "HD-RAW": "the host reads what a job may not have written yet, or a job what the host writes",
    "HD-WAR": "the host overwrites what a job may not have read yet",
    "HD-WAW": "the host and a job write the same bytes in no order",
    "XS-RAW": "a job reads what a job of another stream may not have written yet",
    "XS-WAR": "a job overwrites what a job of another stream may not have read yet",
    "XS-WAW": "jobs of two streams write the same bytes in no order",
    "FREE-IN-USE": "memory is given back while work that uses it may be in flight",
    "CAPTURED-BUFFER-CHANGED": "the host changes memory that a node of a graph reads again, while a launch of it may not have read it yet",
    "OOB": "an access leaves its allocation",
    "WAIT-UNRECORDED": "a wait for an event that was never recorded, which waits for nothing",
    "EVENT-OVERWRITTEN": "an event is recorded again while its last record, for which a race shows the need, is not waited for",
    "LOST-ASYNC-ERROR": "a job failed, and no call of the program was told",
    "UNINIT": "bytes are read that nobody has written",
}


def conflict(allocation: Allocation, start: int, end: int, old: Access, new: Access) -> Finding | None:
    """Return what two accesses in no order mean; None for two of the host, which the program orders itself."""
    if old.actor == new.actor:
        return None
    first, second = sorted((old, new), key=lambda access: access.act.order)
    if first.act.is_free or second.act.is_free:
        return _freed(allocation, first, second)
    kind = "WAW" if first.write and second.write else "RAW" if first.write else "WAR"
    rule = ("HD-" if HOST in (first.actor, second.actor) else "XS-") + kind
    verbs = {"RAW": ("writes", "reads"), "WAR": ("reads", "writes"), "WAW": ("writes", "writes")}[kind]
    message = f"{first.act.who} {verbs[0]} bytes that {second.act.who} {verbs[1]}, and nothing orders the two"
    fix = _edge(first, second)
    if rule == "HD-WAR" and first.act.captured and allocation.is_host:
        rule, fix = "CAPTURED-BUFFER-CHANGED", f"{fix}; or let each launch have memory of its own (update)"
    return _finding(rule, message, fix, allocation, start, end, (first.act, second.act))


def _freed(allocation: Allocation, first: Access, second: Access) -> Finding:
    free, use = (first, second) if first.act.is_free else (second, first)
    message = f"{free.act.who} does not wait for {use.act.who}, which uses the memory"
    fix = _edge(use, free) if use is first else f"free the memory behind {use.act.who}"
    return _finding("FREE-IN-USE", message, fix, allocation, 0, allocation.size, (first.act, second.act))


def _edge(first: Access, second: Access) -> str:
    """Say what would order two accesses."""
    if second.actor == HOST:
        what = "the free" if second.act.is_free else f"the {second.act.what}"
        return f"wait for {first.act.who} before {what}: synchronise {first.act.stream}, or an event recorded behind it"
    return (
        f"record an event in {first.act.stream} behind {first.act.what!r}, "
        f"and let {second.act.stream} wait for it before {second.act.what!r}"
    )


def overwritten(allocation: Allocation, start: int, end: int, copy: Act, store: Act) -> Finding:
    """Return that the program changed the source of a copy before it had ended."""
    message = f"the host stores to bytes that {copy.who} reads, before it was told that the copy has ended"
    fix = f"wait for {copy.who} before the memory is used again: synchronise {copy.stream}, or an event recorded behind it"
    rule = "CAPTURED-BUFFER-CHANGED" if copy.captured else "HD-WAR"
    found = _finding(rule, message, fix, allocation, start, end, (copy, store))
    found.evidence = "the source's bytes when the copy was enqueued, and when the program was told of its end, differ"
    return found


def wait_unrecorded(wait: Act, edge: str) -> Finding:
    """Return that a wait waits for nothing."""
    message = f"{edge} waits for an event that was never recorded: it waits for nothing"
    return _of_acts("WAIT-UNRECORDED", message, "record the event before, in the stream whose work is meant", wait)


def event_overwritten(first: Act, second: Act, work: Act) -> Finding:
    """Return that the second record of an event took the place of the first one, behind work that somebody had to wait for."""
    message = f"the event that was recorded behind {work.who} is recorded again in {second.stream or 'a stream'}: only the last record counts"
    return _of_acts("EVENT-OVERWRITTEN", message, "use an event for each record that is waited for", first, second)


def lost_error(job: Act, error: str) -> Finding:
    """Return that nobody was told of a failure."""
    fix = f"synchronise {job.stream}, or query it, and look at the result"
    return _of_acts("LOST-ASYNC-ERROR", f"{job.who} failed and no call of the program was told: {error}", fix, job)


def _of_acts(rule: str, message: str, fix: str, *acts: Act) -> Finding:
    return Finding(rule, True, message, fix, acts, evidence="the calls of the program")


def out_of_bounds(allocation: Allocation, start: int, end: int, act: Act) -> Finding:
    """Return that an access goes on behind the end of its allocation."""
    message = f"{act.who} touches bytes {start} to {end} of an allocation of {allocation.size} bytes"
    fix = f"make the allocation {end - allocation.size} bytes larger, or the access smaller"
    return _finding("OOB", message, fix, allocation, start, end, (act,))


def unwritten(allocation: Allocation, start: int, end: int, act: Act) -> Finding:
    """Return that an access reads what nobody wrote."""
    message = (
        f"{act.who} reads bytes {start} to {end} of an allocation of {allocation.size} bytes, which nobody has written"
    )
    return _finding("UNINIT", message, "write them before", allocation, start, end, (act,))


def _finding(
    rule: str, message: str, fix: str, allocation: Allocation, start: int, end: int, acts: tuple[Act, ...]
) -> Finding:
    return Finding(rule, True, message, fix, acts, start, end, allocation.size, allocation.made, allocation.freed)
