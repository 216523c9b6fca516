"""The DPU's post-processing: scale, bias, activation, clamp, zero point, conversion (npu_blob.h, npu_dpu_invariant).

Each operation rounds to float32. Comparisons let NaN through: a ReLU or a clamp of NaN is NaN, and minus zero stays. NaN
becomes the quiet NaN of a floating-point result type and 0 in an integer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from npu_abi import C
from npu_model import casts, dtypes
from npu_model.native import Native

F32: TypeAlias = npt.NDArray[np.float32]
QUIET_NAN = np.array(0x7FC00000, np.uint32).view(np.float32)


@dataclass(frozen=True, slots=True)
class Ppe:
    """What the PPE of one variant does. `scale` and `bias` are per channel, or both None for the uniform values; `offset` is of integers."""

    scale: F32 | None
    bias: F32 | None
    uniform_scale: float
    uniform_bias: float
    fn: int  # enum npu_ppe_fn
    lrelu_slope: float
    clamp_low: float
    clamp_high: float
    zero_point: int
    dtype: int  # enum npu_dtype of the result
    offset: npt.NDArray[np.int32] | None = None

    def run(self, acc: npt.NDArray[Any], out: npt.NDArray[Any], native: Native | None) -> None:
        """Write the results of acc, [pixels, channels] float64 or float32, C-contiguous, to `out`, the same shape.

        `out` is C-contiguous and holds bits (dtypes.storage_dtype).
        """
        if native is None:
            out[...] = self._run_numpy(acc)
            return
        rows, channels = acc.shape
        native.lib.npu_ppe_run(
            self.settings(native),
            native.pointer("char[]", acc),
            channels,
            int(acc.dtype == np.float64),
            rows,
            channels,
            native.pointer("char[]", out),
            channels,
            native.avx2,
        )

    def settings(self, native: Native) -> Any:
        """Return a struct npu_ppe, which points into `scale`, `bias` and `offset`."""
        settings = native.ffi.new("struct npu_ppe *")
        if self.scale is not None:
            settings.scale = native.pointer("float[]", self.scale)
            settings.bias = native.pointer("float[]", self.bias)
        if self.offset is not None:
            settings.offset = native.pointer("int32_t[]", self.offset)
        settings.uniform_scale, settings.uniform_bias = self.uniform_scale, self.uniform_bias
        settings.clamp_low, settings.clamp_high = self.clamp_low, self.clamp_high
        settings.lrelu_slope, settings.zero_point = self.lrelu_slope, self.zero_point
        settings.fn, settings.dtype = self.fn, self.dtype
        return settings

    def _run_numpy(self, acc: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with np.errstate(all="ignore"):
            if self.offset is not None:
                acc = (acc.astype(np.int64) + self.offset).astype(np.int32)
            value: F32 = acc.astype(np.float32)
            value = value * (np.float32(self.uniform_scale) if self.scale is None else self.scale)
            value = value + (np.float32(self.uniform_bias) if self.bias is None else self.bias)
            if self.fn == C.NPU_PPE_RELU:
                value = np.where(value < 0, np.float32(0), value)
            elif self.fn == C.NPU_PPE_LRELU:
                value = np.where(value < 0, value * np.float32(self.lrelu_slope), value)
            value = np.where(value < np.float32(self.clamp_low), np.float32(self.clamp_low), value)
            value = np.where(value > np.float32(self.clamp_high), np.float32(self.clamp_high), value)
            if dtypes.is_float(self.dtype):
                return casts.narrow(np.where(np.isnan(value), QUIET_NAN, value), self.dtype, None)
            low, high = dtypes.integer_range(self.dtype)
            whole = np.rint(value.astype(np.float64)) + self.zero_point
            whole = np.clip(np.where(np.isnan(whole), 0.0, whole), low, high)
            return whole.astype(dtypes.numpy_dtype(self.dtype)).view(dtypes.storage_dtype(self.dtype))
