"""The table of operators: ONNX name -> handler. What is missing here has a schema body, is folded, or is Unimplemented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend import ops_elementwise as element
from libnpu.compiler.frontend import ops_fused as fused
from libnpu.compiler.frontend import ops_index as index
from libnpu.compiler.frontend import ops_integer as integer
from libnpu.compiler.frontend import ops_matrix as matrix
from libnpu.compiler.frontend import ops_movement as movement
from libnpu.compiler.frontend import ops_recurrent as recurrence
from libnpu.compiler.frontend import ops_reduce as reduction
from libnpu.compiler.frontend import ops_resample as resample
from libnpu.compiler.frontend import ops_scatter as scatter
from libnpu.compiler.frontend import ops_signal as signal
from libnpu.compiler.frontend import ops_trigonometry as trigonometry
from libnpu.compiler.frontend import ops_window as window
from libnpu.compiler.frontend.channel_blocks import DOMAIN as BLOCKED_DOMAIN
from libnpu.compiler.frontend.ops_attention import CONTRIBUTED as ATTENTION
from libnpu.compiler.frontend.ops_blocked import BLOCKED
from libnpu.compiler.frontend.ops_blockwise import BLOCKWISE
from libnpu.compiler.frontend.ops_boxes import non_max_suppression
from libnpu.compiler.frontend.ops_deform import deform_conv
from libnpu.compiler.frontend.ops_einsum import einsum
from libnpu.compiler.frontend.ops_features import FEATURES
from libnpu.compiler.frontend.ops_linear import determinant
from libnpu.compiler.frontend.ops_ngrams import tf_idf
from libnpu.compiler.frontend.ops_qlinear import QLINEAR
from libnpu.compiler.frontend.ops_quantised import CONTRIBUTED, QUANTISED, quantize
from libnpu.compiler.frontend.ops_sample import affine_grid, grid_sample
from libnpu.compiler.frontend.source import FOREIGN_DOMAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Value

    Handler = Callable[[Call], Value | list[Value]]

HANDLERS: dict[str, Handler] = {
    "Conv": matrix.conv,
    "ConvTranspose": resample.conv_transpose,
    "Resize": resample.resize,
    "Upsample": resample.resize,
    "MaxPool": matrix.max_pool,
    "AveragePool": matrix.average_pool,
    "GlobalAveragePool": matrix.global_pool,
    "GlobalMaxPool": matrix.global_pool,
    "Col2Im": window.col2im,
    "LpPool": window.lp_pool,
    "LRN": window.lrn,
    "MatMul": matrix.matmul,
    "Gemm": matrix.gemm,
    **dict.fromkeys(element.UNARY, element.unary),
    **dict.fromkeys(element.BINARY, element.binary),
    **dict.fromkeys(element.VARIADIC, element.variadic),
    **dict.fromkeys(element.COMPARISON, element.comparison),
    **dict.fromkeys(element.LOGIC, element.logic),
    **dict.fromkeys(
        ("Elu", "Selu", "Celu", "Softplus", "Softsign", "ThresholdedRelu", "Mish", "Swish", "Gelu"), element.activation
    ),
    "Not": element.logical_not,
    "IsNaN": element.is_nan,
    "IsInf": element.is_inf,
    "Where": element.where,
    "Mod": integer.mod,
    **dict.fromkeys(integer.BITWISE, integer.bitwise),
    "BitwiseNot": integer.bitwise_not,
    "BitShift": integer.bit_shift,
    **dict.fromkeys(trigonometry.FUNCTIONS, trigonometry.trigonometry),
    "Pow": element.power,
    "Cast": element.cast,
    "CastLike": element.cast,
    "Clip": element.clip,
    "LeakyRelu": element.leaky_relu,
    "PRelu": element.prelu,
    "HardSigmoid": element.hard_sigmoid,
    "BatchNormalization": element.batch_norm,
    **dict.fromkeys(reduction.KINDS, reduction.reduce),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"), reduction.reduce),
    "Softmax": reduction.softmax,
    "LogSoftmax": reduction.softmax,
    "ArgMax": index.arg_max,
    "ArgMin": index.arg_max,
    "LpNormalization": reduction.lp_norm,
    "LayerNormalization": reduction.layer_norm,
    "InstanceNormalization": reduction.instance_norm,
    "MeanVarianceNormalization": reduction.mean_variance_norm,
    "Identity": movement.identity,
    "Dropout": movement.identity,
    "Reshape": movement.reshape,
    "Flatten": movement.flatten,
    "Squeeze": movement.squeeze,
    "Unsqueeze": movement.unsqueeze,
    "Transpose": movement.transpose,
    "Slice": movement.slice_,
    "Split": movement.split,
    "Concat": movement.concat,
    "Expand": movement.expand,
    "Tile": movement.tile,
    "Pad": movement.pad,
    "Gather": movement.gather,
    **dict.fromkeys(recurrence.GATES, recurrence.recurrent),
    "GridSample": grid_sample,
    "AffineGrid": affine_grid,
    "QuantizeLinear": quantize,
    "DequantizeLinear": integer.dequantize,
    **QUANTISED,
    "Compress": index.compress,
    "Einsum": einsum,
    "ScatterElements": scatter.scatter_elements,
    "Scatter": scatter.scatter_elements,
    "ScatterND": scatter.scatter_nd,
    "TopK": scatter.top_k,
    "BitCast": element.bit_cast,
    "Trilu": index.trilu,
    "EyeLike": index.eye_like,
    "OneHot": index.one_hot,
    "Hardmax": index.hardmax,
    "CumSum": index.cumulative,
    "CumProd": index.cumulative,
    "GatherElements": index.gather_elements,
    "GatherND": index.gather_nd,
    "ReverseSequence": index.reverse_sequence,
    "ConstantOfShape": index.constant_of_shape,
    "Range": index.range_,
    "TfIdfVectorizer": tf_idf,
    "DFT": signal.dft,
    "STFT": signal.stft,
    **dict.fromkeys(signal.WINDOWS, signal.window_function),
    "CenterCropPad": movement.center_crop_pad,
    "MaxUnpool": scatter.max_unpool,
    "TensorScatter": scatter.tensor_scatter,
    "NonMaxSuppression": non_max_suppression,
    "DeformConv": deform_conv,
    "Det": determinant,
    "DepthToSpace": movement.depth_to_space,
    "SpaceToDepth": movement.space_to_depth,
}
# What onnxruntime adds to the standard's own domain, in the operator sets that do not have it.
ADDED: dict[str, Handler] = {
    "LayerNormalization": reduction.layer_norm,
    "SimplifiedLayerNormalization": fused.simplified_layer_norm,
}
# What com.microsoft had before the standard, as it has it.
EARLIER: dict[str, Handler] = {
    "CDist": fused.distances,
    "ExpandDims": fused.expand_dims,
    "GatherND": index.gather_nd,
    "GridSample": grid_sample,
    "Pad": fused.pad,
    "Trilu": index.trilu,
}
# Operators outside of the standard: (domain, name) -> handler.
FOREIGN: dict[tuple[str, str], Handler] = {
    (domain, name): handler
    for domain, table in (
        (
            FOREIGN_DOMAIN,
            CONTRIBUTED | QLINEAR | ATTENTION | fused.FUSED | BLOCKWISE | recurrence.CONTRIBUTED | EARLIER,
        ),
        (BLOCKED_DOMAIN, BLOCKED),
        ("ai.onnx.ml", FEATURES),
    )
    for name, handler in table.items()
}


def beyond_standard() -> frozenset[tuple[str, str]]:
    """Return (domain, name) of the operators that have a handler and no schema of the standard."""
    return frozenset(FOREIGN) | {("", name) for name in ADDED}
