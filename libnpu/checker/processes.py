"""Races between processes that share memory: what the logs of several (`shared_log.py`) say together.

An access of one process comes before one of another when a record behind the first was waited for in front of the second, over
whatever processes, or when a host had been told of its end before the second one was enqueued: it may have told the other. All hosts
are one here, as the threads of a process are.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from libnpu.checker import rules
from libnpu.checker.allocations import Allocation
from libnpu.checker.findings import Findings
from libnpu.checker.report import records
from libnpu.checker.shadow import Access, Shadow
from libnpu.checker.shared_log import MOST
from libnpu.checker.steps import HOST, Act

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libnpu.checker.findings import Finding

NEVER = float("inf")
ACTORS = 1 << 20  # of a process
NO_WITNESS = "the two are of different processes, which are not run again"
NAME = "OTHER-PROCESS"  # of what cannot be compared
Log = dict[str, Any]
Clock = dict[tuple[int, int], int]  # of all processes: process and actor -> epoch


class Known(NamedTuple):
    """An access of a process: what it comes behind, and when it was enqueued, on the machine's clock."""

    process: int
    access: Log
    clock: Clock
    since_ns: int


class Orders:
    """What comes behind what, over all processes."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self._records: dict[
            tuple[str, int], Clock
        ] = {}  # by handle of the event and number: what a wait for it comes behind
        self._waits: dict[
            tuple[int, int], tuple[list[int], list[Clock]]
        ] = {}  # by actor: epochs, and what is behind then
        steps = sorted(
            (
                (each["at_ns"], process, each)
                for process, log in enumerate(logs)
                for each in (*log["records"], *log["waits"])
            ),
            key=lambda step: step[:2],
        )
        waits = sorted((w["epoch"], process, w["actor"]) for process, log in enumerate(logs) for w in log["waits"])
        for epoch, *actor in waits:
            epochs, clocks = self._waits.setdefault((actor[0], actor[1]), ([], []))
            epochs.append(epoch)
            clocks.append({})
        while self._take(steps):  # a second time, unless something is enqueued before what it comes behind
            pass
        told: list[tuple[int, Clock]] = []
        for process, wait in ((p, wait) for p, log in enumerate(logs) for wait in log["waits"] if wait["told_ns"]):
            clock = self.of(process, wait)
            del clock[process, wait["actor"]]  # the host may go on in the same epoch
            told.append((wait["told_ns"], clock))
        told.sort(key=lambda each: each[0])
        self._told_ns = [ns for ns, _ in told]
        self._told = [*accumulate((clock for _, clock in told), _joined)]

    def of(self, process: int, noted: Log) -> Clock:
        """Return what a thing that a process has noted comes behind, itself included."""
        clock = {(process, int(actor)): epoch for actor, epoch in noted["clock"].items()}
        own = process, noted["actor"]
        clock[own] = max(clock.get(own, -1), noted["epoch"])
        for actor, epoch in [*clock.items()]:
            epochs, clocks = self._waits.get(actor, ((), ()))
            at = bisect_right(epochs, epoch) - 1
            if at >= 0:
                clock = _joined(clock, clocks[at])
        return clock

    def hosts(self, at_ns: int) -> Clock:
        """Return what hosts had learned by then of other processes."""
        at = bisect_right(self._told_ns, at_ns) - 1
        return self._told[at] if at >= 0 else {}

    def _take(self, steps: Sequence[tuple[int, int, Log]]) -> bool:
        """Go through records and waits, and return whether anything was new."""
        is_new = False
        for _, process, noted in steps:
            event = noted["of"], noted["number"]
            if "told_ns" not in noted:
                clock = self.of(process, noted)
                is_new |= self._records.get(event) != clock
                self._records[event] = clock
                continue
            epochs, clocks = self._waits[process, noted["actor"]]
            first = bisect_right(epochs, noted["epoch"]) - 1
            for at in range(first, len(clocks)):
                joined = _joined(clocks[at], self._records.get(event, {}))
                if joined == clocks[at]:
                    break
                clocks[at], is_new = joined, True
        return is_new


def _joined(one: Clock, two: Clock) -> Clock:
    return one | {actor: epoch for actor, epoch in two.items() if one.get(actor, -1) < epoch}


def compare(logs: Sequence[Log]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the findings, as `report.records` has them, and what cannot be known."""
    logs = sorted(logs, key=lambda log: int(log["begun_ns"]))
    found = Findings()
    for finding in _races(logs):
        finding.no_witness = NO_WITNESS
        found.add(finding)
    return records(found), [*dict.fromkeys(_unknown(logs))]


