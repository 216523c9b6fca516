"""Witnesses: what two accesses in no order do to a program that runs with the one first, and with the other.

The program runs again twice, operation by operation: in the order of its calls, and with the one of the two that came
first held back until the other has been, which is legal since nothing orders them. What differs is the proof: the bytes that the
reader finds, or that are left, what the program prints, its exit status, and what comes to the host. When nothing differs the race
is benign in this run.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WITNESSES = 16  # findings that are replayed unless somebody says otherwise; each takes a run of the program
SHOWN = 8  # bytes of a difference
SHOWN_CHARACTERS = 200  # of a line that is printed differently
KINDS = {"CAPTURED-BUFFER-CHANGED": "WAR", "FREE-IN-USE": "FREE"}  # and those whose rule ends with it
IN_ORDER = "hold:"
HOST = "host"
Content = tuple[int, str]  # digest, bytes in base64


@dataclass(frozen=True)
class Run:
    """A run of the program under a schedule: exit status, what it printed, and the record of `Recorder.record`; {} with a problem."""

    status: int = 0
    printed: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    problem: str = ""  # why there is no record, of the program as "it"


def add_witnesses(
    found: list[dict[str, Any]], replay: Callable[[str, Sequence[dict[str, Any]]], Run], most: int = WITNESSES
) -> None:
    """Give each record of a race a `witness`, and put what is benign last. `replay` runs the program under a schedule with watches
    of a Recorder, for `most` records, the first ones.
    """
    races = [record for record in found if kind_of(record) and not record["witness"]]
    chosen = [record for record in races if _hold(record) is not None][:most]
    for record in races:
        if record not in chosen:
            late = _hold(record) is None
            why = (
                "the host comes first, and is not held back" if late else f"of the races the first {most} were replayed"
            )
            record["witness"] = {"problem": why}
    watches = [_watch_of(record) for record in chosen]
    normal = replay(IN_ORDER, watches) if chosen else Run()
    for number, record in enumerate(chosen):
        schedule = _hold(record)
        assert schedule is not None
        held = normal if normal.problem else replay(schedule, watches)
        record["witness"] = _witness(record, schedule, number, normal, held)
    found.sort(key=is_benign)


def is_benign(record: dict[str, Any]) -> bool:
    """Whether a replay has shown no difference."""
    return bool(record["witness"] and record["witness"].get("benign"))


def kind_of(record: dict[str, Any]) -> str:
    """Return RAW, WAR or WAW of a race between two accesses, FREE of a free, "" of other findings."""
    if len(record["acts"]) != 2 or record["allocation"] is None:
        return ""
    ending = record["rule"].rpartition("-")[2]
    return KINDS.get(record["rule"], ending if ending in ("RAW", "WAR", "WAW") else "")


def _hold(record: dict[str, Any]) -> str | None:
    """Return the schedule in which the first of the two is late; None when the host is first."""
    first, second = record["acts"]
    if "job" not in first:
        return None
    if "job" not in second:
        return f"hold:{first['job']}"
    return f"hold:{first['job']}@{end_of(second)}"


def end_of(act: dict[str, Any]) -> str:
    """Return the operation that ends with an act: behind the trigger of a host function comes what ends with it."""
    name: str = act["job"]
    stream, _, position = name.rpartition(".")
    return f"{stream}.{int(position) + 1}" if act.get("is_function") else name


def _watch_of(record: dict[str, Any]) -> dict[str, Any]:
    return {"acts": record["acts"], "memory": record["allocation"]["number"], "bytes": record["bytes"]}


def _witness(record: dict[str, Any], schedule: str, number: int, normal: Run, held: Run) -> dict[str, Any]:
    """Return what differs between the two runs, of whose watches this record's is `number`."""
    if normal.problem or held.problem:
        return {"problem": normal.problem or f"{held.problem} ({schedule})"}
    kind = kind_of(record)
    names = [act.get("job", HOST) for act in record["acts"]]
    both = [Seen(run.record["seen"][number]) for run in (normal, held)]
    found = _contents(kind, names, *both) if kind != "FREE" else None
    differs = {
        "bytes": _difference(*found) if found is not None else None,
        "printed": _line(normal.printed, held.printed),
        "status": [normal.status, held.status] if normal.status != held.status else None,
        "outputs": normal.record["outputs"] != held.record["outputs"],
    }
    if found is None and kind != "FREE" and not any(differs.values()):
        return {"problem": f"the runs did not come to the two in both orders ({schedule})"}
    return {"schedule": schedule, "benign": kind != "FREE" and not any(differs.values()), **differs}


