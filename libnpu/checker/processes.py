"""Races between processes that share memory: what the logs of several (`shared_log.py`) say together.

An access of one process comes before one of another when a record behind the first was waited for in front of the second, over
whatever processes, or when a host had been told of its end before the second one was enqueued: it may have told the other. All hosts
are one here, as the threads of a process are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from libnpu.checker import rules
from libnpu.checker.allocations import Allocation
from libnpu.checker.findings import Findings
from libnpu.checker.report import records
from libnpu.checker.shadow import Access, Shadow
from libnpu.checker.steps import HOST, Act

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libnpu.checker.findings import Finding

NEVER = float("inf")
ACTORS = 1 << 20  # of a process
NO_WITNESS = "the two are of different processes, which are not run again"
NAME = "OTHER-PROCESS"  # of what cannot be compared
Log = dict[str, Any]


class Place(NamedTuple):
    """A place in the order of a process: behind an epoch of an actor."""

    process: int
    actor: int
    epoch: int

    def is_before(self, process: int, noted: Log) -> bool:
        """Whether what a process has noted, with its clock, is there or behind it."""
        if process != self.process:
            return False
        same = noted["actor"] == self.actor and noted["epoch"] >= self.epoch
        return bool(same or noted["clock"].get(str(self.actor), -1) >= self.epoch)


def compare(logs: Sequence[Log]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the findings, as `report.records` has them, and what cannot be known."""
    logs = sorted(logs, key=lambda log: int(log["begun_ns"]))
    found = Findings()
    for finding in _races(logs):
        finding.no_witness = NO_WITNESS
        found.add(finding)
    return records(found), [*dict.fromkeys(_unknown(logs))]


def _races(logs: Sequence[Log]) -> Iterator[Finding]:
    by_handle: dict[str, list[tuple[int, Log, Sequence[Place], float]]] = {}
    for process, log in enumerate(logs):
        for access in log["accesses"]:
            if access["act"]["is_free"]:
                continue  # of this process's own mapping
            behind, told_ns = _behind(logs, process, access)
            by_handle.setdefault(access["of"], []).append((process, access, behind, told_ns))
    acts: dict[tuple[int, int, int], Act] = {}
    memory = {
        each["of"]: each
        for log in reversed(logs)
        for each in sorted(log["memory"], key=lambda each: not each["is_opened"])
    }
    for handle, accesses in by_handle.items():
        made, size = memory[handle]["made"], memory[handle]["bytes"]
        for late, two in enumerate(accesses):
            for one in accesses[:late]:
                start, end = max(one[1]["start"], two[1]["start"]), min(one[1]["end"], two[1]["end"])
                apart = one[0] == two[0] or start >= end or not (one[1]["write"] or two[1]["write"])
                if apart or _is_before(one, two) or _is_before(two, one):
                    continue
                allocation = Allocation(0, _act(made, None), Shadow(size), 0)
                finding = rules.conflict(allocation, start, end, *(_access(*each[:2], acts) for each in (one, two)))
                if finding is not None:
                    yield finding


def _behind(logs: Sequence[Log], process: int, access: Log) -> tuple[list[Place], float]:
    """Return what comes behind an access in other processes, and when a host first knew of its end."""
    told_ns = access["told_ns"] or NEVER
    places = [Place(process, access["actor"], access["epoch"])]
    for place in places:  # which grows
        given = {(r["of"], r["number"]) for r in logs[place.process]["records"] if place.is_before(place.process, r)}
        for other, log in enumerate(logs):
            for wait in log["waits"] if other != place.process else ():
                reached = Place(other, wait["actor"], wait["epoch"])
                if (wait["of"], wait["number"]) in given and reached not in places:
                    places.append(reached)
                    told_ns = min(told_ns, wait["told_ns"] or NEVER)
    return places[1:], told_ns


def _is_before(one: tuple[int, Log, Sequence[Place], float], two: tuple[int, Log, Sequence[Place], float]) -> bool:
    _, _, behind, told_ns = one
    process, access, *_ = two
    return access["act"]["real_ns"] >= told_ns or any(place.is_before(process, access) for place in behind)


def _access(process: int, access: Log, acts: dict[tuple[int, int, int], Act]) -> Access:
    """Return an access with its process in what is said of it, by one act for all accesses of an act. All hosts are one."""
    actor, act = HOST if access["actor"] == HOST else process * ACTORS + access["actor"], access["act"]
    said = acts.setdefault((process, act["order"], act["real_ns"]), _act(act, process))
    return Access(actor, access["epoch"], access["write"], said)


def _act(act: dict[str, Any], process: int | None) -> Act:
    if process is None:
        return Act(**act)
    name = f"of process {process + 1}"
    where = {"stream": f"{act['stream']} {name}"} if act["stream"] else {"what": f"{act['what']} {name}"}
    return Act(**(act | where | {"order": act["real_ns"], "context": process * ACTORS + act["context"], "job": ""}))


def _unknown(logs: Sequence[Log]) -> Iterator[str]:
    """Say what memory somebody has, or may have, who was not watched."""
    holders: dict[str, set[tuple[int, bool]]] = {}
    for process, log in enumerate(logs):
        for memory in log["memory"]:
            holders.setdefault(memory["of"], set()).add((process, memory["is_opened"]))
        if log["is_full"]:
            yield f"not checked ({NAME}): accesses of process {process + 1} to shared memory beyond so many as are compared"
    for log in logs:
        for memory in log["memory"]:
            sides = {is_opened for _, is_opened in holders[memory["of"]]}
            if len(sides) == 1:
                made, whose = (
                    memory["made"],
                    "of a process" if memory["is_opened"] else "that was shared with a process",
                )
                where = f"{memory['bytes']} bytes, at {made['site'] or 'an unknown place'}"
                yield f"not checked ({NAME}): what is done elsewhere to memory {whose} that is not watched: {where}"
