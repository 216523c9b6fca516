"""The weights section of a blob by layer: which of its bytes the DMA tasks of each layer load."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.blob import elf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.blob import BlobImage

_DMA = (".npu.tasks.dma0", ".npu.tasks.dma1")
BETWEEN = "(alignment, and what no DMA task loads)"


@dataclass(slots=True)
class LayerWeights:
    """`nbytes` of the section that the layer's tasks load, those of several layers counted for the first; `loads`: DMA tasks."""

    name: str
    nbytes: int = 0
    loads: int = 0


def weights_by_layer(image: BlobImage, depth: int | None = None) -> list[LayerWeights]:
    """Return the layers in order of their first load, and last what is left of the section.

    `depth`: layers whose names agree up to that "/" are one.
    """
    tasks = image.debug.get("tasks", [])
    found: dict[str, LayerWeights] = {}
    runs: list[tuple[int, int, int]] = []  # start, end, task
    names: dict[int, str] = {}
    for task_id, spans in sorted(_loads(image), key=lambda load: load[0]):
        name = str(tasks[task_id]["layer"]) if task_id < len(tasks) else f"task {task_id}"
        names[task_id] = name if depth is None else "/".join(name.split("/")[:depth])
        found.setdefault(names[task_id], LayerWeights(names[task_id])).loads += 1
        runs += [(start, end, task_id) for start, end in spans]
    left = image.weight_bytes
    for task_id, nbytes in _first_readers(runs):
        found[names[task_id]].nbytes += nbytes
        left -= nbytes
    return [*found.values(), *([LayerWeights(BETWEEN, left)] if left else [])]


def _loads(image: BlobImage) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the id and the runs (start, end) of every DMA task that reads weights."""
    places = {(r.section, r.offset): r.addend for r in image.relocations if r.symbol == elf.WEIGHTS}
    for section in _DMA:
        array = image.tasks.get(section)
        if array is None:
            continue
        fields: Any = array.dtype.fields
        at = fields["transaction_src"][1]
        for index, entry in enumerate(array):
            start = places.get((section, index * array.dtype.itemsize + at))
            if start is None:
                continue
            length, planes, width, stride, plane_stride = (
                int(entry[f"transaction_{name}"])
                for name in ("length", "num_planes", "src_width", "src_stride", "src_plane_stride")
            )
            rows = np.arange(length // width) * stride
            starts = (start + np.arange(planes)[:, None] * plane_stride + rows).reshape(-1)
            yield int(entry["task_id"]), [(first, first + width) for first in starts.tolist()]


def _first_readers(runs: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (task, bytes) for each stretch between two ends of runs: the first task that has it."""
    runs = sorted(runs)
    ends = sorted({place for start, end, _ in runs for place in (start, end)})
    reading: list[tuple[int, int]] = []  # task, end
    following = 0
    for low, high in pairwise(ends):
        while following < len(runs) and runs[following][0] <= low:
            _, end, task = runs[following]
            heapq.heappush(reading, (task, end))
            following += 1
        while reading and reading[0][1] <= low:
            heapq.heappop(reading)
        if reading:
            yield reading[0][0], high - low
