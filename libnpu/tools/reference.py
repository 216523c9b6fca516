"""The reference for `--check`: the same ONNX file on onnxruntime, or on onnx's own evaluator; and the comparison.

A run passes when every output has the reference's type and shape, and: with policy fp32 every element is within 1e-4 of the
reference relative to its largest magnitude; with fp16 the cosine is at least 0.999, the error's norm at most 0.05 of the
reference's norm (a scaled or saturated output has a cosine of 1), and the arg-max agrees, unless the reference's margin is
within fp16 rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FP32_RELATIVE_ERROR = 1e-4
FP16_COSINE = 0.999
FP16_NORM_ERROR = 0.05  # chosen: a cosine of 0.999 alone allows 0.045
FP16_ROUNDING = 2.0**-10  # of the largest magnitude: a smaller margin does not decide the arg-max
FP16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one output differs from the reference.

    `max_relative_error` is relative to the largest magnitude of the reference, `norm_error` is the norm of the difference
    relative to the norm of the reference. `beyond_fp16` counts values of the reference that are finite, and not in float16.
    """

    name: str
    type: str  # element type and shape
    reference_type: str
    max_abs_error: float
    max_relative_error: float
    norm_error: float
    cosine: float
    same_argmax: bool
    beyond_fp16: int = 0

    def passes(self, precision: str) -> bool:
        """Tell whether the output is right under policy `precision`. A NaN that the reference has not is not."""
        if self.type != self.reference_type:
            return False
        if precision == "fp32":
            return self.max_relative_error <= FP32_RELATIVE_ERROR
        return self.cosine >= FP16_COSINE and self.norm_error <= FP16_NORM_ERROR and self.same_argmax

    def difference(self) -> str:
        """Return what is wrong with an output that does not pass."""
        if self.type != self.reference_type:
            return f"it is {self.type}, not {self.reference_type}"
        text = f"relative error {self.max_relative_error:.3g}, cosine {self.cosine:.6f}"
        if self.beyond_fp16:
            text += f"; {self.beyond_fp16} values of the reference are beyond float16 ({FP16_MAX:.0f}): try --precision fp32"
        return text


def reference_outputs(path: str, inputs: Mapping[str, NDArray[Any]]) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the name of the reference, and its outputs for the model at `path`. Raises ToolError when it cannot run."""
    try:
        return _run_reference(path, inputs)
    except Exception as error:  # onnxruntime has a class per status, without a common one; onnx raises what it meets
        raise ToolError(f"{path}: the reference cannot run it: {type(error).__name__}: {error}") from None


def _run_reference(path: str, inputs: Mapping[str, NDArray[Any]]) -> tuple[str, dict[str, NDArray[Any]]]:
    try:
        import onnxruntime
    except ImportError:
        import onnx.reference

        evaluator = onnx.reference.ReferenceEvaluator(path)
        return "onnx.reference", dict(zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return f"onnxruntime {onnxruntime.__version__}", dict(zip(names, session.run(names, dict(inputs)), strict=True))


def compare(found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> list[Comparison]:
    """Return one Comparison per output of `found`."""
    return [_compare(name, array, expected[name]) for name, array in found.items()]


def max_abs_difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference of two arrays of one shape: 0 for the same values, infinity where only one is a NaN."""
    return float(_differences(found.astype(np.float64), expected.astype(np.float64)).max(initial=0.0))


def _differences(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the magnitude of `a - b`: 0 where both are the same infinity or NaN, infinity where only one is a NaN."""
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return np.nan_to_num(difference, nan=np.inf, posinf=np.inf)


def _compare(name: str, found: NDArray[Any], expected: NDArray[Any]) -> Comparison:
    expected = np.asarray(expected)
    types = _type(found), _type(expected)
    a, b = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    if a.shape != b.shape:
        return Comparison(name, *types, np.inf, np.inf, np.inf, 0.0, False)
    error = _differences(a, b)
    finite = np.isfinite(b)
    scale = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        u, v = a[finite] / scale, b[finite] / scale  # the squares stay in range
        length = float(np.linalg.norm(v))
        norm = float(np.linalg.norm(u)) * length
        cosine = float(u @ v) / norm if norm else float(np.array_equal(u, v))
        norm_error = float(np.linalg.norm(error / scale)) / (length or 1.0)
    largest = float(error.max(initial=0.0))
    return Comparison(
        name,
        *types,
        max_abs_error=largest,
        max_relative_error=largest / scale,
        norm_error=norm_error,
        cosine=cosine,
        same_argmax=_same_argmax(a, b, scale),
        beyond_fp16=int(np.count_nonzero(np.abs(b[finite]) > FP16_MAX)) if expected.dtype.kind == "f" else 0,
    )


def _type(array: NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _same_argmax(a: NDArray[Any], b: NDArray[Any], scale: float) -> bool:
    """Tell whether the largest of `a` is the largest of the reference `b`, or ties with it within fp16 rounding."""
    if not a.size:
        return True
    if np.isnan(a).any() or np.isnan(b).any():
        return np.array_equal(np.isnan(a), np.isnan(b))
    found, best = b[a.argmax()], b.max()
    return bool(found == best or best - found <= FP16_ROUNDING * scale)
