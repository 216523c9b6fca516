"""Parts of a matrix-engine task that every operation fills in alike: its workloads and its post-processing."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from npu_abi import C
from npu_model.dpu_walk import ROW_CHANNELS, ROW_TAPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.profile import Dpu

MAX_FIELD = 255  # kernel, stride and dilation are 8-bit fields
VARIANT_CHANNELS = 256  # of one workload at most: those of the deepest context


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


def variant_channels(fields: dict[str, Any], dpu: Dpu) -> tuple[int, ...]:
    """Return the channels that workloads of an invariant of `fields` may have: as many as they can, or so few that the engine keeps rows."""
    rows = (fields["op"], fields["kernel_x"], fields["stride_x"], fields["dilation_x"])
    keeps = dpu.dw_row_columns > 0 and rows == (C.NPU_DPU_DWCONV, ROW_TAPS, 1, 1)
    return (VARIANT_CHANNELS, ROW_CHANNELS) if keeps else (VARIANT_CHANNELS,)


def variants(shape: tuple[int, ...], pads: dict[str, int], step: int = VARIANT_CHANNELS) -> Iterator[dict[str, Any]]:
    """Yield the workloads of an output [y][x][z]: `step` channels each."""
    rows, columns, channels = shape
    for z in range(0, channels, step):
        yield {
            "start_x": 0,
            "start_y": 0,
            "start_z": z,
            "size_x": columns,
            "size_y": rows,
            "size_z": min(step, channels - z),
            "pad_left": 0,
            "pad_right": 0,
            "pad_top": 0,
            "pad_bottom": 0,
            **pads,
        }
