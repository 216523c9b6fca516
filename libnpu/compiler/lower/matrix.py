"""Nodes of the matrix engine: what a Conv, MatMul, pooling or residual addition is in terms of a `Job` or element-wise tasks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model.dtypes import code_of_numpy

from libnpu.compiler.lower.boxes import in_place, tile_boxes
from libnpu.compiler.lower.dpu_ops import Job, Window, emit_job, ppe_fields, variants
from libnpu.compiler.lower.shave_tiler import elementwise_operands
from libnpu.compiler.lower.view import View
from libnpu.compiler.lower.weights import ActivationWeights, ConstantWeights, NoWeights, WeightSource
from libnpu.compiler.program import DpuPayload
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Node, Value
    from libnpu.compiler.lower.builder import Builder

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))
_MAX_FIELD = 255  # kernel, stride and dilation are 8-bit fields
_NHWC = (0, 2, 3, 1)
_NWHC = (0, 2, 1, 3)  # of a channels-last view: rows and columns exchanged
_BLOCK_ROWS = 4  # pixel rows of a MAC block
_ELTWISE = {"add": C.NPU_DPU_ELTWISE_ADD, "mul": C.NPU_DPU_ELTWISE_MUL}


def _float_input(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    if value.dtype not in _FLOATS or len(value.shape) != 4:
        raise Unsupported(
            f"{node.name} ({node.op}): input {value.dtype} {value.shape}; float16 or float32 [N, C, H, W]"
        )
    return value


def _windows(node: Node, kernel: Sequence[int]) -> tuple[Window, Window]:
    """Return the (y, x) windows of a node with strides, pads and dilations."""
    strides, pads = node.attrs["strides"], node.attrs["pads"]
    dilations = node.attrs.get("dilations", [1, 1])
    for what, numbers in (("kernel", kernel), ("strides", strides), ("dilations", dilations)):
        if max(numbers) > _MAX_FIELD:
            raise Unsupported(f"{node.name} ({node.op}): {what} {list(numbers)}, at most {_MAX_FIELD}")
    y, x = (Window(int(kernel[k]), int(strides[k]), int(dilations[k]), int(pads[k])) for k in (0, 1))
    return y, x


def _windowed_job(
    builder: Builder,
    node: Node,
    op: int,
    kernel: Sequence[int],
    weights: Any,
    groups: int,
    fields: dict[str, Any],
    per_channel: bool,
) -> None:
    """Emit a node that slides windows over [N, C, H, W]; `weights(swapped)` gives its weight source."""
    source, value = _float_input(node), node.outputs[0]
    act, out = builder.home(source), builder.place(value, _NHWC)
    y, x = _windows(node, kernel)
    act, out = act.permuted(_NHWC), out.permuted(_NHWC)
    row_axis, swapped = 1, False
    if act.shape[2] == out.shape[2] == 1 < out.shape[1] and x == Window():  # one column: make it one row
        swapped = True
        act, out, y, x = act.permuted(_NWHC), out.permuted(_NWHC), x, y
    if act.shape[1] == out.shape[1] == 1 < out.shape[2] and y == Window():
        row_axis = 2
        if out.shape[2] % _BLOCK_ROWS == 0 and x.pad == 0 and x.inputs(0, out.shape[2])[1] <= act.shape[2]:
            act, out = _folded(act, out, x)
    emit_job(builder, Job(node, op, act, out, y, x, groups, weights(swapped), fields, per_channel, row_axis))


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


def lower_conv(builder: Builder, node: Node) -> None:
    """Emit a convolution: depthwise when every group has one channel in and out."""
    source, weight = _float_input(node), _constant(node, 1)
    bias = _optional_constant(node, 2)
    groups = int(node.attrs["group"])
    depthwise = groups > 1 and groups == source.shape[1] == weight.shape[0]
    array = weight.astype(source.dtype, copy=False)

    def source_of(swapped: bool) -> WeightSource:
        if depthwise:
            return ConstantWeights(array[:, 0].transpose((2, 1, 0) if swapped else (1, 2, 0)), 2, bias, 1.0)
        return ConstantWeights(array.transpose((0, 3, 2, 1) if swapped else (0, 2, 3, 1)), 0, bias, 1.0)

    op = C.NPU_DPU_DWCONV if depthwise else C.NPU_DPU_CONV
    fields = ppe_fields(node.attrs.get("act"))
    _windowed_job(builder, node, op, weight.shape[2:], source_of, 1 if depthwise else groups, fields, depthwise)


def lower_max_pool(builder: Builder, node: Node) -> None:
    """Emit a max pooling."""
    fields = ppe_fields(node.attrs.get("act"))
    kernel = node.attrs["kernel"]
    _windowed_job(builder, node, C.NPU_DPU_MAXPOOL, kernel, lambda _: NoWeights(), 1, fields, True)


def lower_average_pool(builder: Builder, node: Node) -> None:
    """Emit an average pooling."""
    fields = ppe_fields(node.attrs.get("act"))
    fields["flags"] = C.NPU_DPU_FLAG_COUNT_PAD if node.attrs["count_include_pad"] else 0
    kernel = node.attrs["kernel"]
    _windowed_job(builder, node, C.NPU_DPU_AVGPOOL, kernel, lambda _: NoWeights(), 1, fields, True)


def _constant(node: Node, index: int) -> NDArray[Any]:
    value = node.inputs[index]
    if value is None or value.const is None:
        raise Unsupported(f"{node.name} ({node.op}): input {index} must be a constant")
    return value.const


def _optional_constant(node: Node, index: int) -> NDArray[Any] | None:
    absent = len(node.inputs) <= index or node.inputs[index] is None
    return None if absent else _constant(node, index)


def lower_matmul(builder: Builder, node: Node) -> None:
    """Emit a matrix product: one job when the right operand is one matrix, else one per batch index."""
    left, right, value = node.inputs[0], node.inputs[1], node.outputs[0]
    assert left is not None and right is not None
    if left.dtype not in _FLOATS or min(len(left.shape), len(right.shape)) < 2:
        raise Unsupported(f"{node.name} (MatMul): operands {left.dtype} {left.shape} and {right.shape}")
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    scale, bias = float(node.attrs.get("scale", 1.0)), _optional_constant(node, 2)
    fields = ppe_fields(node.attrs.get("act"), scale)
    a, out = builder.home(left), builder.place(value)
    batch = value.shape[:-2]
    if right.const is not None and prod(right.shape[:-2]) == 1:
        source = ConstantWeights(_transposed(right.const, (k, n), left.dtype), 0, bias, scale)
        flat_out = out.reshaped((prod(batch) * m, n))
        if flat_out is not None and prod(left.shape[:-2]) == prod(batch):
            flat = a.reshaped((prod(batch) * m, k))
            if flat is None:
                flat = builder.dense_home(a, tuple(range(len(a.shape))), node).reshaped((prod(batch) * m, k))
            assert flat is not None
            _matmul(builder, node, flat, flat_out, source, fields)
            return
    stacked = a.broadcast((*batch, m, k))
    b = builder.home(right) if right.const is None else None
    constants: dict[int, ConstantWeights] = {}
    for index in np.ndindex(*batch):
        source_i: WeightSource
        if b is not None:
            matrix = _matrix(b.broadcast((*batch, k, n)), index).permuted((1, 0))
            source_i = ActivationWeights(matrix, ConstantWeights(None, 0, bias, scale))
        else:
            assert right.const is not None
            flat_index = int(np.broadcast_to(np.arange(prod(right.shape[:-2])).reshape(right.shape[:-2]), batch)[index])
            if flat_index not in constants:
                one = right.const.reshape((-1, k, n))[flat_index]
                constants[flat_index] = ConstantWeights(_transposed(one, (k, n), left.dtype), 0, bias, scale)
            source_i = constants[flat_index]
        _matmul(builder, node, _matrix(stacked, index), _matrix(out, index), source_i, fields)


def _transposed(array: NDArray[Any], shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    return array.reshape(shape).T.astype(dtype, copy=False)


def _matrix(view: View, index: tuple[int, ...]) -> View:
    """Return the matrix at a batch index."""
    offset = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=False))
    return View(view.target, offset, view.shape[-2:], view.strides[-2:], view.dtype)


def _matmul(builder: Builder, node: Node, a: View, out: View, source: WeightSource, fields: dict[str, Any]) -> None:
    """Emit out [M, N] = a [M, K] times the source's [N][K]."""
    act = View(a.target, a.offset, (1, 1, *a.shape), (0, 0, *a.strides), a.dtype)
    target = View(out.target, out.offset, (1, 1, *out.shape), (0, 0, *out.strides), out.dtype)
    emit_job(builder, Job(node, C.NPU_DPU_MATMUL, act, target, Window(), Window(), 1, source, fields, row_axis=2))


