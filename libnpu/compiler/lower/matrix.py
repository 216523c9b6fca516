"""Nodes of the matrix engine: what a Conv, MatMul, pooling or residual addition is in terms of a `Job` or element-wise tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.compiler.ir import SMALL_INTEGERS
from libnpu.compiler.lower.builder import SMALL
from libnpu.compiler.lower.chain import Chain, Link
from libnpu.compiler.lower.dpu_ops import Job, Window, emit_job
from libnpu.compiler.lower.eltwise import Follower, following
from libnpu.compiler.lower.invariant import MAX_FIELD, ppe_fields
from libnpu.compiler.lower.movement import order_in_views
from libnpu.compiler.lower.passes import passes_of
from libnpu.compiler.lower.pooling import in_two_steps
from libnpu.compiler.lower.tail import Head, tail_of
from libnpu.compiler.lower.view import View, dense
from libnpu.compiler.lower.weights import ActivationWeights, ConstantWeights, NoWeights, WeightSource
from libnpu.compiler.program import DdrKind, DdrTensor
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Ending, Node, Value
    from libnpu.compiler.lower.builder import Builder

    _Table = tuple[NDArray[Any] | None, float | NDArray[Any], NDArray[Any] | None]

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))
_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_NHWC = (0, 2, 3, 1)
_NWHC = (0, 2, 1, 3)  # of a channels-last view: rows and columns exchanged
_YNXZ = (1, 0, 2, 3)
_BLOCK_ROWS = 4  # pixel rows of a MAC block
_STRIPS = 11  # of a right matrix that is transposed in CMX, to a tile, about: 22 columns of 4096 float16 in 1,936 KiB were measured


def _image_input(builder: Builder, node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    if not _is_operand(builder, node, value) or len(value.shape) != 4:
        wanted = "int8 or uint8" if _is_integer(node) else "float16 or float32"
        raise Unsupported(f"{node.name} ({node.op}): input {value.dtype} {value.shape}; {wanted} [N, C, H, W]")
    return value


def _is_integer(node: Node) -> bool:
    return "zeros" in node.attrs


def _is_operand(builder: Builder, node: Node, value: Value) -> bool:
    """Whether the engine takes `value` in this node."""
    return value.dtype in _BYTES if _is_integer(node) else value.dtype in _FLOATS or builder.is_quantised(value)


def _weights_of(array: NDArray[Any], source: Value, node: Node) -> NDArray[Any]:
    """Return constant weights in the type that goes with `source`: of integers their own."""
    return array if _is_integer(node) or array.dtype in SMALL_INTEGERS else array.astype(source.dtype, copy=False)


def _fields(node: Node, scale: float = 1.0) -> dict[str, Any]:
    """Return post-processing and zero points of a product."""
    ending: Ending | None = node.attrs.get("ending")
    fields = ppe_fields(node.attrs.get("act") if ending is None else ending.act, scale)
    if _is_integer(node):
        fields["act_zero_point"], fields["wt_zero_point"] = node.attrs["zeros"]
    weights = node.inputs[1]
    if weights is not None and weights.dtype in SMALL_INTEGERS:
        fields["flags"] = C.NPU_DPU_FLAG_WEIGHTS_4BIT
    if ending is not None:
        fields["out_zero_point"] = ending.zero
    return fields


def _table(node: Node, channels: int, scale: float = 1.0) -> _Table:
    """Return bias, scale and offset of the weight table of a product: of one without an ending its bias, if any, and one scale."""
    ending: Ending | None = node.attrs.get("ending")
    if ending is None:
        return _optional_constant(node, 2), scale, None
    bias, scales, offset = (
        np.broadcast_to(np.asarray((0,) if numbers is None else numbers, dtype), channels)
        for numbers, dtype in ((ending.biases, np.float32), (ending.scales, np.float32), (ending.offsets, np.int32))
    )
    return bias, scales, offset


def _windows(node: Node, kernel: Sequence[int]) -> tuple[Window, Window]:
    """Return the (y, x) windows of a node with strides, pads and dilations."""
    strides, pads = node.attrs["strides"], node.attrs["pads"]
    dilations = node.attrs.get("dilations", [1, 1])
    y, x = (Window(int(kernel[k]), int(strides[k]), int(dilations[k]), int(pads[k])) for k in (0, 1))
    return y, x


def _check_windows(job: Job) -> None:
    y, x = job.y, job.x
    numbers = {"kernel": [y.kernel, x.kernel], "strides": [y.stride, x.stride], "dilations": [y.dilation, x.dilation]}
    for what, each in numbers.items():
        if max(each) > MAX_FIELD:
            raise Unsupported(f"{job.node.name} ({job.node.op}): {what} {each}, at most {MAX_FIELD}")


@dataclass(slots=True, frozen=True)
class _Sliding:
    """The job of a node that slides windows over [N, C, H, W], as whole planes; `weights(swapped)` gives its weight source."""

    job: Job
    weights: Callable[[bool], WeightSource]

    @property
    def alone(self) -> Job:
        """The job that does the same in fewer blocks, where pixels can lie otherwise: as rows of a matmul, or folded."""
        job = self.job
        act, out, y, x, follower = job.act, job.out, job.y, job.x, job.follower
        if job.head is not None:
            return job
        if job.op == C.NPU_DPU_CONV and job.groups == 1 and y == x == Window():
            flat = _pixels(act, out, follower)
            if flat is not None:
                act, out, follower = flat
                return replace(job, op=C.NPU_DPU_MATMUL, act=act, out=out, row_axis=2, follower=follower)
        row_axis, weights = 1, job.weights
        if act.shape[2] == out.shape[2] == 1 < out.shape[1] and x == Window():  # one column: make it one row
            weights = self.weights(True)
            act, out, y, x = act.permuted(_NWHC), out.permuted(_NWHC), x, y
            if follower is not None:
                follower = replace(follower, other=follower.other.permuted(_NWHC))
        is_row = act.shape[1] == out.shape[1] == 1 and y == Window()
        if is_row and act.shape[0] >= _BLOCK_ROWS:  # the rows of many images: make them one image
            act, out = act.permuted(_YNXZ), out.permuted(_YNXZ)
            if follower is not None:
                follower = replace(follower, other=follower.other.permuted(_YNXZ))
        elif is_row and out.shape[2] > 1:
            row_axis = 2
            if (
                follower is None
                and out.shape[2] % _BLOCK_ROWS == 0
                and x.pad == 0
                and x.inputs(0, out.shape[2])[1] <= act.shape[2]
            ):
                act, out = _folded(act, out, x)
        return replace(job, act=act, out=out, y=y, x=x, weights=weights, row_axis=row_axis, follower=follower)


def _sliding(
    builder: Builder,
    node: Node,
    op: int,
    kernel: Sequence[int],
    weights: Callable[[bool], WeightSource],
    groups: int,
    fields: dict[str, Any],
    per_channel: bool,
) -> list[_Sliding]:
    source, value = _image_input(builder, node), node.outputs[0]
    found = following(builder, node, _NHWC)
    tail = tail_of(builder, value) if found is None else None
    if tail is not None:
        builder.done(tail.node)
        value = tail.node.outputs[0]
    follower, out = found if found is not None else (None, builder.place(value, _NHWC))
    y, x = _windows(node, kernel)
    head = None
    if (before := builder.deferred.get(source)) is not None:
        operand = before.inputs[0]
        assert operand is not None
        head = Head(before, builder.home(operand).permuted(_NHWC))
        nowhere = DdrTensor(source.name, source.nbytes, DdrKind.SCRATCH)
        builder.homes[source] = dense(nowhere, source.shape, source.dtype, _NHWC)
    act, out = builder.home(source).permuted(_NHWC), out.permuted(_NHWC)
    if follower is not None:
        follower = replace(follower, other=follower.other.permuted(_NHWC))
    job = Job(node, op, act, out, y, x, groups, weights(False), fields, per_channel, 1, follower, tail, head)
    jobs = in_two_steps(builder, job) or (job,)
    for each in jobs:
        _check_windows(each)
    return [_Sliding(each, weights) for each in jobs]


def _pixels(act: View, out: View, follower: Follower | None) -> tuple[View, View, Follower | None] | None:
    """Lay all pixels in one row, as the matmul that a pointwise convolution is; None when they do not lie at one distance.

    A matmul fills MAC blocks with 16 pixels of the row, a convolution with 4 x 4 of the plane, which its edges cut.
    """

    def row(view: View) -> View | None:
        return view.reshaped((1, 1, prod(view.shape[:3]), view.shape[3]))

    flat_act, flat_out = row(act), row(out)
    if follower is not None:
        other = row(follower.other)
        if other is None:
            return None
        follower = replace(follower, other=other)
    return None if flat_act is None or flat_out is None else (flat_act, flat_out, follower)


def _folded(act: View, out: View, x: Window) -> tuple[View, View]:
    """Lay one long row of pixels as the rows of a MAC block; the input's rows overlap by the window, in place.

    A row of one pixel's height would leave three quarters of the block idle.
    """
    columns = out.shape[2] // _BLOCK_ROWS
    low, high = x.inputs(0, columns)
    n, _, _, in_channels = act.shape
    shift = columns * x.stride
    folded_act = View(
        act.target,
        act.offset,
        (n, _BLOCK_ROWS, high - low, in_channels),
        (act.strides[0], shift * act.strides[2], act.strides[2], act.strides[3]),
        act.dtype,
    )
    folded_out = View(
        out.target,
        out.offset,
        (n, _BLOCK_ROWS, columns, out.shape[3]),
        (out.strides[0], columns * out.strides[2], out.strides[2], out.strides[3]),
        out.dtype,
    )
    return folded_act, folded_out


def lower_sliding(builder: Builder, node: Node) -> None:
    """Emit a convolution or pooling with the sum that follows it; where its result is large, with those that read that."""
    chain = Chain(builder)
    nodes: list[Node] = []
    then: Node | None = node
    while then is not None:
        for link in _links(builder, then):
            if not chain.extend(link):
                for other in nodes:
                    builder.done(other)
                nodes = []
        nodes.append(then)
        then = _next_in_chain(builder, chain.last, then)
    chain.emit()
    for other in nodes:
        builder.done(other)


def defers(builder: Builder, node: Node) -> bool:
    """Leave an element-wise node to the node of the matrix engine that alone reads its large result: that makes the pieces it takes.

    False where it has to be lowered by itself.
    """
    value, then = node.outputs[0], builder.only_consumer(node.outputs[0])
    if then is None or then.op not in _SLIDING or then.inputs[0] is not value or len(node.inputs) > 1:
        return False
    source = node.inputs[0]
    assert source is not None
    is_large = not builder.stays_in_cmx(value.nbytes)
    if (
        not (builder.keeps_values and builder.fuses and is_large)
        or len(value.shape) != 4
        or source.shape != value.shape
    ):
        return False
    if builder.home(source).in_cmx or passes_of(node, builder.profile, builder.tiles) is not None:
        return False
    builder.deferred[value] = node
    return True


def _links(builder: Builder, node: Node) -> list[Link]:
    is_shared = not builder.reads_alone(node, _image_input(builder, node))
    steps = _SLIDING[node.op](builder, node)
    return [Link(step.job, step.alone, is_shared and step is steps[0]) for step in steps]


def _next_in_chain(builder: Builder, job: Job, node: Node) -> Node | None:
    """Return a node that may take the result of a job band by band; what others read too only where windows take each row once.

    What fits in CMX as a whole is for all to read, unless the DPUs of all tiles but one would read it from far.
    """
    value = job.last_node.outputs[0]
    if not (builder.keeps_values and builder.fuses) or (job.out.in_cmx and not builder.cannot_be_everywhere(job.out)):
        return None
    for then in builder.readers(value):
        if then.op not in _SLIDING or then.inputs[0] is not value:
            continue
        weight = then.inputs[1] if len(then.inputs) > 1 else None
        kernel = weight.shape[2:] if weight is not None else then.attrs["kernel"]
        each_once = _takes_rows_once(then, kernel, job.out.shape[1]) and not job.out.in_cmx
        if (each_once or builder.reads_alone(then, value)) and builder.may_be_followed(then):
            return then
    return None


def _takes_rows_once(node: Node, kernel: Sequence[int], rows: int) -> bool:
    """Whether the windows of a node along the rows lie side by side, from the first of `rows` to the last."""
    is_global = kernel[0] == rows
    step = kernel[0] if is_global else node.attrs["strides"][0]
    is_dense = kernel[0] == 1 or node.attrs.get("dilations", [1])[0] == 1
    return is_dense and not any(node.attrs["pads"][::2]) and step == kernel[0] and rows % step == 0


def _conv(builder: Builder, node: Node) -> list[_Sliding]:
    """Return a convolution: depthwise when every group has one channel in and out."""
    source, weight = _image_input(builder, node), _constant(node, 1)
    bias, scale, offset = _table(node, weight.shape[0])
    groups = int(node.attrs["group"])
    depthwise = groups > 1 and groups == source.shape[1] == weight.shape[0]
    array = _weights_of(weight, source, node)

    def source_of(swapped: bool) -> WeightSource:
        if depthwise:
            return ConstantWeights(array[:, 0].transpose((2, 1, 0) if swapped else (1, 2, 0)), 2, bias, scale, offset)
        return ConstantWeights(array.transpose((0, 3, 2, 1) if swapped else (0, 2, 3, 1)), 0, bias, scale, offset)

    op = C.NPU_DPU_DWCONV if depthwise else C.NPU_DPU_CONV
    fields = _fields(node)
    return _sliding(builder, node, op, weight.shape[2:], source_of, 1 if depthwise else groups, fields, depthwise)


def _max_pool(builder: Builder, node: Node) -> list[_Sliding]:
    fields = ppe_fields(node.attrs.get("act"))
    return _sliding(builder, node, C.NPU_DPU_MAXPOOL, node.attrs["kernel"], lambda _: NoWeights(), 1, fields, True)


def _average_pool(builder: Builder, node: Node) -> list[_Sliding]:
    fields = ppe_fields(node.attrs.get("act"))
    fields["flags"] = C.NPU_DPU_FLAG_COUNT_PAD if node.attrs["count_include_pad"] else 0
    return _sliding(builder, node, C.NPU_DPU_AVGPOOL, node.attrs["kernel"], lambda _: NoWeights(), 1, fields, True)


_SLIDING = {"Conv": _conv, "ConvInteger": _conv, "MaxPool": _max_pool, "AvgPool": _average_pool}


def _constant(node: Node, index: int) -> NDArray[Any]:
    value = node.inputs[index]
    if value is None or value.const is None:
        raise Unsupported(f"{node.name} ({node.op}): input {index} must be a constant")
    return value.const


def _optional_constant(node: Node, index: int) -> NDArray[Any] | None:
    absent = len(node.inputs) <= index or node.inputs[index] is None
    return None if absent else _constant(node, index)


def lower_matmul(builder: Builder, node: Node) -> None:
    """Emit a matrix product: one job when an operand is one matrix, else one per batch index."""
    left, right, value = node.inputs[0], node.inputs[1], node.outputs[0]
    assert left is not None and right is not None
    if not _is_operand(builder, node, left) or min(len(left.shape), len(right.shape)) < 2:
        raise Unsupported(f"{node.name} ({node.op}): operands {left.dtype} {left.shape} and {right.shape}")
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    factor = float(node.attrs.get("scale", 1.0))
    table, fields = _table(node, n, factor), _fields(node, factor)
    batch = value.shape[:-2]
    is_one = right.const is not None and prod(right.shape[:-2]) == 1 and prod(left.shape[:-2]) == prod(batch)
    if is_one and _one_matmul(builder, node, _shared_weights(builder, node, (k, n), table), fields):
        return
    if table[0] is None and _one_left(builder, node, fields, factor):
        return
    a, out = builder.home(left), builder.place(value, order_in_views(builder, value))
    if left.const is not None and prod(batch) > 1 and a.nbytes <= builder.tile_bytes * SMALL:
        a = builder.fetch(a, tuple(range(len(a.shape))), node, "left")
    stacked = a.broadcast((*batch, m, k))
    b = None
    if right.const is None:
        b = builder.home(right)
        if (prod(batch) > 1 or _comes_in_short_runs(builder, a, b)) and k > 1 and b.strides[-2] != b.dtype.itemsize:
            # All matrices at once, in the order in which the engine reads them.
            b = builder.transposed_matrices(right, node)
    constants: dict[int, ConstantWeights] = {}
    for index in np.ndindex(*batch):
        source_i: WeightSource
        if b is not None:
            matrix = _matrix(b.broadcast((*batch, k, n)), index).permuted((1, 0))
            source_i = ActivationWeights(matrix, ConstantWeights(None, 0, *table))
        else:
            assert right.const is not None
            flat_index = int(np.broadcast_to(np.arange(prod(right.shape[:-2])).reshape(right.shape[:-2]), batch)[index])
            if flat_index not in constants:
                one = right.const.reshape((-1, k, n))[flat_index]
                constants[flat_index] = ConstantWeights(_transposed(_weights_of(one, left, node), (k, n)), 0, *table)
            source_i = constants[flat_index]
        _matmul(builder, node, _matrix(stacked, index), _matrix(out, index), source_i, fields)


def _comes_in_short_runs(builder: Builder, a: View, b: View) -> bool:
    """Whether a right matrix that is transposed for each group of rows comes in runs of less than an access of DDR, several times.

    Then it is transposed once, in DDR. That the rows take it several times, from half of CMX on, was chosen by trials.
    """
    run_bytes = builder.tile_bytes // _STRIPS // b.shape[-2]
    does_not_fit = a.nbytes > builder.cmx_bytes // 2 and b.nbytes > builder.tile_bytes
    return does_not_fit and run_bytes < builder.profile.memory_system.dram.access_bytes


def _shared_weights(builder: Builder, node: Node, shape: tuple[int, int], table: _Table) -> ConstantWeights:
    """Return the weights of a product: those of an earlier node where all that makes them is the same."""
    left, right, *rest = node.inputs
    assert left is not None and right is not None and right.const is not None
    key = (node.op, right, left.dtype, node.attrs.get("scale", 1.0), node.attrs.get("ending"), *rest)
    if key not in builder.weights:
        array = _transposed(_weights_of(right.const, left, node), shape)
        builder.weights[key] = ConstantWeights(array, 0, *table, builder.stays(right))
    return builder.weights[key]


def _one_matmul(builder: Builder, node: Node, source: WeightSource, fields: dict[str, Any]) -> bool:
    """Emit all batches as the rows of one matrix, with a sum that follows; False when the output's rows are not at one distance."""
    left, value = node.inputs[0], node.outputs[0]
    assert left is not None
    a, rank = builder.home(left).broadcast((*value.shape[:-1], left.shape[-1])), len(value.shape)
    rows, order = prod(value.shape[:-1]), tuple(range(rank))

    def matrix(view: View) -> View | None:
        return view.permuted(order).reshaped((rows, view.shape[-1]))

    if builder.chooses_order(value) and len(left.shape) == rank and a.order()[-1] == rank - 1:
        order = a.order()  # rows in any order are rows
    found = following(builder, node, order, lambda view: matrix(view) is not None)
    follower, home = found if found is not None else (None, builder.place(value, order))
    out = matrix(home)
    if out is None:
        return False
    act = matrix(a) or matrix(builder.dense_home(a, order, node))
    assert act is not None
    if follower is not None:
        follower = replace(follower, other=follower.other.permuted(order))
    _matmul(builder, node, act, out, source, fields, follower)
    return True