class Seen:
    """What a run has seen of a pair: (whose, "before" or "after", digest, bytes) in order."""

    def __init__(self, moments: Sequence[Any]) -> None:
        self._moments = [((whose, when), (digest, content)) for whose, when, digest, content in moments]

    def at(self, whose: str, when: str) -> Content | None:
        """Return what was there when an operation began ("before"), or had ended ("after"); None if it was not seen."""
        return next((content for moment, content in self._moments if moment == (whose, when)), None)

    def host(self, job: str, *, behind: bool) -> Content | None:
        """Return what the host found at its first look behind an operation, or its last one before; when its looks are not seen, what the
        operation left, or found.
        """
        moments = [moment for moment, _ in self._moments]
        edge = (job, "after") if behind else (job, "before")
        if all(whose != HOST for whose, _ in moments):
            return self.at(*edge)
        if edge not in moments:
            return None
        place = moments.index(edge)
        part = self._moments[place:] if behind else self._moments[place::-1]
        return next((content for (whose, _), content in part if whose == HOST), None)

    def is_in_order(self, first: str, second: str) -> bool:
        """Whether one act had ended when the other began. Of acts of the host the first is the last one that comes before, and the second
        the first one that comes behind; when they are not seen they were where they should be.
        """
        moments = [moment for moment, _ in self._moments]
        if HOST in (first, second) and all(whose != HOST for whose, _ in moments):
            return True
        ends = (first, "before" if first == HOST else "after")
        begins = [place for place, moment in enumerate(moments) if moment == (second, "before")]
        return ends in moments and bool(begins) and moments.index(ends) < (max if second == HOST else min)(begins)


def _contents(kind: str, names: Sequence[str], normal: Seen, held: Seen) -> tuple[Content, Content] | None:
    """Return what the reader finds in each run, or what is left in the end when both write; None when a run did not come to them, or
    not in its order.
    """
    first, second = names
    if not (normal.is_in_order(first, second) and held.is_in_order(second, first)):
        return None
    if kind == "WAW":
        pair = _left(first, second, normal, held), _left(second, first, held, normal)
    elif kind == "RAW":
        pair = _found(second, first, normal, is_last=True), _found(second, first, held, is_last=False)
    else:
        pair = _found(first, second, normal, is_last=False), _found(first, second, held, is_last=True)
    return (pair[0], pair[1]) if pair[0] is not None and pair[1] is not None else None


def _found(reader: str, writer: str, seen: Seen, *, is_last: bool) -> Content | None:
    return seen.host(writer, behind=is_last) if reader == HOST else seen.at(reader, "before")


def _left(first: str, last: str, seen: Seen, other: Seen) -> Content | None:
    """Return what the last writer leaves; the host's bytes are what the other run finds behind it."""
    return other.at(first, "before") if last == HOST else seen.at(last, "after")


def _difference(normal: Content, held: Content) -> dict[str, Any] | None:
    """Return where in the range, and by how many bytes, two contents differ, with the first bytes of each in hex; None if they do not."""
    if normal == held:
        return None
    one, two = (b64decode(content) for _, content in (normal, held))
    places = [place for place, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    start = places[0] if places else len(one)
    shown = [content[start : start + SHOWN].hex(" ") for content in (one, two)]
    return {"start": start, "count": len(places), "in_order": shown[0], "held": shown[1]}


def _line(normal: str, held: str) -> dict[str, Any] | None:
    """Return the first line that two runs print differently, from 1, None if there is none; "" where a run has printed less."""
    lines = zip_longest(normal.splitlines(), held.splitlines(), fillvalue="")
    for number, (one, two) in enumerate(lines, 1):
        if one != two:
            return {"line": number, "in_order": one[:SHOWN_CHARACTERS], "held": two[:SHOWN_CHARACTERS]}
    return None


def text_of(record: dict[str, Any]) -> str:
    """Return the witness of a record for people, "" without one."""
    witness = record["witness"]
    if not witness:
        return ""
    if "problem" in witness:
        return f"none: {witness['problem']}"
    differs = []
    if (different := witness["bytes"]) is not None:
        start = record["bytes"][0] + different["start"]
        reader = {"RAW": 1, "WAR": 0}.get(kind_of(record))
        others = f"{different['count']} other byte{'s'[: different['count'] != 1]}"
        where = f"{others} are left" if reader is None else f"the {record['acts'][reader]['what']} finds {others}"
        differs.append(f"{where}, from byte {start} on {different['held']}, not {different['in_order']}")
    if (printed := witness["printed"]) is not None:
        line = f" in line {printed['line']}" if printed["line"] > 1 else ""
        differs.append(f"it prints {printed['held']!r}, not {printed['in_order']!r}{line}")
    if witness["status"] is not None:
        differs.append("it ends with status {1}, not {0}".format(*witness["status"]))
    if witness["outputs"] and not differs:
        differs.append("other bytes come to the host")
    nothing = (
        "nothing differs: benign in this run"
        if witness["benign"]
        else "nothing differs: nobody else gets the memory in this run"
    )
    return f"with the two the other way round (NPU_SCHEDULE={witness['schedule']}) {', and '.join(differs) or nothing}"
