"""Handlers of the operators that only move data: reshapes, slices, concatenations, gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.call import shape_product
from libnpu.compiler.frontend.infer import infer_shape
from libnpu.compiler.frontend.ops_resample import pad_by_copies
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.frontend.infer import Shape
    from libnpu.compiler.ir import Value


def identity(call: Call) -> list[Value]:
    """Identity and Dropout at inference: the operand itself; Dropout's mask lets everything pass.

    The mask has the operand's type before opset 10, truth values from then on.
    """
    x = call.input(0)
    if call.output_count == 1:
        return [x]
    return [x, call.build.const(np.ones(x.shape, np.bool_ if call.opset >= 10 else x.dtype), f"{call.name}.mask")]


def reshape(call: Call) -> Value:
    x = call.input(0)
    if call.is_computed(1) and (shape := call.shape()) is not None and len(shape) == shape_product(call.input(1).shape):
        whole = [dim if axis < len(x.shape) and x.shape[axis] == dim else -1 for axis, dim in enumerate(shape)]
        zeros = [-1 if dim == -1 or call.attrs.get("allowzero", 0) else 0 for dim in whole]
        call.implied(1, "shape", shape, [-1, zeros])
        return call.build.reshape(x, shape)
    wanted = call.ints(1, "shape", 5)
    if wanted is None:
        raise ModelError(f"node {call.name}: Reshape lacks its shape")
    keep_zero = bool(call.attrs.get("allowzero", 0))
    dims = [x.shape[axis] if dim == 0 and not keep_zero else dim for axis, dim in enumerate(wanted)]
    if -1 in dims:
        rest = shape_product(tuple(dim for dim in dims if dim != -1))
        dims[dims.index(-1)] = shape_product(x.shape) // max(rest, 1)
    if shape_product(tuple(dims)) != shape_product(x.shape):
        raise ModelError(f"node {call.name}: Reshape of {x.name} {x.shape} to {wanted}")
    return call.build.reshape(x, dims)


def flatten(call: Call) -> Value:
    x = call.input(0)
    rank = len(x.shape)
    axis = int(call.attrs.get("axis", 1))
    if not -rank <= axis <= rank:
        raise ModelError(f"node {call.name}: axis {axis} of Flatten is outside of rank {rank}")
    axis = axis + rank if axis < 0 else axis
    return call.build.reshape(x, (shape_product(x.shape[:axis]), shape_product(x.shape[axis:])))


def squeeze(call: Call) -> Value:
    x = call.input(0)
    if call.is_computed(1) and (shape := call.shape()) is not None:
        _implied_axes(call, x.shape, len(x.shape) - len(shape))
        return call.build.reshape(x, shape)
    axes = call.ints(1, "axes", 13)
    rank = len(x.shape)
    dropped = [i for i, dim in enumerate(x.shape) if dim == 1] if axes is None else call.axes(axes, rank)
    if any(x.shape[axis] != 1 for axis in dropped):
        raise ModelError(f"node {call.name}: Squeeze of axes {dropped} of {x.name} {x.shape}")
    return call.build.reshape(x, [dim for axis, dim in enumerate(x.shape) if axis not in dropped])


def unsqueeze(call: Call) -> Value:
    x = call.input(0)
    if call.is_computed(1) and (shape := call.shape()) is not None:
        _implied_axes(call, shape, len(shape) - len(x.shape))
        return call.build.reshape(x, shape)
    axes = call.ints(1, "axes", 13) or []
    rank = len(x.shape) + len(axes)
    inserted = call.axes(axes, rank)
    dims = iter(x.shape)
    return call.build.reshape(x, [1 if axis in inserted else next(dims) for axis in range(rank)])


def _implied_axes(call: Call, shape: Shape, count: int) -> None:
    """Let the program check that each of `count` computed axes is one of a single element."""
    ones = [axis for axis, dim in enumerate(shape) if dim == 1]
    places = [place for axis in ones for place in (axis, axis - len(shape))]
    call.implied(1, "axes", places[:1] * count if ones else None, places[1:])


def transpose(call: Call) -> Value:
    x = call.input(0)
    perm = [int(axis) for axis in call.attrs.get("perm", range(len(x.shape))[::-1])]
    if sorted(perm) != list(range(len(x.shape))):
        raise ModelError(f"node {call.name}: perm {perm} of Transpose is no permutation of {len(x.shape)} axes")
    return call.build.transpose(x, perm)


def slice_(call: Call) -> Value:
    x = call.input(0)
    starts, stops = call.ints(1, "starts", 10), call.ints(2, "ends", 10)
    if starts is None or stops is None:
        raise ModelError(f"node {call.name}: Slice lacks its bounds")
    axes = call.axes(call.ints(3, "axes", 10) or list(range(len(starts))), len(x.shape))
    steps = (call.ints(4, "steps", 10) if call.opset >= 10 else None) or [1] * len(starts)
    bounds, backward = {}, {}
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        begin, end, _ = slice(start, stop, step).indices(x.shape[axis])
        if step < 0:
            backward[axis] = np.arange(begin, end, step, dtype=np.int32)
        else:
            bounds[axis] = (begin, max(begin, end), step)
    for axis, places in backward.items():
        x = call.build.emit("Gather", [x, call.build.const(places, f"{call.name}.places")], {"axis": axis})
    return call.build.slice(x, bounds)


def center_crop_pad(call: Call) -> Value:
    """CenterCropPad: the middle of what is too long, and zeros around what is too short."""
    x, build = call.input(0), call.build
    rank = len(x.shape)
    axes = call.axes([int(axis) for axis in call.attrs.get("axes", range(rank))], rank)
    declared = call.shape()
    wanted = call.implied(1, "shape", [declared[axis] for axis in axes] if declared else None)
    pads, bounds = [(0, 0)] * rank, {}
    for axis, want in zip(axes, wanted, strict=True):
        less = x.shape[axis] - want
        if less > 0:
            bounds[axis] = (less // 2, less // 2 + want, 1)
        else:
            pads[axis] = (-less // 2, -less - -less // 2)
    if bounds:
        x = build.slice(x, bounds)
    return build.emit("Pad", [x], {"pads": pads, "value": 0.0}) if any(map(any, pads)) else x


def split(call: Call) -> list[Value]:
    x = call.input(0)
    axis = call.axis(int(call.attrs.get("axis", 0)), len(x.shape))
    if call.opset >= 13 and call.optional(1) is not None:
        shapes = [call.shape(index) for index in range(call.output_count)]
        declared = [shape[axis] for shape in shapes if shape is not None and len(shape) == len(x.shape)]
        sizes: list[int] | None = call.implied(1, "split", declared if len(declared) == len(shapes) else None)
    else:
        sizes = call.ints(1, "split", 13)
    if sizes is None:
        count = int(call.attrs.get("num_outputs", call.output_count))
        each = -(-x.shape[axis] // count)
        sizes = [min(each, x.shape[axis] - each * index) for index in range(count)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise ModelError(f"node {call.name}: Split of {x.name} {x.shape} on axis {axis} into {sizes}")
    edges = np.cumsum([0, *sizes]).tolist()
    return [call.build.slice(x, {axis: (edges[i], edges[i + 1], 1)}) for i in range(len(sizes))]


def concat(call: Call) -> Value:
    values = [call.input(index) for index in range(len(call.inputs))]
    axis = call.axis(int(call.attrs["axis"]), len(values[0].shape))
    infer_shape("Concat", [value.shape for value in values], {"axis": axis})  # those without elements must fit too
    present = [value for value in values if value.shape[axis]] or values[:1]
    return present[0] if len(present) == 1 else call.build.emit("Concat", present, {"axis": axis})


def expand(call: Call) -> Value:
    x = call.input(0)
    wanted: Shape | list[int] | None = call.shape() if call.is_computed(1) else None
    if wanted is not None:
        padded = (1,) * (len(wanted) - len(x.shape)) + x.shape
        last = len(wanted) - shape_product(call.input(1).shape)  # axes that only the operand has
        grown = [1 if dim == own else dim for dim, own in zip(wanted, padded, strict=True)]
        call.implied(1, "shape", wanted[last:], [grown[last:]])
    else:
        wanted = call.ints(1, "shape", 8) or []
    return call.build.expand(x, np.broadcast_shapes(x.shape, tuple(wanted)))


def tile(call: Call) -> Value:
    """Tile: a new axis of the repeats before each axis, broadcast, merged."""
    x = call.input(0)
    shape = call.shape()
    if call.is_computed(1) and shape is not None and len(shape) == len(x.shape) and 0 not in x.shape:
        repeats = call.implied(1, "repeats", [after // dim for after, dim in zip(shape, x.shape, strict=True)])
    else:
        repeats = call.ints(1, "repeats", 6) or []
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        raise ModelError(f"node {call.name}: Tile of {x.name} {x.shape} by {repeats}")
    split_shape = [size for dim in x.shape for size in (1, dim)]
    wide = [size for dim, repeat in zip(x.shape, repeats, strict=True) for size in (repeat, dim)]
    tiled = call.build.expand(call.build.reshape(x, split_shape), wide)
    return call.build.reshape(tiled, [dim * repeat for dim, repeat in zip(x.shape, repeats, strict=True)])


def pad(call: Call) -> Value:
    """Pad with a constant or with copies; negative pads cut."""
    x = call.input(0)
    mode = call.attrs.get("mode", b"constant").decode()
    amounts = call.ints(1, "pads", 11) or []
    value = call.scalar(2, "value", 11) or 0
    rank = len(x.shape)
    given = call.ints(3, "axes", 18) if call.opset >= 18 else None
    axes = call.axes(given, rank) if given is not None else list(range(rank))
    pads = {axis: (amounts[i], amounts[len(axes) + i]) for i, axis in enumerate(axes)}
    cuts = {
        axis: (max(0, -before), x.shape[axis] - max(0, -after), 1)
        for axis, (before, after) in pads.items()
        if before < 0 or after < 0
    }
    if cuts:
        x = call.build.slice(x, cuts)
    grown = [(max(0, pads.get(axis, (0, 0))[0]), max(0, pads.get(axis, (0, 0))[1])) for axis in range(rank)]
    if mode != "constant":
        return pad_by_copies(call, x, grown, mode)
    return call.build.emit("Pad", [x], {"pads": grown, "value": float(value)}) if np.any(grown) else x


def gather(call: Call) -> Value:
    """Gather; negative indices count from the end. One constant index is a slice."""
    data, indices = call.input(0), call.input(1)
    axis = call.axis(int(call.attrs.get("axis", 0)), len(data.shape))
    size = data.shape[axis]
    build = call.build
    if size == 0 and shape_product(indices.shape):
        raise ModelError(f"node {call.name}: Gather index outside of axis {axis} of {data.name} {data.shape}")
    if indices.const is not None:
        wrapped = np.where(indices.const < 0, indices.const + size, indices.const).astype(np.int32)
        if wrapped.size and (wrapped.min() < 0 or wrapped.max() >= size):
            raise ModelError(f"node {call.name}: Gather index outside of axis {axis} of {data.name} {data.shape}")
        if wrapped.size == 1:
            one = build.slice(data, {axis: (int(wrapped.reshape(-1)[0]), int(wrapped.reshape(-1)[0]) + 1, 1)})
            return build.reshape(one, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))
        indices = build.const(wrapped, indices.name)
    elif indices.dtype.kind != "u":
        below = ("lt", ("in", 0), ("const", 0))
        indices = build.elementwise(("where", below, ("add", ("in", 0), ("const", size)), ("in", 0)), [indices])
    return build.emit("Gather", [data, indices], {"axis": axis})


def depth_to_space(call: Call) -> Value:
    x = call.input(0)
    n, c, h, w = x.shape
    block = int(call.attrs["blocksize"])
    column_row = call.attrs.get("mode", b"DCR") == b"CRD"
    depth = c // block**2
    split_shape = (n, depth, block, block, h, w) if column_row else (n, block, block, depth, h, w)
    perm = [0, 1, 4, 2, 5, 3] if column_row else [0, 3, 4, 1, 5, 2]
    turned = call.build.transpose(call.build.reshape(x, split_shape), perm)
    return call.build.reshape(turned, (n, depth, h * block, w * block))


def space_to_depth(call: Call) -> Value:
    x = call.input(0)
    n, c, h, w = x.shape
    block = int(call.attrs["blocksize"])
    column_row = call.attrs.get("mode", b"DCR") == b"CRD"
    cells = call.build.reshape(x, (n, c, h // block, block, w // block, block))
    turned = call.build.transpose(cells, [0, 1, 3, 5, 2, 4] if column_row else [0, 3, 5, 1, 2, 4])
    return call.build.reshape(turned, (n, c * block**2, h // block, w // block))
