"""The reference for `--check`: the same ONNX file on onnxruntime, or on onnx's own evaluator; and the comparison.

A run passes with policy fp32 when every output is within 1e-4 of the reference relative to its largest magnitude, with fp16
when the cosine is at least 0.999 and the arg-max agrees, unless the reference's margin is within fp16 rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FP32_RELATIVE_ERROR = 1e-4
FP16_COSINE = 0.999
FP16_ROUNDING = 2.0**-10  # of the largest magnitude: a smaller margin does not decide the arg-max


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one output differs from the reference. Relative to the largest magnitude of the reference."""

    name: str
    max_abs_error: float
    max_relative_error: float
    cosine: float
    same_argmax: bool

    def passes(self, precision: str) -> bool:
        """Tell whether the output is right under policy `precision`. A NaN is not."""
        if precision == "fp32":
            return self.max_relative_error <= FP32_RELATIVE_ERROR
        return self.cosine >= FP16_COSINE and self.same_argmax


def reference_outputs(path: str, inputs: Mapping[str, NDArray[Any]]) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the name of the reference, and its outputs for the model at `path`."""
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
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


def _compare(name: str, found: NDArray[Any], expected: NDArray[Any]) -> Comparison:
    a, b = found.astype(np.float64).ravel(), np.asarray(expected).astype(np.float64).ravel()
    if a.shape != b.shape:
        return Comparison(name, float("inf"), float("inf"), 0.0, False)
    if not a.size:
        return Comparison(name, 0.0, 0.0, 1.0, True)
    same = (a == b) | (np.isnan(a) & np.isnan(b))  # infinities and NaNs that agree
    with np.errstate(invalid="ignore"):
        error = float(np.where(same, 0.0, np.abs(a - b)).max())
    finite = np.isfinite(b)
    scale = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
    u, v = a[finite], b[finite]
    norm = float(np.linalg.norm(u) * np.linalg.norm(v))
    if norm:
        cosine = float(u @ v) / norm
    else:
        cosine = 1.0 if np.array_equal(u, v) else 0.0
    return Comparison(name, error, error / scale, cosine, _same_argmax(a, b, scale))


def _same_argmax(a: NDArray[Any], b: NDArray[Any], scale: float) -> bool:
    """Tell whether the largest of `a` is the largest of the reference `b`, or ties with it within fp16 rounding."""
    if np.isnan(a).any() or np.isnan(b).any():
        return np.array_equal(np.isnan(a), np.isnan(b))
    found, best = b[a.argmax()], b.max()
    return bool(found == best or best - found <= FP16_ROUNDING * scale)
