"""Handlers of operators that change an image's raster: resizing, transposed convolution, padding by copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.call import is_float
from libnpu.compiler.frontend.ops_window import Window, auto_pad_of, convolve, kernel_of, turned
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Value

_ROUND: dict[str, Any] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def resize(call: Call) -> Value:
    """Resize and Upsample: a gather per axis of nearest elements, else a product with a matrix of weights per axis, of integers in float32."""
    x = call.input(0)
    mode, dtype = call.attrs.get("mode", b"nearest").decode(), x.dtype
    if mode != "nearest" and not is_float(x):
        x = call.build.elementwise(("cast_f32", ("in", 0)), [x], np.dtype(np.float32))
    outside: Value | None = None
    whole: dict[int, int] = {}
    for axis, (size, scale) in _targets(call, x).items():
        places = _places(call, x.shape[axis], size, scale, axis)
        outside = _outside(call, outside, places, x, axis)
        if mode == "nearest":
            rounding = call.attrs.get("nearest_mode", b"round_prefer_floor").decode()
            rounding = rounding if call.opset >= 11 and call.op == "Resize" else "floor"
            # Places come from divisions: what is an integer must not end below it.
            exact = np.where(np.abs(places - np.rint(places)) < 1e-6, np.rint(places), places)
            indices = np.clip(_ROUND[rounding](exact), 0, x.shape[axis] - 1).astype(np.int32)
            if repeats := _whole_repeats(indices, x.shape[axis]):
                whole[axis] = repeats
            else:
                x = take(call, x, indices, axis)
        else:
            x = _blend(call, x, _weights(call, mode, x.shape[axis], places, scale), axis)
    x = _repeat(call, x, whole)
    if x.dtype != dtype:
        x = call.build.elementwise(("cast_i32", ("in", 0)), [x], dtype)
    if outside is None:
        return x
    value = float(call.attrs.get("extrapolation_value", 0.0))
    return call.build.elementwise(("where", ("in", 1), ("const", value), ("in", 0)), [x, outside])


def _outside(call: Call, outside: Value | None, places: NDArray[np.float64], x: Value, axis: int) -> Value | None:
    """Return the elements that get extrapolation_value, which only crops do: those that lie outside on some axis."""
    mask = (places < 0) | (places > x.shape[axis] - 1)
    if call.attrs.get("coordinate_transformation_mode", b"") != b"tf_crop_and_resize" or not mask.any():
        return outside
    own = mask.reshape([-1 if index == axis else 1 for index in range(len(x.shape))])
    before = False if outside is None or outside.const is None else outside.const
    return call.build.const(own | before, f"{call.name}.outside")


def take(call: Call, x: Value, indices: NDArray[np.int32], axis: int) -> Value:
    """Return `x` at constant `indices` of an axis; whole repeats of every element are a broadcast."""
    repeats = _whole_repeats(indices, x.shape[axis])
    if repeats:
        return _repeat(call, x, {axis: repeats})
    return call.build.emit("Gather", [x, call.build.const(indices, f"{call.name}.indices")], {"axis": axis})


def _whole_repeats(indices: NDArray[np.int32], size: int) -> int:
    """Return how often `indices` take every element of an axis of `size`, one after the other; 0 where they do not."""
    repeats = len(indices) // size if size else 0
    return repeats if repeats and np.array_equal(indices, np.repeat(np.arange(size), repeats)) else 0


def _repeat(call: Call, x: Value, repeats: dict[int, int]) -> Value:
    """Return `x` with each element repeated along axes, all in one broadcast."""
    if all(count == 1 for count in repeats.values()):
        return x
    each = [(size, repeats.get(axis, 0)) for axis, size in enumerate(x.shape)]
    apart = [dim for size, count in each for dim in ((size, 1) if count else (size,))]
    wide = [dim for size, count in each for dim in ((size, count) if count else (size,))]
    narrow = call.build.reshape(x, tuple(apart))
    return call.build.reshape(
        call.build.expand(narrow, tuple(wide)), tuple(size * max(count, 1) for size, count in each)
    )


def conv_transpose(call: Call) -> Value:
    """ConvTranspose: zeros between the elements, then a convolution with the turned kernel."""
    x, weights, bias, build = call.input(0), call.input(1), call.optional(2), call.build
    rank = len(x.shape) - 2
    group = call.groups()
    kernel_of(call, x, weights)
    if weights.shape[0] != x.shape[1] or x.shape[1] % group:
        raise ModelError(f"node {call.name}: ConvTranspose of {x.name} {x.shape} by {weights.name} {weights.shape}")
    call.expect(2, (weights.shape[1] * group,))
    strides, dilations = call.per_axis("strides", rank, 1, 1), call.per_axis("dilations", rank, 1, 1)
    extra = call.per_axis("output_padding", rank, 0, 0)
    reach = [dilations[i] * (weights.shape[2 + i] - 1) for i in range(rank)]
    cut = _transposed_pads(call, x, strides, reach, extra)
    pads = [(reach[i] - cut[i], reach[i] - cut[rank + i] + extra[i] - (strides[i] - 1)) for i in range(rank)]
    if (
        (
            weights.const is not None
            and (bias is None or bias.const is not None)
            and group == 1
            and rank == 2
            and not any(cut + extra)
        )
        and list(weights.shape[2:]) == strides
        and max(dilations) == 1 < max(strides)
    ):
        return _blocks(call, x, weights, bias, strides)
    if max(strides) > 1:
        sizes = x.shape[2:]
        apart = build.reshape(x, (*x.shape[:2], *(dim for size in sizes for dim in (size, 1))))
        gaps = [(0, 0), (0, 0), *(gap for stride in strides for gap in ((0, 0), (0, stride - 1)))]
        x = build.emit("Pad", [apart], {"pads": gaps, "value": 0.0})
        x = build.reshape(x, (*x.shape[:2], *(size * stride for size, stride in zip(sizes, strides, strict=True))))
    cuts = {
        2 + i: (max(0, -before), x.shape[2 + i] + min(0, after), 1)
        for i, (before, after) in enumerate(pads)
        if before < 0 or after < 0
    }
    if cuts:
        x = build.slice(x, cuts)
    kept = [max(0, pad) for side in zip(*pads, strict=True) for pad in side]
    kernel = turned(build, weights, group)
    return convolve(call, x, kernel, bias, Window(list(kernel.shape[2:]), [1] * rank, dilations, kept), group)


def _blocks(call: Call, x: Value, weights: Value, bias: Value | None, strides: list[int]) -> Value:
    """ConvTranspose whose kernels lie side by side: every pixel becomes the channels of a block of pixels, then that block."""
    build, (rows, columns) = call.build, strides
    assert weights.const is not None
    channels = weights.shape[1]
    kernel = np.ascontiguousarray(weights.const.transpose(2, 3, 1, 0)).reshape(rows * columns * channels, -1, 1, 1)
    if bias is not None:
        assert bias.const is not None
        bias = build.const(np.tile(bias.const, rows * columns), f"{call.name}.bias")
    window = Window([1, 1], [1, 1], [1, 1], [0] * 4)
    made = convolve(call, x, build.const(kernel, f"{call.name}.kernel"), bias, window, 1)
    images, _, height, width = x.shape
    apart = build.reshape(made, (images, rows, columns, channels, height, width))
    return build.reshape(build.transpose(apart, [0, 3, 4, 1, 5, 2]), (images, channels, height * rows, width * columns))


def pad_by_copies(call: Call, x: Value, pads: list[tuple[int, int]], mode: str) -> Value:
    """Pad with elements of `x` itself, axis by axis: modes edge, reflect and wrap."""
    for axis, (before, after) in enumerate(pads):
        if before or after:
            size = x.shape[axis]
            indices = np.pad(np.arange(size, dtype=np.int32), (before, after), mode=mode)  # type: ignore[call-overload]
            sides = [_border(call, x, part, axis) for part in (indices[:before], indices[before + size :]) if len(part)]
            parts = [*sides[: before > 0], x, *sides[before > 0 :]]
            x = call.build.emit("Concat", parts, {"axis": axis})
    return x


def _border(call: Call, x: Value, indices: NDArray[np.int32], axis: int) -> Value:
    """Return `x` at some indices of an axis, from no more of it than they lie in: one element is a broadcast, ascending ones are a slice."""
    first, last = int(indices.min()), int(indices.max())
    part = call.build.slice(x, {axis: (first, last + 1, 1)})
    if first == last:
        return call.build.expand(part, (*x.shape[:axis], len(indices), *x.shape[axis + 1 :]))
    if np.array_equal(indices, np.arange(first, last + 1)):
        return part
    return call.build.emit("Gather", [part, call.build.const(indices - first, f"{call.name}.indices")], {"axis": axis})


def _targets(call: Call, x: Value) -> dict[int, tuple[int, float]]:
    """Return axis -> (output size, scale) for the axes that change."""
    rank = len(x.shape)
    scales: NDArray[Any] | None
    sizes: NDArray[Any] | None
    if call.op == "Upsample":
        given = call.attrs["scales"] if call.opset < 9 else call.array(1, "scales")
        scales, sizes = np.asarray(given, np.float64), None
    elif call.opset < 11:
        scales, sizes = call.array(1, "scales"), None
    else:
        scales = call.array(2, "scales")
        sizes = None if scales is not None and scales.size else _sizes(call)
        scales = None if scales is not None and not scales.size else scales
    axes = call.axes([int(axis) for axis in call.attrs.get("axes", range(rank))], rank)
    policy = call.attrs.get("keep_aspect_ratio_policy", b"stretch").decode()
    if sizes is not None and policy != "stretch":
        one = [float(sizes[index]) / x.shape[axis] for index, axis in enumerate(axes)]
        common = min(one) if policy == "not_larger" else max(one)
        sizes = np.floor([common * x.shape[axis] + 0.5 for axis in axes])
    targets = {}
    for index, axis in enumerate(axes):
        if scales is not None:
            scale = float(scales[index])
            size = int(np.floor(x.shape[axis] * scale))
        elif sizes is not None:
            size = int(sizes[index])
            scale = size / x.shape[axis]
        else:
            raise ModelError(f"node {call.name}: {call.op} has neither scales nor sizes")
        crops = call.attrs.get("coordinate_transformation_mode", b"") == b"tf_crop_and_resize"
        if size != x.shape[axis] or scale != 1.0 or crops:
            targets[axis] = (size, scale)
    return targets


def _sizes(call: Call) -> NDArray[Any] | None:
    """Return the output's sizes on the given axes; computed ones are those that the model declares."""
    shape = call.shape()
    stretched = call.attrs.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if shape is None or call.optional(3) is None or not stretched:
        return call.array(3, "sizes")
    axes = [int(axis) for axis in call.attrs.get("axes", range(len(shape)))]
    return np.asarray(call.implied(3, "sizes", [shape[axis] for axis in axes]))