def lower_eltwise(builder: Builder, node: Node) -> bool:
    """Emit a sum or product of two equal-shaped tensors on the matrix engine; False when it has to go to the SHAVEs."""
    found = _eltwise_operation(builder, node)
    if found is None:
        return False
    op, values, act = found
    order, inputs, out = elementwise_operands(builder, node, values)
    shape = node.outputs[0].shape
    fields = ppe_fields(act) | {"op": op}

    def emit(tiles: list[View], tile: View) -> None:
        _eltwise_task(
            builder, node, [t.broadcast(tile.shape).permuted(order) for t in tiles], tile.permuted(order), fields
        )

    usable = [in_place(v, order) for v in inputs]
    tile_boxes(builder, node, inputs, out, shape, [order] * 3, order, usable, 1, emit)
    return True


def _eltwise_operation(builder: Builder, node: Node) -> tuple[int, list[Value], tuple[Any, ...] | None] | None:
    """Return (operation, operands, activation) when the node is one that the engine has.

    The second operand may be one vector of channels for every pixel, when the first lies channels last.
    """
    expr, act = node.attrs["expr"], None
    if expr[0] == "relu":
        expr, act = expr[1], ("relu",)
    if expr[0] not in _ELTWISE or any(part[0] != "in" for part in expr[1:]):
        return None
    operands = [node.inputs[part[1]] for part in expr[1:]]
    values = [v for v in operands if v is not None and v.const is None]
    value = node.outputs[0]
    values.sort(key=lambda v: v.shape != value.shape)
    if len(values) != 2 or value.dtype not in _FLOATS or any(v.dtype != value.dtype for v in values):
        return None
    first, second = values
    per_channel = (
        len(value.shape) == 4
        and second.shape[-3:] == (value.shape[1], 1, 1)
        and builder.order_for(value, builder.home(first)) == _NHWC
    )
    if first.shape != value.shape or not (second.shape == value.shape or per_channel):
        return None
    return _ELTWISE[expr[0]], values, act


