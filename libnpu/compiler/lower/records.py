"""Payloads as record arrays of the blob's structures: for the cost model (addresses unknown) and for the emitter (addresses known)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C, dtype

from libnpu.compiler.program import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from libnpu.compiler.program import DmaPayload, DpuPayload, Ref

# DMA fields that a payload has under the same name.
_DMA_FIELDS = ("length", "num_planes", "src_plane_stride", "dst_plane_stride", "src_stride", "dst_stride")


def nominal_address(index: int, ref: Ref) -> int:
    """Return an address on the right side of the window: enough for costs, which depend on CMX or DDR only."""
    return int(C.NPU_CMX_BASE if isinstance(ref.target, Buffer) else C.NPU_VA_USER_BASE) + ref.offset


def dma_records(
    payloads: Sequence[DmaPayload], address: Callable[[int, Ref], int] = nominal_address
) -> NDArray[np.void]:
    """Return one npu_dma_task per payload; barriers and ids zero. `address` maps (payload index, operand)."""
    records = np.zeros(len(payloads), dtype("npu_dma_task"))
    for field in _DMA_FIELDS:
        records[f"transaction_{field}"] = [getattr(p, field) for p in payloads]
    records["transaction_src_width"] = [p.src_width or p.length for p in payloads]
    records["transaction_dst_width"] = [p.dst_width or p.length for p in payloads]
    records["transaction_src"] = [address(i, p.src) for i, p in enumerate(payloads)]
    records["transaction_dst"] = [address(i, p.dst) for i, p in enumerate(payloads)]
    return records


def dpu_records(
    payloads: Sequence[DpuPayload], address: Callable[[int, Ref], int] = nominal_address
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Return (npu_dpu_invariant per payload, their npu_dpu_variants in order); barriers and ids zero."""
    invariants = np.zeros(len(payloads), dtype("npu_dpu_invariant"))
    columns: dict[str, list[Any]] = {}
    for index, payload in enumerate(payloads):
        values = payload.invariant | {field: address(index, ref) for field, ref in payload.refs.items()}
        for field, value in values.items():
            if field not in columns:
                columns[field] = [0] * len(payloads)
            columns[field][index] = value
    for field, column in columns.items():
        invariants[field] = column
    counts = [len(p.variants) for p in payloads]
    invariants["variant_count"] = counts
    invariants["variant_first"] = np.cumsum([0, *counts])[:-1]
    variants = np.zeros(sum(counts), dtype("npu_dpu_variant"))
    rows = [variant for payload in payloads for variant in payload.variants]
    for field in rows[0] if rows else ():
        variants[field] = [row[field] for row in rows]
    variants["invariant_index"] = np.repeat(np.arange(len(payloads)), counts)
    return invariants, variants
