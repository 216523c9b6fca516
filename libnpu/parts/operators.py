"""Operators of onnx's evaluator that are not what ONNX says of them: some are done right here, the others are left to onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.reference.ops.op_cum_sum import CumSum as _CumSum
from onnx.reference.ops.op_gather_elements import GatherElements as _GatherElements
from onnx.reference.ops.op_loop import Loop as _Loop
from onnx.reference.ops.op_lrn import LRN as _LRN
from onnx.reference.ops.op_non_max_suppression import NonMaxSuppression as _NonMaxSuppression
from onnx.reference.ops.op_one_hot import OneHot as _OneHot

if TYPE_CHECKING:
    from collections.abc import Iterable


class Loop(_Loop):  # type: ignore[misc]  # onnx has no types here
    """Each scan output gets a new first axis; no condition is a true one; no turn at all leaves scan outputs empty."""

    def _run(
        self,
        M: Any,
        cond: Any,
        *carried: Any,
        context: dict[str, Any] | None = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:
        inputs, outputs = self.body.input_names, self.body.output_names
        known = dict(context or {})
        turns: list[list[Any]] = []
        goes_on = True if cond is None else cond
        while goes_on and (M is None or len(turns) < M):
            number = np.array(len(turns), np.int64)
            known |= dict(zip(inputs, (number, np.asarray(goes_on, np.bool_), *carried), strict=True))
            found = self._run_body(known, attributes=attributes, bindings=bindings)
            goes_on, carried = found[0], tuple(found[1 : len(inputs) - 1])
            turns.append(found[len(inputs) - 1 :])
        scanned = range(len(outputs) - len(inputs) + 1)
        stacked = (np.stack([turn[k] for turn in turns]) if turns else self._nothing(k - len(scanned)) for k in scanned)
        results: tuple[Any, ...] = self._check_and_fix_outputs((*carried, *stacked))
        return results

    def _nothing(self, output: int) -> Any:
        """Return a scan output of no turns, whose open dimensions are 0."""
        tensor = self.body.proto_.output[output].type.tensor_type
        sizes = (dim.dim_value for dim in tensor.shape.dim)
        return np.empty((0, *sizes), onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


class NonMaxSuppression(_NonMaxSuppression):  # type: ignore[misc]
    """Limits may be numbers without an axis, or absent: no boxes, and no overlap, are allowed then."""

    def _run(
        self,
        boxes: Any,
        scores: Any,
        max_output_boxes_per_class: Any = None,
        iou_threshold: Any = None,
        score_threshold: Any = None,
        center_point_box: Any = None,
    ) -> tuple[Any, ...]:
        most = (
            np.zeros(1, np.int64) if max_output_boxes_per_class is None else np.reshape(max_output_boxes_per_class, -1)
        )
        overlap = np.zeros(1, np.float32) if iou_threshold is None else np.reshape(iou_threshold, -1)
        least = None if score_threshold is None else np.reshape(score_threshold, -1)
        found: tuple[Any, ...] = super()._run(boxes, scores, most, overlap, least, center_point_box)
        return found


class OneHot(_OneHot):  # type: ignore[misc]
    """The depth may be a number with an axis."""

    def _run(self, indices: Any, depth: Any, values: Any, axis: int | None = None) -> tuple[Any, ...]:
        found: tuple[Any, ...] = super()._run(indices, np.reshape(depth, ()).astype(np.int64), values, axis=axis)
        return found


class CumSum(_CumSum):  # type: ignore[misc]
    """The number of the axis may have an axis itself."""

    def _run(self, x: Any, axis: Any, exclusive: int | None = None, reverse: int | None = None) -> tuple[Any, ...]:
        found: tuple[Any, ...] = super()._run(x, np.reshape(axis, ()), exclusive=exclusive, reverse=reverse)
        return found


class GatherElements(_GatherElements):  # type: ignore[misc]
    """There may be any number of elements to choose from, and fewer indices than elements along other axes."""

    def _run(self, data: Any, indices: Any, axis: int | None = None) -> tuple[Any, ...]:
        axis = (axis or 0) % data.ndim
        near = data[tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))]
        return (np.take_along_axis(near, np.where(indices < 0, indices + data.shape[axis], indices), axis),)


class LRN(_LRN):  # type: ignore[misc]
    """The sum around a channel is over its neighbours, of an image of any rank."""

    def _run(
        self,
        x: Any,
        alpha: float | None = None,
        beta: float | None = None,
        bias: float | None = None,
        size: int | None = None,
    ) -> tuple[Any, ...]:
        assert size is not None and alpha is not None and beta is not None and bias is not None
        around = [((size - 1) // 2, size // 2) if axis == 1 else (0, 0) for axis in range(x.ndim)]
        squares = np.lib.stride_tricks.sliding_window_view(np.pad(x * x, around), size, axis=1).sum(-1)
        return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


# What the evaluator has otherwise than ONNX says, for some shapes, types or attributes, or refuses; and in which it takes old versions for new ones.
MISTAKEN = frozenset(
    ("AveragePool", "BatchNormalization", "Col2Im", "ConvTranspose", "DeformConv", "GRU", "GlobalMaxPool", "GridSample", "LSTM",
     "LpNormalization", "LpPool", "MaxPool", "Mean", "Pad", "QLinearConv", "QLinearMatMul", "RNN", "ReduceLogSumExp", "ReduceSumSquare", "Softsign")
)  # fmt: skip
MISTAKEN_BEFORE_13 = frozenset(("Hardmax", "LogSoftmax", "Resize", "Softmax", "Unsqueeze", "Upsample"))
OPERATORS = [CumSum, GatherElements, Loop, LRN, NonMaxSuppression, OneHot]


def mistaken(model: onnx.ModelProto) -> str | None:
    """Return an operator of a model, or of a graph or function in it, that onnx's evaluator has wrong; None if there is none."""
    version = next((opset.version for opset in model.opset_import if not opset.domain), 0)
    wrong = MISTAKEN if version >= 13 else MISTAKEN | MISTAKEN_BEFORE_13
    bodies = [node for function in model.functions for node in function.node]
    return next((node.op_type for node in _all([*model.graph.node, *bodies]) if node.op_type in wrong), None)


def _all(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    """Yield nodes, and those of the graphs in them, of ONNX's own domain."""
    for node in nodes:
        if node.domain in ("", "ai.onnx"):
            yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all(graph.node)