def _races(logs: Sequence[Log]) -> Iterator[Finding]:
    orders, by_handle = Orders(logs), dict[str, list[Known]]()
    until_ns = min((log["full_ns"] or NEVER for log in logs), default=NEVER)
    for process, log in enumerate(logs):
        for access in log["accesses"]:
            since_ns = access["act"]["real_ns"]
            if since_ns < until_ns and not access["act"]["is_free"]:  # which is of this process's own mapping
                clock = _joined(orders.of(process, access), orders.hosts(since_ns))
                by_handle.setdefault(access["of"], []).append(Known(process, access, clock, since_ns))
    acts: dict[tuple[int, int, int], Act] = {}
    shared = sorted((each for log in logs for each in log["memory"]), key=lambda each: each["is_opened"])
    for each in {each["of"]: each for each in reversed(shared)}.values():
        accesses = by_handle.get(each["of"], [])
        for late, two in enumerate(accesses):
            for one in accesses[:late]:
                start, end = max(one.access["start"], two.access["start"]), min(one.access["end"], two.access["end"])
                apart = one.process == two.process or start >= end or not (one.access["write"] or two.access["write"])
                if apart or _is_before(one, two) or _is_before(two, one):
                    continue
                allocation = Allocation(0, Act(**each["made"]), Shadow(each["bytes"]), 0)
                finding = rules.conflict(allocation, start, end, _access(one, acts), _access(two, acts))
                if finding is not None:
                    yield finding


def _is_before(one: Known, two: Known) -> bool:
    told_ns = one.access["told_ns"]
    if told_ns is not None and told_ns <= two.since_ns:
        return True
    return two.clock.get((one.process, one.access["actor"]), -1) >= int(one.access["epoch"])


def _access(known: Known, acts: dict[tuple[int, int, int], Act]) -> Access:
    """Return an access with its process in what is said of it, by one act for all accesses of an act. All hosts are one."""
    process, access = known.process, known.access
    actor, act = HOST if access["actor"] == HOST else process * ACTORS + access["actor"], access["act"]
    key = process, act["order"], known.since_ns
    if key not in acts:
        name = f"of process {process + 1}"
        where = {"stream": f"{act['stream']} {name}"} if act["stream"] else {"what": f"{act['what']} {name}"}
        more = {"order": known.since_ns, "context": process * ACTORS + act["context"], "job": ""}
        acts[key] = Act(**(act | where | more))
    return Access(actor, access["epoch"], access["write"], acts[key])


def _unknown(logs: Sequence[Log]) -> Iterator[str]:
    """Say what memory somebody has, or may have, who was not watched."""
    sides: dict[str, set[bool]] = {}
    for process, log in enumerate(logs):
        for memory in log["memory"]:
            sides.setdefault(memory["of"], set()).add(memory["is_opened"])
        if log["full_ns"]:
            what = f"what is done to shared memory behind the first {MOST} accesses, waits or records"
            yield f"not checked ({NAME}): {what} of process {process + 1}"
    for memory in (memory for log in logs for memory in log["memory"] if len(sides[memory["of"]]) == 1):
        whose = "of a process" if memory["is_opened"] else "that was shared with a process"
        where = f"{memory['bytes']} bytes, at {memory['made']['site'] or 'an unknown place'}"
        yield f"not checked ({NAME}): what is done elsewhere to memory {whose} that is not watched: {where}"
