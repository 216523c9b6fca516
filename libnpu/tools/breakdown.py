"""Where the time of a run went on its way from memory to the engines: each picosecond of the critical path once.

A transfer with DDR is taken apart by leaving out, one after the other, what made it longer: what the DMA port needs for it
anyway is the scratchpad's; the network's is what it takes more when memory answers at once; DDR's is what it takes more
alone with the real memory; and what it took more in the run it waited for others. DPU and SHAVE tasks are the engine's
time, SHAVE accesses to memory included; copies within CMX are the scratchpad's. What is between tasks is waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from npu_model import cycles as cost
from npu_model.memory_cycles import CycleMemory
from npu_model.memory_runs import NO_RUNS, Runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_model.memory import MemorySystem
    from npu_model.profile import Profile

    from libnpu.blob import BlobImage
    from libnpu.blob.walk import Step
    from libnpu.tools.critical_path import Segment

PARTS = ("DDR", "NoC", "scratchpad", "engine", "waiting for transfers of others", "waiting for core and queues")
DDR, NOC, SCRATCHPAD, ENGINE, OTHERS, CORE = PARTS
CLIENT = "npu_dma"
PS_PER_S = 10**12
SYMBOL_BYTES = 1 << 33  # chosen: how far symbols lie apart in the memory of the experiments


class Breakdown:
    """Takes critical paths of runs of one blob on one profile apart."""

    def __init__(self, image: BlobImage, profile: Profile) -> None:
        """Raises MemoryUnsupported without the C helpers."""
        self._image, self._profile = image, profile
        system = profile.memory_system
        self._whole, self._network = _Alone(system), _Alone(with_instant_memory(system))
        self._known: dict[tuple[str, int], tuple[int, int, int]] = {}
        symbols = sorted({r.symbol for r in image.relocations})
        self._places = {
            (r.section, r.offset): (1 + symbols.index(r.symbol)) * SYMBOL_BYTES + r.addend for r in image.relocations
        }

    def of(self, path: Sequence[Segment]) -> dict[str, int]:
        """Return picoseconds by PARTS; they add up to the time that `path` covers."""
        found = dict.fromkeys(PARTS, 0)
        for segment in path:
            time_ps = segment.end_ps - segment.start_ps
            if segment.task is None or segment.step is None:
                found[CORE] += time_ps
            elif segment.task.engine != "DMA":
                found[ENGINE] += time_ps
            else:
                port, network, whole = (min(ps, time_ps) for ps in self._needs(segment.step))
                network, whole = max(port, network), max(port, network, whole)
                found[SCRATCHPAD] += port
                found[NOC] += network - port
                found[DDR] += whole - network
                found[OTHERS] += time_ps - whole
        return found

    def _needs(self, step: Step) -> tuple[int, int, int]:
        """Return what a descriptor needs of the port, of port and network, and of port, network and memory, in ps."""
        key = step.section, step.index
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._measure(step)
        return known

    def _measure(self, step: Step) -> tuple[int, int, int]:
        records = self._image.tasks[step.section][step.index : step.index + 1]
        profile = self._profile
        port = -(-int(cost.dma_cycles(profile, records)[0]) * PS_PER_S // profile.dma.clock_hz)
        reads, writes = (self._runs(step, records[0], end) for end in ("src", "dst"))
        if not len(reads) and not len(writes):  # within CMX, with its latency
            latency = -(-profile.cmx.latency_cycles * PS_PER_S // profile.dma.clock_hz)
            return (port + latency,) * 3
        return port, self._network.time(reads, writes, port), self._whole.time(reads, writes, port)

    def _runs(self, step: Step, record: Any, end: str) -> Runs:
        """Return the contiguous runs of one end in the memory of the experiments; none when it is in CMX."""
        fields: Any = record.dtype.fields
        offset = step.index * record.dtype.itemsize + fields[f"transaction_{end}"][1]
        place = self._places.get((step.section, offset))
        if place is None:
            return NO_RUNS
        length, width = int(record["transaction_length"]), int(record[f"transaction_{end}_width"])
        stride, planes = int(record[f"transaction_{end}_stride"]), int(record["transaction_num_planes"])
        rows = length // width
        if rows == 1 or stride == width:
            rows, width = 1, length
        starts = (
            np.arange(planes, dtype=np.int64)[:, None] * int(record[f"transaction_{end}_plane_stride"])
            + np.arange(rows, dtype=np.int64) * stride
        )
        return np.stack([(place + starts).ravel(), np.full(starts.size, width, np.int64)], axis=1)


class _Alone:
    """A memory in which one transfer runs at a time."""

    def __init__(self, system: MemorySystem) -> None:
        self._memory, self._client = CycleMemory(system), system.client(CLIENT)
        self._now_ps = 0

    def time(self, reads: Runs, writes: Runs, pace_ps: int) -> int:
        """Return the picoseconds of a transfer whose accesses are spread over `pace_ps` or longer."""
        number = self._memory.submit(self._client, self._now_ps, reads, writes, pace_ps)
        end = self._memory.advance()
        assert end is not None and end[0] == number
        time_ps, self._now_ps = end[1] - self._now_ps, end[1]
        return time_ps


def with_instant_memory(system: MemorySystem) -> MemorySystem:
    """Return `system` with a memory that answers at once: no latencies, no refresh, and pins that are never full."""
    dram = msgspec.structs.replace(
        system.dram,
        transfers_per_second=10**11,
        **dict.fromkeys(
            (
                "trcd_ns",
                "trp_ns",
                "tras_ns",
                "twr_ns",
                "cl_ns",
                "cwl_ns",
                "trefi_ns",
                "read_to_write_ns",
                "write_to_read_ns",
            ),
            0.0,
        ),
    )
    return msgspec.structs.replace(system, dram=dram)