def _eltwise_task(builder: Builder, node: Node, tiles: list[View], tile: View, fields: dict[str, Any]) -> None:
    """Append the tasks of one box: [y][x][z] with dense z; boxes of more than three axes are several tasks."""
    views = [*tiles, tile]
    dims, steps = _three_dims(list(tile.shape), [list(v.strides) for v in views])
    size = tile.dtype.itemsize
    if dims[-1] > 1 and any(step[-1] != size for step in steps):
        dims, steps = [*dims, 1], [[*step, size] for step in steps]
    dims, steps = [1] * (3 - len(dims)) + dims, [[0] * (3 - len(step)) + step for step in steps]
    for index in np.ndindex(*dims[:-3]):
        a, b, out = (
            View(
                v.target,
                v.offset + sum(i * s for i, s in zip(index, step, strict=False)),
                tuple(dims[-3:]),
                tuple(step[-3:]),
                v.dtype,
            )
            for v, step in zip(views, steps, strict=True)
        )
        y, x, z = a.shape
        code = code_of_numpy(out.dtype)
        strides = {
            f"{name}_stride_{axis}": v.strides[k]
            for name, v in (("act", a), ("act2", b), ("out", out))
            for axis, k in (("x", 1), ("y", 0))
        }
        described = {
            "in_x": x, "in_y": y, "in_z": z, "out_x": x, "out_y": y, "out_z": z, **strides,
            "groups": 1, "kernel_x": 1, "kernel_y": 1, "stride_x": 1, "stride_y": 1, "dilation_x": 1, "dilation_y": 1,
            "act_dtype": code, "wt_dtype": code, "out_dtype": code, **fields,
        }  # fmt: skip
        payload = DpuPayload(
            {"act_addr": a.ref, "act2_addr": b.ref, "out_addr": out.ref}, described, list(variants(out.shape, {}))
        )
        builder.dpu(node, payload, [a.access(), b.access()], [out.access()])


def _three_dims(dims: list[int], steps: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Drop leading axes of one element and merge outer axes until three are left, where every operand walks them as one."""
    while len(dims) > 3:
        if dims[0] == 1:
            dims, steps = dims[1:], [step[1:] for step in steps]
        elif dims[1] == 1 or all(step[0] == step[1] * dims[1] for step in steps):
            inner = [step[0] if dims[1] == 1 else step[1] for step in steps]
            dims, steps = [dims[0] * dims[1], *dims[2:]], [[k, *s[2:]] for k, s in zip(inner, steps, strict=True)]
        else:
            break
    return dims, steps
