"""The rules, by stable ids, and what each says: what was found, the missing edge, and the smallest fix."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from libnpu.checker.findings import Finding
from libnpu.checker.shadow import Access
from libnpu.checker.steps import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.blob.problem import Problem
    from libnpu.checker.allocations import Allocation
    from libnpu.checker.steps import Act
    from libnpu.errors import Asked

RULES = {
    "HD-RAW": "the host reads what a job may not have written yet, or a job what the host writes",
    "HD-WAR": "the host overwrites what a job may not have read yet",
    "HD-WAW": "the host and a job write the same bytes in no order",
    "XS-RAW": "a job reads what a job of another stream may not have written yet",
    "XS-WAR": "a job overwrites what a job of another stream may not have read yet",
    "XS-WAW": "jobs of two streams write the same bytes in no order",
    "FREE-IN-USE": "memory is given back while work that uses it may be in flight",
    "CAPTURED-BUFFER-CHANGED": "the host changes memory that a node of a graph reads again, while a launch of it may not have read it yet",
    "MISSING-FLUSH": "a job reads memory that the device does not snoop, where what the host stored is in its cache",
    "MISSING-INVALIDATE": "the host reads from its cache what was there before a job wrote the memory",
    "INVALIDATE-TOO-EARLY": "the host invalidates only before it was told that the job has written",
    "DIRTY-OVER-DMA": "a line is dirty in the host's cache while a job writes its memory: it may overwrite that later",
    "LINE-SHARED": "host and job write different bytes of one line of a cache",
    "DIR-MISMATCH": "a mapping is flushed or invalidated against the direction that it was made with",
    "UNMAP-IN-FLIGHT": "a mapping ends while work that uses its memory may be in flight",
    "UAF": "a call uses what was given back; it is refused, and the program goes on",
    "DOUBLE-FREE": "a call gives back what was given back before; it is refused, and the program goes on",
    "CTX-MISMATCH": "a call mixes what belongs to two contexts; it is refused, and the program goes on",
    "CALLBACK-API": "a host function calls the library; that is refused, and the program goes on",
    "DEADLOCK": "a wait for work that waits for something that nothing will signal",
    "OOB": "an access leaves its allocation, or a call is refused that asks for more than there is, and the program goes on",
    "WAIT-UNRECORDED": "a wait for an event that was never recorded, or not since its reset, which waits for nothing",
    "EVENT-EARLY-RESET": "a wait for an event, or a query, whose record a reset has taken back while its work may be in flight",
    "EVENT-OVERWRITTEN": "an event is recorded again while its last record, for which a race shows the need, is not waited for",
    "LOST-ASYNC-ERROR": "a job failed, and no call of the program was told",
    "UNINIT": "bytes are read that nobody has written",
    "MISSING-BARRIER": "inside a blob: tasks use the same bytes, one of them writes, and nothing orders them",
    "BARRIER-COUNT": "inside a blob: a barrier counts other tasks than those that name it",
    "UNREACHABLE-TASK": "inside a blob: a task waits for what cannot come",
    "CMX-OVERLAP": "inside a blob: bytes of CMX hold two things at a time",
    "READ-BEFORE-WRITE": "inside a blob: a task reads, or the model returns, what no task has written",
    "OUT-OF-TILE": "inside a blob: a task leaves the memory that it may use",
    "LEAK": "memory, a stream or an event is never given back (--leaks)",
    "REDUNDANT-SYNC": "a wait that never tells anything new (--lint)",
    "SYNC-EACH-LAUNCH": "the host waits behind each launch and does nothing with its results (--lint)",
    "PAGEABLE-COPY": "memory that is not pinned is copied again and again: the host carries it (--lint)",
    "RESPONSIBILITY": "the host waits for a transfer that is the device's matter: a kernel's own, or a copy to the device (--lint)",
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


def not_made_yet(allocation: Allocation, start: int, end: int, use: Access) -> Finding:
    """Return that memory is used, or freed, in no order with its allocation in a stream."""
    made = allocation.made
    if use.act.is_free:
        rule, does = "FREE-IN-USE", "gives back"
    else:
        kind, does = ("WAW", "writes") if use.write else ("RAW", "reads")
        rule = ("HD-" if use.actor == HOST else "XS-") + kind
    message = f"{use.act.who} {does} memory that {made.who} makes, and nothing orders the two"
    edge = _edge(Access(-1, 0, True, made), use)
    fix = f"{edge}; or allocate it in {use.act.stream}" if use.act.stream else edge
    found = _finding(rule, message, fix, allocation, start, end, (made, use.act))
    found.no_witness = "the library makes memory at once, whatever the schedule"
    return found


def _edge(first: Access, second: Access) -> str:
    """Say what would order two accesses."""
    behind, before = _name(first.act), _name(second.act)
    event = "an event" if first.act.context == second.act.context else "an interprocess event"
    if second.actor == HOST:
        what = "the free" if second.act.is_free else f"the {second.act.what}"
        who = f"{behind} in {first.act.stream}" if first.act.is_function else first.act.who
        return f"wait for {who} before {what}: synchronise {first.act.stream}, or {event} recorded behind it"
    return (
        f"record {event} in {first.act.stream} behind {behind}, and let {second.act.stream} wait for it before {before}"
    )


def _name(act: Act) -> str:
    """Say what a program enqueued, of a function the function."""
    return "the host function" if act.is_function else repr(act.what)


def overwritten(allocation: Allocation, start: int, end: int, copy: Act, store: Act) -> Finding:
    """Return that the program changed the source of a copy before it had ended."""
    message = f"the host stores to bytes that {copy.who} reads, before it was told that the copy has ended"
    fix = f"wait for {copy.who} before the memory is used again: synchronise {copy.stream}, or an event recorded behind it"
    rule = "CAPTURED-BUFFER-CHANGED" if copy.captured else "HD-WAR"
    found = _finding(rule, message, fix, allocation, start, end, (copy, store))
    found.evidence = "the source's bytes when the copy was enqueued, and when the program was told of its end, differ"
    return found


def not_flushed(allocation: Allocation, start: int, end: int, store: Act, reader: Act) -> Finding:
    """Return that a reader of memory does not see what the host has stored."""
    message = f"{reader.who} reads bytes that the host stored and did not flush: they may be in its cache alone"
    fix = f"flush them behind the {store.what}, before {reader.what!r} is enqueued"
    return _finding("MISSING-FLUSH", message, fix, allocation, start, end, (store, reader))


def unflushed(allocation: Allocation, start: int, end: int, copy: Act) -> Finding:
    """Return that what a copy is about to read is in the host's cache alone."""
    message = f"{copy.who} reads bytes that the host stored and did not flush"
    found = _finding("MISSING-FLUSH", message, f"flush them before {copy.what!r}", allocation, start, end, (copy,))
    found.evidence = "the host's cache and memory differ there when the copy is enqueued"
    return found


