"""What runs a part on the host: onnx's own evaluator, which is always there, or onnxruntime for operators that only it knows.

Which of the two is decided when a model is compiled, by its operators and not by what is installed, and stands in the container.
Both are loaded on first use.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

REFERENCE, RUNTIME = "onnx.reference", "onnxruntime"


class HostEvaluator:
    """Runs one ONNX model. Raises Unsupported for an evaluator that is not installed, and for a model that it does not take."""

    def __init__(self, model: bytes, evaluator: str) -> None:
        if evaluator not in (REFERENCE, RUNTIME):
            raise Unsupported(f"the evaluator {evaluator!r} of a part on the host; there are {REFERENCE} and {RUNTIME}")
        self._run = (_reference if evaluator == REFERENCE else _runtime)(model)

    def run(self, feeds: Mapping[str, Any], outputs: tuple[str, ...]) -> list[Any]:
        """Return the values of `outputs`, arrays but for what is no tensor. Raises what the evaluator raises."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._run(list(outputs), dict(feeds))


def evaluator_of(model: onnx.ModelProto) -> str:
    """Return which evaluator runs `model`. Raises Unsupported when none does."""
    data = model.SerializeToString()
    try:
        HostEvaluator(data, REFERENCE)
    except Unsupported as refusal:
        try:
            HostEvaluator(data, RUNTIME)
        except Unsupported as error:
            raise Unsupported(f"the host cannot run it either: {refusal.message}; {error.message}") from None
        return RUNTIME
    return REFERENCE


def types_by_runtime(model: onnx.ModelProto) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type, as ONNX spells it in lower case, and shape, -1 where it is open, of the outputs that onnxruntime knows them of.

    Nothing where it is not installed or does not take the model. Outputs of rank 0 are left out, as it says the same of those it does not know.
    """
    try:
        found = _session(model.SerializeToString()).get_outputs()
    except Unsupported:
        return {}
    return {
        output.name: (
            output.type.removeprefix("tensor(").rstrip(")"),
            tuple(size if isinstance(size, int) else -1 for size in output.shape),
        )
        for output in found
        if output.type.startswith("tensor(") and output.shape
    }


def _reference(data: bytes) -> Callable[[list[str], dict[str, Any]], list[Any]]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    from libnpu.parts.operators import OPERATORS, mistaken

    model = onnx.load_from_string(data)
    if operator := mistaken(model):
        raise Unsupported(f"{REFERENCE}: its {operator} is not what ONNX says")
    try:
        evaluator = ReferenceEvaluator(model, new_ops=OPERATORS)
    except Exception as error:  # of many kinds, without a common one
        raise Unsupported(f"{REFERENCE}: {_first_line(error)}") from None
    return lambda outputs, feeds: list(evaluator.run(outputs, feeds))


def _runtime(data: bytes) -> Callable[[list[str], dict[str, Any]], list[Any]]:
    session = _session(data)
    return lambda outputs, feeds: list(session.run(outputs, feeds))


def _session(data: bytes) -> Any:
    """Return an onnxruntime session. Raises Unsupported."""
    try:
        import onnxruntime
    except ImportError:
        raise Unsupported(f"{RUNTIME} is not installed") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # one order of additions
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class per status, without a common one
        raise Unsupported(f"{RUNTIME}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