def _one_left(builder: Builder, node: Node, fields: dict[str, Any], scale: float) -> bool:
    """Emit the one left matrix times the columns of all right ones side by side, in a product without a bias.

    False where those, or the result, cannot lie so.
    """
    left, right, value = node.inputs[0], node.inputs[1], node.outputs[0]
    assert left is not None and right is not None
    rank, (m, k) = len(value.shape), left.shape[-2:]
    batch, columns = tuple(range(rank - 2)), prod(value.shape) // m
    each_has_one = prod(left.shape[:-2]) == 1 < prod(value.shape[:-2]) == prod(right.shape[:-2])
    if not each_has_one or len(right.shape) != rank or right.const is not None:
        return False
    a, matrices = builder.home(left), builder.home(right)
    rows = a.reshaped((m, k))
    if not builder.chooses_order(value) or rows is None:
        return False
    if k > 1 and matrices.strides[-2] != matrices.dtype.itemsize:
        matrices = builder.transposed_matrices(right, node)
    turned = matrices.permuted((*batch, rank - 1, rank - 2)).reshaped((columns, k))
    if turned is None:
        return False
    order = (rank - 2, *batch, rank - 1)  # rows outside, so that those of all matrices are one
    out = builder.place(value, order).permuted(order).reshaped((m, columns))
    assert out is not None
    _matmul(builder, node, rows, out, ActivationWeights(turned, ConstantWeights(None, 0, None, scale)), fields)
    return True


def _transposed(array: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    return array.reshape(shape).T


def _matrix(view: View, index: tuple[int, ...]) -> View:
    """Return the matrix at a batch index."""
    offset = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=False))
    return View(view.target, offset, view.shape[-2:], view.strides[-2:], view.dtype)


def _matmul(
    builder: Builder,
    node: Node,
    a: View,
    out: View,
    source: WeightSource,
    fields: dict[str, Any],
    follower: Follower | None = None,
) -> None:
    """Emit out [M, N] = a [M, K] times the source's [N][K]. A follower's operand has as many elements as `out`."""
    act, target = _one_image(a), _one_image(out)
    if follower is not None:
        other = follower.other.reshaped(out.shape)
        assert other is not None
        follower = replace(follower, other=_one_image(other))
    window = Window()
    emit_job(builder, Job(node, C.NPU_DPU_MATMUL, act, target, window, window, 1, source, fields, False, 2, follower))


def _one_image(matrix: View) -> View:
    """Return a matrix as [1][1][rows][columns]."""
    return replace(matrix, shape=(1, 1, *matrix.shape), strides=(0, 0, *matrix.strides))