def not_invalidated(
    allocation: Allocation, start: int, end: int, written: Act, dropped: Act | None, look: Act
) -> Finding:
    """Return that the host does not see what a job has written."""
    if dropped is None:
        message = f"{look.who} reads what its cache had before {written.who} wrote the memory"
        fix = f"invalidate the bytes behind the wait for {written.who}, before the {look.what}"
        return _finding("MISSING-INVALIDATE", message, fix, allocation, start, end, (written, look))
    message = f"{look.who} reads what its cache had before {written.who} wrote the memory: the invalidate came before the wait for that"
    fix = f"invalidate the bytes behind the wait for {written.who}; a line may come back into the cache before the device has written it"
    acts = sorted((dropped, written, look), key=lambda act: act.order)
    return _finding("INVALIDATE-TOO-EARLY", message, fix, allocation, start, end, tuple(acts))


def dirty_over_dma(allocation: Allocation, start: int, end: int, store: Act, job: Act) -> Finding:
    """Return that a store may go to memory behind what a job has written there."""
    message = (
        f"{job.who} writes bytes that are dirty in the host's cache: when their line is evicted, they overwrite it"
    )
    fix = f"flush or invalidate them behind the {store.what}, before {job.what!r} is enqueued"
    return _finding("DIRTY-OVER-DMA", message, fix, allocation, start, end, (store, job))


def line_shared(allocation: Allocation, start: int, end: int, store: Act, job: Act) -> Finding:
    """Return that a line of the cache takes bytes along that are not the host's."""
    message = f"the host stores to a line of its cache of which {job.who} writes other bytes: whoever moves the line last overwrites the other's"
    fix = "keep what the host and the device write in lines (64 bytes) of their own"
    acts = sorted((store, job), key=lambda act: act.order)
    return _finding("LINE-SHARED", message, fix, allocation, start, end, tuple(acts))


def direction_mismatch(allocation: Allocation, start: int, end: int, call: Act, made: str) -> Finding:
    """Return that cache maintenance goes the wrong way; `made` is the direction of the mapping."""
    message = f"{call.who} maintains a mapping that was made {made}"
    fix = "flush what the host writes (TO_DEVICE), invalidate what it reads (FROM_DEVICE), or map it BIDIRECTIONAL"
    return _finding("DIR-MISMATCH", message, fix, allocation, start, end, (call,))