def _places(call: Call, old: int, new: int, scale: float, axis: int) -> NDArray[np.float64]:
    """Return where each output element lies on the input axis."""
    index = np.arange(new, dtype=np.float64)
    transform = call.attrs.get("coordinate_transformation_mode", b"half_pixel").decode()
    if call.op == "Upsample" or call.opset < 11:
        transform = "asymmetric"
    match transform:
        case "half_pixel":
            return (index + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (index + 0.5) / scale - 0.5 if new > 1 else np.zeros(1)
        case "half_pixel_symmetric":
            return old / 2 * (1 - new / (scale * old)) + (index + 0.5) / scale - 0.5
        case "align_corners":
            return index * (old - 1) / (new - 1) if new > 1 else np.zeros(1)
        case "asymmetric":
            return index / scale
        case "tf_crop_and_resize":
            roi = call.array(1, "roi")
            if roi is None:
                raise ModelError(f"node {call.name}: {call.op} by tf_crop_and_resize lacks its roi")
            rank = len(call.input(0).shape)
            place = call.axes([int(item) for item in call.attrs.get("axes", range(rank))], rank).index(axis)
            start, end = float(roi[place]), float(roi[place + len(roi) // 2])
            if new == 1:
                return np.full(1, 0.5 * (start + end) * (old - 1))
            return start * (old - 1) + index * (end - start) * (old - 1) / (new - 1)
    raise call.unimplemented(f"coordinate_transformation_mode {transform}")


def _weights(call: Call, mode: str, old: int, places: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Return the share [outputs, inputs] that each input element has in each output element."""
    new = len(places)
    matrix = np.zeros((new, old), np.float64)
    smoothed, strict = bool(call.attrs.get("antialias", 0)), bool(call.attrs.get("exclude_outside", 0))
    if mode == "linear" and not (smoothed or strict):
        low = np.clip(np.floor(places), 0, old - 1).astype(np.int64)
        part = np.clip(places, 0, old - 1) - low
        np.add.at(matrix, (np.arange(new), low), 1 - part)
        np.add.at(matrix, (np.arange(new), np.minimum(low + 1, old - 1)), part)
        return matrix
    if mode not in ("linear", "cubic"):
        raise call.unimplemented(f"mode {mode}")
    stretch = min(scale, 1.0) if smoothed else 1.0
    reach = (1 if mode == "linear" else 2) / stretch
    for row, place in enumerate(places):
        taps = np.arange(np.ceil(place - reach), np.floor(place + reach) + 1)
        distance = np.abs(taps - place) * stretch
        share = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(call, distance)
        if strict:
            share = np.where((taps < 0) | (taps >= old), 0, share)
        share = share / share.sum() if smoothed or strict else share
        np.add.at(matrix[row], np.clip(taps, 0, old - 1).astype(np.int64), share)
    return matrix


def _cubic(call: Call, distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of elements at distances up to 2."""
    a = float(call.attrs.get("cubic_coeff_a", -0.75))
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _blend(call: Call, x: Value, matrix: NDArray[np.float64], axis: int) -> Value:
    """Return weighted sums along an axis; one that is not among the last two changes places with the last."""
    rank, build = len(x.shape), call.build
    attrs = {"act": None, "scale": 1.0}
    if rank == 1:
        return build.reshape(_blend(call, build.reshape(x, (1, x.shape[0])), matrix, 1), (len(matrix),))
    if axis < rank - 2:
        order = [rank - 1 if index == axis else axis if index == rank - 1 else index for index in range(rank)]
        return build.transpose(_blend(call, build.transpose(x, order), matrix, rank - 1), order)
    if axis == rank - 1:
        columns = build.const(np.ascontiguousarray(matrix.T).astype(x.dtype), f"{call.name}.columns")
        return build.emit("MatMul", [x, columns, None], attrs)
    rows = build.const(matrix.astype(x.dtype), f"{call.name}.rows")
    return build.emit("MatMul", [rows, x, None], attrs)


def _transposed_pads(call: Call, x: Value, strides: list[int], reach: list[int], extra: list[int]) -> list[int]:
    """Return what the output loses on each side, before on all axes, then after; below 0 it grows by zeros."""
    auto_pad = auto_pad_of(call)
    shape: Any = call.attrs.get("output_shape")
    rank = len(x.shape) - 2
    if auto_pad.startswith("SAME") and shape is None:
        shape = [x.shape[2 + i] * strides[i] for i in range(rank)]
    if shape is None:
        return call.per_axis("pads", 2 * rank, 0, 0) if auto_pad == "NOTSET" else [0] * 2 * rank
    cut = [0] * 2 * rank
    for i in range(rank):
        total = strides[i] * (x.shape[2 + i] - 1) + extra[i] + reach[i] + 1 - int(list(shape)[-rank + i])
        if total < 0:
            cut[rank + i] = total  # as output_padding would
            continue
        smaller, larger = total // 2, total - total // 2
        cut[i], cut[rank + i] = (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)
    return cut
