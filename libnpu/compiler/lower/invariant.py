"""Parts of a matrix-engine task that every operation fills in alike: its workloads and its post-processing."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from npu_abi import C

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIANT_CHANNELS = 64  # channels of one workload; chosen: four blocks of the MAC array
_VARIANT_ROWS = 4  # row groups are multiples of the MAC array's block height


def ppe_fields(act: tuple[Any, ...] | None, scale: float = 1.0) -> dict[str, Any]:
    """Return the PPE part of an invariant for an activation of the IR."""
    fields: dict[str, Any] = {
        "ppe_scale": scale,
        "ppe_bias": 0.0,
        "ppe_fn": C.NPU_PPE_NONE,
        "clamp_low": -inf,
        "clamp_high": inf,
    }
    if act is None:
        return fields
    if act[0] == "relu":
        fields["ppe_fn"] = C.NPU_PPE_RELU
    elif act[0] == "clip":
        fields["clamp_low"], fields["clamp_high"] = float(act[1]), float(act[2])
    elif act[0] == "leaky_relu":
        fields["ppe_fn"], fields["lrelu_slope"] = C.NPU_PPE_LRELU, float(act[1])
    else:
        raise AssertionError(f"activation {act!r}")
    return fields


def variants(shape: tuple[int, ...], pads: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the workloads of an output [y][x][z]: blocks of channels, or row groups when there is one block."""
    rows, columns, channels = shape
    step_z = VARIANT_CHANNELS
    step_y = rows
    if channels <= step_z and rows >= 2 * _VARIANT_ROWS:
        step_y = -(-rows // 2 // _VARIANT_ROWS) * _VARIANT_ROWS
    for z in range(0, channels, step_z):
        for y in range(0, rows, step_y):
            yield {
                "start_x": 0,
                "start_y": y,
                "start_z": z,
                "size_x": columns,
                "size_y": min(step_y, rows - y),
                "size_z": min(step_z, channels - z),
                "pad_left": 0,
                "pad_right": 0,
                "pad_top": 0,
                "pad_bottom": 0,
                **pads,
            }