def unmapped(allocation: Allocation, start: int, end: int, access: Access, unmap: Access) -> Finding:
    """Return that a mapping ends too early."""
    message = f"{unmap.act.who} does not wait for {access.act.who}, which uses the memory"
    return _finding("UNMAP-IN-FLIGHT", message, _edge(access, unmap), allocation, start, end, (access.act, unmap.act))


def wait_unrecorded(wait: Act, who: str, reset: Act | None, *, by_others: bool = False) -> Finding:
    """Return that a wait waits for nothing. `reset`: what took the last record back, when there was one; `by_others`: another process, if
    nobody here.
    """
    acts = (wait,) if reset is None else (reset, wait)
    which = "never recorded" if reset is None and not by_others else "not recorded since its reset"
    if reset is None and by_others:
        which += " by another process"
    message = f"{who} waits for an event that was {which}: it waits for nothing"
    return _of_acts("WAIT-UNRECORDED", message, "record the event before, in the stream whose work is meant", *acts)


def early_reset(record: Act, reset: Act, wait: Act, who: str, *, asks: bool) -> Finding:
    """Return that a wait, or a query (`asks`), comes behind the reset of what it is for."""
    does, comes = ("asks about", "the answer is yes at once") if asks else ("waits for", "it waits for nothing")
    message = f"{who} {does} an event whose record in {record.stream} a reset has taken back: {comes}"
    fix = f"reset the event behind the {wait.what}, or do not reset it: the next record takes the place of this one"
    return _of_acts("EVENT-EARLY-RESET", message, fix, record, reset, wait)


def event_overwritten(first: Act, second: Act, work: Act) -> Finding:
    """Return that the second record of an event took the place of the first one, behind work that somebody had to wait for."""
    message = f"the event that was recorded behind {work.who} is recorded again in {second.stream or 'a stream'}: only the last record counts"
    return _of_acts("EVENT-OVERWRITTEN", message, "use an event for each record that is waited for", first, second)


def lost_error(job: Act, error: str) -> Finding:
    """Return that nobody was told of a failure."""
    fix = f"synchronise {job.stream}, or query it, and look at the result"
    return _of_acts("LOST-ASYNC-ERROR", f"{job.who} failed and no call of the program was told: {error}", fix, job)


def refused(rule: str, call: Act, freed: Act | None, error: str) -> Finding:
    """Return that a call was refused, and the program went on. `freed`: what had given back what the call uses."""
    fixes = {
        "UAF": "give it back behind its last use",
        "DOUBLE-FREE": "give it back once",
        "CTX-MISMATCH": "use what belongs to the same context; memory is copied by copy_peer (npu_memcpy_peer), and memory and interprocess events are opened in another context by their handles",
        "CALLBACK-API": "let the function set a flag, and a thread of the program make the call",
    }
    found = _of_acts(rule, f"{call.what} was refused, and the program goes on: {error}", fixes[rule], call)
    found.acts, found.certain = (freed, call) if freed is not None else (call,), False
    return found


def refused_range(call: Act, asked: Asked, allocation: Allocation | None, error: str) -> Finding:
    """Return that a call was refused for bytes that its memory does not have, and the program went on. `allocation`: where the memory is,
    None for the program's own.
    """
    start, end, size = asked.start, max(asked.start, asked.end), asked.size
    outside, memory = f"{asked.outside} byte{'s'[: asked.outside != 1]}", "memory of the program"
    fix = f"ask for {outside} less, or make it {outside} larger" if 0 <= start < size else "begin inside of it"
    if allocation is not None and asked.offset + size == allocation.size:  # the rest of it: as bytes of the whole
        start, end, size, memory = start + asked.offset, end + asked.offset, allocation.size, "an allocation"
    elif allocation is not None:
        memory = f"a part, at {asked.offset} of an allocation of {allocation.size} bytes,"
    range_ = f"bytes {start} to {end} of {memory} of {size} bytes, {outside} outside of it"
    message = f"{call.what} asks for {range_}; it was refused, and the program goes on: {error}"
    found = _of_acts("OOB", message, fix, call)
    if allocation is not None:
        low = asked.offset + asked.start
        found = _finding("OOB", message, fix, allocation, low, low + end - start, (call,))
        found.evidence = "the calls of the program"
    found.certain = False
    return found


def deadlock(jobs: list[Act], wait: Act, error: str) -> Finding:
    """Return that a wait of the host cannot end: `jobs` wait, each for the next, and the last for what nothing will give, or for one
    before.
    """
    fix = "record what is waited for before, in a stream that does not wait for it itself"
    return _of_acts("DEADLOCK", f"{wait.what} waits for ever: {error}", fix, *jobs, wait)


