"""MappedInference: loads the entry structure and all arrays that it names, and validates them, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from npu_abi import C, dtype, sizeof
from npu_model.profile import Profile

from npu_firmware import barrier_check, task_check
from npu_firmware.errors import ParseError
from npu_firmware.hal import Hal
from npu_firmware.structs import read
from npu_firmware.walk import Chains, chains

Records = np.ndarray[Any, np.dtype[np.void]]

# Lists, numbered as the references of struct npu_mapped_inference.
DMA0, INVARIANTS, VARIANTS, SHAVE_RANGES, SHAVE_INVOCATIONS, BARRIERS = 0, 2, 3, 4, 5, 6
STRUCTS = (
    "npu_dma_task", "npu_dma_task", "npu_dpu_invariant", "npu_dpu_variant", "npu_shave_range", "npu_shave_invocation",
    "npu_barrier_config",
)  # fmt: skip


SIZES = tuple(sizeof(struct) for struct in STRUCTS)
ENTRY_BYTES = sizeof("npu_mapped_inference")
MAX_KNOWN = 64  # chosen: several models times the instances in flight


Entry = tuple[int, int, list[tuple[int, int, int]]]  # tile count, barrier count, (list, va, bytes) of those not empty


@dataclass(frozen=True, slots=True)
class Inference:
    """A validated inference, decoded for the engines; plans are None for empty lists."""

    tile_count: int
    barrier_count: int
    dma: list[Any]  # by port
    dpu: Any
    shave: Any
    barriers: Chains


class Inferences:
    """Inferences by address, with the bytes that they were made of: an unchanged one is not validated again."""

    def __init__(self, hal: Hal, usable_tiles: int) -> None:
        self._hal = hal
        self._usable_tiles = usable_tiles
        self._known: dict[tuple[int, int], tuple[Entry, list[bytes], Inference]] = {}

    def load(self, ssid: int, va: int) -> Inference:
        """Return the inference at `va` of a context. Raises ParseError."""
        hal = self._hal
        data = _load(hal, ssid, va, ENTRY_BYTES, 0)
        known = self._known.pop((ssid, va), None)
        if known is not None and known[1][0] == data:
            entry = known[0]
        else:
            entry = _entry(hal.profile, data, self._usable_tiles)
        raw = [data]
        for number, list_va, size in entry[2]:
            raw.append(_load(hal, ssid, list_va, size, number << 32))
        if known is None or known[1] != raw:
            tiles, barriers, refs = entry
            found = {number: data for (number, _, _), data in zip(refs, raw[1:], strict=True)}
            lists = [_records(found.get(number, b""), number) for number in range(len(STRUCTS))]
            validate(hal.profile, tiles, barriers, lists)
            known = entry, raw, self._decode(tiles, barriers, lists)
        self._known[ssid, va] = known  # the latest last
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return known[2]

    def forget(self, ssid: int) -> None:
        """Drop what belongs to a context."""
        for key in [key for key in self._known if key[0] == ssid]:
            del self._known[key]

    def _decode(self, tiles: int, barriers: int, lists: list[Records]) -> Inference:
        hal = self._hal
        dma = [hal.plan_dma(lists[port]) if len(lists[port]) else None for port in range(hal.profile.dma_ports)]
        invariants, invocations = lists[INVARIANTS], lists[SHAVE_INVOCATIONS]
        try:
            dpu = hal.plan_dpu(invariants, lists[VARIANTS]) if len(invariants) else None
        except hal.DescriptorError:  # a rule that validation does not know
            raise ParseError(C.NPU_PARSE_BAD_DPU, INVARIANTS << 32) from None
        shave = hal.plan_shave(invocations, lists[SHAVE_RANGES]) if len(invocations) else None
        return Inference(tiles, barriers, dma, dpu, shave, chains(lists[BARRIERS]))


def _entry(profile: Profile, data: bytes, usable_tiles: int) -> Entry:
    """Decode and check struct npu_mapped_inference. Raises ParseError."""
    entry = read("npu_mapped_inference", data)
    if entry.api_version != C.NPU_MI_API_VERSION:
        raise ParseError(C.NPU_PARSE_BAD_API_VERSION)
    if entry.reserved0 or any(entry.reserved):
        raise ParseError(C.NPU_PARSE_RESERVED_NOT_ZERO)
    tiles, barriers = entry.tile_count, entry.barrier_count
    if not 1 <= tiles <= C.NPU_MAX_TILES or barriers > C.NPU_MAX_BARRIER_IDS:
        raise ParseError(C.NPU_PARSE_BAD_COUNT)
    if tiles > usable_tiles or barriers > profile.barriers_per_tile * tiles:
        raise ParseError(C.NPU_PARSE_BAD_RESOURCES)
    refs = [
        (ref.va, ref.count)
        for ref in (
            *entry.dma_tasks, entry.invariants, entry.variants, entry.shave_ranges, entry.shave_invocations,
            entry.barrier_configs,
        )
    ]  # fmt: skip
    for number, (va, count) in enumerate(refs):
        if (va == 0) != (count == 0):
            raise ParseError(C.NPU_PARSE_BAD_MAPPED_INFERENCE, number << 32)
        if count > C.NPU_MAX_TASKS:
            raise ParseError(C.NPU_PARSE_BAD_COUNT, number << 32)
        if va % 8:
            raise ParseError(C.NPU_PARSE_BAD_ADDRESS, number << 32)
    for port in range(profile.dma_ports, C.NPU_MAX_DMA_PORTS):
        if refs[port][1]:
            raise ParseError(C.NPU_PARSE_BAD_RESOURCES, port << 32)
    return tiles, barriers, [(number, va, count * SIZES[number]) for number, (va, count) in enumerate(refs) if count]


def validate(profile: Profile, tiles: int, barriers: int, lists: list[Records]) -> None:
    """Raise ParseError for the first rule that the lists break."""
    for port in range(C.NPU_MAX_DMA_PORTS):
        task_check.dma(profile, tiles, lists[port], port)
    task_check.dpu(profile, tiles, lists[INVARIANTS], lists[VARIANTS], INVARIANTS, VARIANTS)
    task_check.shave(
        profile, tiles, lists[SHAVE_INVOCATIONS], lists[SHAVE_RANGES], SHAVE_INVOCATIONS, SHAVE_RANGES
    )  # fmt: skip
    tasks = [(number, lists[number]) for number in (DMA0, DMA0 + 1, INVARIANTS, SHAVE_INVOCATIONS)]
    barrier_check.check(barriers, lists[BARRIERS], tasks, BARRIERS)


def _records(data: bytes, number: int) -> Records:
    struct = STRUCTS[number]
    full = np.frombuffer(data, dtype(struct, reserved=True))
    for name in full.dtype.names or () if data else ():
        if "reserved" in name:
            task_check.refuse(_any(full[name] != 0), C.NPU_PARSE_RESERVED_NOT_ZERO, number)
    return np.frombuffer(data, dtype(struct))


def _any(flags: Any) -> Any:
    return flags.any(axis=1) if flags.ndim > 1 else flags


def _load(hal: Hal, ssid: int, va: int, nbytes: int, info: int) -> bytes:
    try:
        return hal.load(ssid, va, nbytes)
    except hal.Fault:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS, info) from None
