"""What was computed per byte that moved in a run, and the roofs over it: measured, and as the JSON that `npu roofline` writes and reads."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_model.profile import load_profile

from libnpu.tools.console import PS_PER_S, ToolError
from libnpu.tools.files import INVALID, what_is_wrong
from libnpu.tools.session import DDR
from libnpu.tools.work import Accesses, accesses, by_layer, ideal_bytes, main_type, memory_roof, operations, roofs

if TYPE_CHECKING:
    from libnpu.blob import BlobImage
    from libnpu.tools.session import Execution


@dataclass(frozen=True, slots=True)
class Point:
    """Something that was executed: operations, bytes between device and DDR, and how long it took.

    `line_bytes`: what counts instead of the bytes that moved, when it is asked for (work.Accesses).
    """

    name: str
    flop: int
    ddr_bytes: int
    time_ps: int
    line_bytes: int | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that count."""
        return self.ddr_bytes if self.line_bytes is None else self.line_bytes

    @property
    def intensity(self) -> float:
        """Operations per byte; infinite without bytes."""
        return self.flop / self.nbytes if self.nbytes else math.inf

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flop * PS_PER_S / self.time_ps if self.time_ps else 0.0


@dataclass(frozen=True, slots=True)
class Alone:
    """An operation that was run alone, and the bytes of its inputs, outputs and constants."""

    point: Point
    ideal_bytes: int

    @property
    def ideal_intensity(self) -> float:
        """Operations per byte when each moves once; infinite without bytes."""
        return self.point.flop / self.ideal_bytes if self.ideal_bytes else math.inf


@dataclass(frozen=True, slots=True)
class Roofline:
    """A run under its roofs. `kind` is the element type whose roof counts; rates are per second."""

    name: str
    profile: str
    kind: str
    roofs: dict[str, int]
    memory: int
    whole: Point
    ideal_bytes: int  # when inputs, outputs and constants move once
    layers: list[Point]
    accesses: Accesses | None = None  # when lines count
    operations: list[Alone] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """Operations per second of the roof that counts."""
        return self.roofs[self.kind]

    @property
    def ridge(self) -> float:
        """The intensity at which memory and engines take equally long."""
        return self.peak / self.memory

    def bound(self, point: Point) -> str:
        """Return what a point cannot exceed: "memory" left of the ridge, "compute" right of it."""
        return "memory" if point.intensity < self.ridge else "compute"

    def idle(self, point: Point) -> float:
        """Return the share of time for which memory leaves the engines without work, at best."""
        return max(1 - point.intensity / self.ridge, 0.0)


def measure(image: BlobImage, profile: str, execution: Execution, lines: bool = False) -> Roofline:
    """Return the points of a run: all of it by the device's counters of bytes, and its layers by their tasks. `lines`: count lines instead."""
    hardware = load_profile(profile)
    done = operations(image, hardware)
    flop = sum(done[s.task_id][0] for s in execution.slices if s.task_id in done)
    counters = execution.counters
    moved = sum(counters[name] for name in DDR)
    layers = by_layer(image, done, execution.slices)
    each: dict[str, Accesses] = {}
    if lines:
        known = accesses(image, hardware)
        for s in execution.slices:
            each[s.layer] = each.get(s.layer, Accesses()) + known.get(s.task_id, Accesses())
    total = sum(each.values(), Accesses()) if lines else None
    return Roofline(
        name=image.name,
        profile=profile,
        kind=main_type(image, done),
        roofs=roofs(hardware),
        memory=memory_roof(hardware),
        whole=Point(
            image.name, flop, moved, execution.end_ps - execution.start_ps, total.line_bytes if total else None
        ),
        ideal_bytes=ideal_bytes(image),
        layers=[
            Point(
                w.name, w.flop, w.ddr_bytes, w.last_ps - w.first_ps, each[w.name].line_bytes if w.name in each else None
            )
            for w in layers
        ],
        accesses=total,
    )


def as_json(found: Roofline) -> dict[str, Any]:
    """Return a roofline for JSON."""

    def point(p: Point) -> dict[str, Any]:
        return {
            "name": p.name,
            "flop": p.flop,
            "ddr_bytes": p.ddr_bytes,
            **({} if p.line_bytes is None else {"line_bytes": p.line_bytes}),
            "intensity": p.intensity,
            "time_ps": p.time_ps,
            "flop_per_second": p.rate,
            "bound": found.bound(p),
            "idle": found.idle(p),
        }

    counted = found.accesses
    return {
        "name": found.name,
        "profile": found.profile,
        "type": found.kind,
        "roofs": found.roofs,
        "memory_bytes_per_second": found.memory,
        "ridge": found.ridge,
        "utilisation": found.whole.rate / found.peak,
        "ideal_bytes": found.ideal_bytes,
        "ideal_intensity": found.whole.flop / found.ideal_bytes if found.ideal_bytes else None,
        **({} if counted is None else {"accesses": _accesses_json(counted)}),
        "whole": point(found.whole),
        "layers": [point(p) for p in found.layers],
        "operations": [
            {**point(o.point), "ideal_bytes": o.ideal_bytes, "ideal_intensity": o.ideal_intensity}
            for o in found.operations
        ],
    }


def _accesses_json(counted: Accesses) -> dict[str, Any]:
    over = counted.line_bytes / counted.nbytes if counted.nbytes else None
    return {"loads": counted.loads, "stores": counted.stores, "bytes": counted.nbytes, "over_count": over}


def is_report(path: str) -> bool:
    """Tell whether the file at `path` begins as JSON does, which neither a model nor a blob can. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(1) == b"{"


def read_report(path: str) -> Roofline:
    """Return what `npu roofline --json` wrote to the file at `path`. Raises ToolError for any other file."""

    def point(entry: dict[str, Any]) -> Point:
        lines = entry.get("line_bytes")
        flop, ddr_bytes, time_ps = (int(entry[key]) for key in ("flop", "ddr_bytes", "time_ps"))
        return Point(str(entry["name"]), flop, ddr_bytes, time_ps, None if lines is None else int(lines))

    def counted(entry: dict[str, Any]) -> Accesses:
        return Accesses(*(int(entry[key]) for key in ("loads", "stores", "bytes")))

    try:
        report = json.loads(Path(path).read_bytes())
        found = Roofline(
            name=str(report["name"]),
            profile=str(report["profile"]),
            kind=str(report["type"]),
            roofs={str(kind): int(peak) for kind, peak in report["roofs"].items()},
            memory=int(report["memory_bytes_per_second"]),
            whole=point(report["whole"]),
            ideal_bytes=int(report["ideal_bytes"]),
            layers=[point(entry) for entry in report["layers"]],
            accesses=counted(report["accesses"]) if "accesses" in report else None,
            operations=[Alone(point(entry), int(entry["ideal_bytes"])) for entry in report["operations"]],
        )
        if found.ridge <= 0:
            raise ValueError(f"a ridge of {found.ridge}")
    except INVALID as error:
        raise ToolError(f"{path}: not what npu roofline --json wrote: {what_is_wrong(error)}") from None
    return found
