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

Records = np.ndarray[Any, np.dtype[np.void]]

# Lists, numbered as the references of struct npu_mapped_inference.
DMA0, INVARIANTS, VARIANTS, SHAVE_RANGES, SHAVE_INVOCATIONS, BARRIERS = 0, 2, 3, 4, 5, 6
STRUCTS = (
    "npu_dma_task", "npu_dma_task", "npu_dpu_invariant", "npu_dpu_variant", "npu_shave_range", "npu_shave_invocation",
    "npu_barrier_config",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inference:
    """A validated inference; `lists` by the numbers above."""

    tile_count: int
    barrier_count: int
    lists: list[Records]


def load(hal: Hal, ssid: int, va: int, usable_tiles: int) -> Inference:
    """Return the inference at `va` of a context. Raises ParseError."""
    profile = hal.profile
    entry = read("npu_mapped_inference", _load(hal, ssid, va, sizeof("npu_mapped_inference"), 0))
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
        *entry.dma_tasks, entry.invariants, entry.variants, entry.shave_ranges, entry.shave_invocations,
        entry.barrier_configs,
    ]  # fmt: skip
    for number, ref in enumerate(refs):
        if (ref.va == 0) != (ref.count == 0):
            raise ParseError(C.NPU_PARSE_BAD_MAPPED_INFERENCE, number << 32)
        if ref.count > C.NPU_MAX_TASKS:
            raise ParseError(C.NPU_PARSE_BAD_COUNT, number << 32)
    for port in range(profile.dma_ports, C.NPU_MAX_DMA_PORTS):
        if refs[port].count:
            raise ParseError(C.NPU_PARSE_BAD_RESOURCES, port << 32)
    lists = [_records(hal, ssid, ref, number) for number, ref in enumerate(refs)]
    validate(profile, tiles, barriers, lists)
    return Inference(tiles, barriers, lists)


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


def _records(hal: Hal, ssid: int, ref: Any, number: int) -> Records:
    struct = STRUCTS[number]
    if ref.va % 8:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS, number << 32)
    data = _load(hal, ssid, ref.va, ref.count * sizeof(struct), number << 32) if ref.count else b""
    full = np.frombuffer(data, dtype(struct, reserved=True))
    names = full.dtype.names or ()
    for name in names:
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