def in_blob(rule: str, load: Act, name: str, problem: Problem) -> Finding:
    """Return that something is wrong inside of a blob."""
    if rule == "MISSING-BARRIER" and problem.other:
        fix = f"let {problem.other} post a barrier that {problem.where} waits for, and compile the model again"
    else:
        fix = "compile the model again; `npu objdump --verify` shows all that is wrong with the blob"
    tasks = " and ".join(filter(None, (problem.other, problem.where)))
    act = replace(load, what=f"load of {name!r} with {tasks}")
    found = _of_acts(rule, f"in the blob of {name!r}, {problem.where}: {problem.message}", fix, act)
    found.evidence = "a proof over all orders in which the blob's tasks may run"
    return found


def leak(what: str, made: Act) -> Finding:
    """Return that something was never given back."""
    return _of_acts("LEAK", f"{what} was never given back", "free or destroy it, or end its context", made)


def redundant_wait(wait: Act, count: int) -> Finding:
    """Return that the waits of a site were of no use."""
    message = "every wait here is for work whose end the program knows already"
    return _advice("REDUNDANT-SYNC", message, "leave it out", count, wait)


def serial_launches(launch: Act, wait: Act, count: int) -> Finding:
    """Return that the host waits behind each launch."""
    message = f"the host waits for each {launch.what!r} and enqueues the next work without a look at the result: the device idles meanwhile"
    return _advice("SYNC-EACH-LAUNCH", message, "wait once, behind the last launch", count, launch, wait)


def waits_for_uploads(copy: Act, wait: Act, count: int) -> Finding:
    """Return that the host waits for copies to the device and has no use for that."""
    message = f"the host waits for each {copy.what!r} and enqueues the next work without a use of the memory: the transfer is the stream's task"
    fix = "enqueue what needs the bytes behind the copy, in its stream or behind an event, and wait only before the source is used again"
    return _advice("RESPONSIBILITY", message, fix, count, copy, wait)


def pageable_copies(copy: Act, count: int) -> Finding:
    """Return that the host carries the same kind of copy again and again."""
    message = f"{copy.what} of memory that is not pinned: the host carries the bytes, and the call waits"
    return _advice(
        "PAGEABLE-COPY", message, "pin the memory (alloc_host, register), and copy asynchronously", count, copy
    )


def responsibility(allocation: Allocation, start: int, end: int, launch: Act, wait: Act) -> Finding:
    """Return that a kernel reads or writes the host's memory while the host waits."""
    message = f"{launch.who} moves bytes of the host's memory itself, while the host waits for it: whose task is the transfer?"
    fix = "let a copy in the stream move them, and the kernel work on device memory"
    found = _finding("RESPONSIBILITY", message, fix, allocation, start, end, (launch, wait))
    found.certain = False
    return found


def _advice(rule: str, message: str, fix: str, count: int, *acts: Act) -> Finding:
    found = _of_acts(rule, message, fix, *acts)
    found.certain, found.count = False, count
    return found


def _of_acts(rule: str, message: str, fix: str, *acts: Act) -> Finding:
    return Finding(rule, True, message, fix, acts, evidence="the calls of the program")


def out_of_bounds(allocation: Allocation, start: int, end: int, act: Act) -> Finding:
    """Return that an access goes on behind the end of its allocation."""
    size = allocation.size

    def say(start: int, end: int) -> tuple[str, str]:
        message = f"{act.who} touches bytes {start} to {end} of an allocation of {size} bytes"
        return message, f"make the allocation {end - size} bytes larger, or the access smaller"

    return _of_range("OOB", say, allocation, start, end, act)


def unwritten(allocation: Allocation, start: int, end: int, act: Act) -> Finding:
    """Return that an access reads what nobody wrote."""
    size = allocation.size

    def say(start: int, end: int) -> tuple[str, str]:
        message = f"{act.who} reads bytes {start} to {end} of an allocation of {size} bytes, which nobody has written"
        return message, "write them before"

    found = _of_range("UNINIT", say, allocation, start, end, act)
    if allocation.is_shown:  # stores that are not seen leave other bytes, but for those that store poison
        found.certain = False
        found.evidence = "all bytes of it that nobody was seen to write are those of fresh memory"
    return found


def _of_range(
    rule: str, say: Callable[[int, int], tuple[str, str]], allocation: Allocation, start: int, end: int, act: Act
) -> Finding:
    found = _finding(rule, *say(start, end), allocation, start, end, (act,))
    found.say = say
    return found


def _finding(
    rule: str, message: str, fix: str, allocation: Allocation, start: int, end: int, acts: tuple[Act, ...]
) -> Finding:
    made, freed = allocation.made, allocation.freed
    found = Finding(rule, True, message, fix, acts, start, end, allocation.size, made, freed, allocation.number)
    found.evidence = next((act.evidence for act in acts if act.evidence), found.evidence)
    return found
