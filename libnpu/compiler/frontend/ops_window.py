"""Windows over images of any rank: their sizes, and convolution and pooling tap by tap, for what the matrix engine does not do.

A tap is one place of the kernel: a strided box of the padded image, which is a view. Pooling combines the taps element by
element; a convolution stacks them beside the channels and is one matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.infer import window_count
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.frontend.infer import Shape
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
MAX_FIELD = 255  # kernel, stride and dilation of npu_dpu_invariant are 8 bits wide
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
_FINITE_SQUARES = 1 / 256  # the square of the largest float16 times this is one
_LARGEST_POWER = 2.0**15  # of two in float16
MAX_TAPS = 1024  # chosen: a graph of so many nodes for one operator


@dataclass(slots=True)
class Window:
    """Kernel, strides, dilations by spatial axis; pads of all axes before, then after. `extra` of the last are ceil_mode's."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    extra: list[int] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """Spatial axes."""
        return len(self.kernel)

    @property
    def suits_engine(self) -> bool:
        """Whether the matrix engine has fields for it."""
        return self.rank <= 2 and max(*self.kernel, *self.strides, *self.dilations) <= MAX_FIELD

    def attrs(self, *names: str) -> dict[str, Any]:
        """Return attributes of a canonical operator, whose images have two axes."""
        rest = 2 - self.rank
        lead = {"kernel": 1, "strides": 1, "dilations": 1}
        before, after = self.pads[: self.rank], self.pads[self.rank :]
        found: dict[str, Any] = {name: [lead[name]] * rest + getattr(self, name) for name in lead}
        found["pads"] = [0] * rest + before + [0] * rest + after
        return {name: found[name] for name in names}

    def counts(self, sizes: Shape) -> tuple[int, ...]:
        """Return the windows on each axis of an image."""
        return tuple(
            window_count(
                size, self.kernel[i], self.strides[i], (self.pads[i], self.pads[self.rank + i]), self.dilations[i]
            )
            for i, size in enumerate(sizes)
        )


def window_of(call: Call, x: Value, kernel: Any) -> Window:
    """Return the window that a node's attributes describe; `auto_pad` and `ceil_mode` become pads."""
    rank = len(x.shape) - 2
    if rank < 1:
        raise ModelError(f"node {call.name}: {call.op} of {x.name} {x.shape}, which has no axis behind the channels")
    kernel = call.per_axis("kernel_shape", rank, 1, 1, kernel)
    strides, dilations = call.per_axis("strides", rank, 1, 1), call.per_axis("dilations", rank, 1, 1)
    pads = call.per_axis("pads", 2 * rank, 0, 0)
    auto_pad = auto_pad_of(call)
    if auto_pad != "NOTSET":
        pads = [0] * 2 * rank
    extra = [0] * rank
    for i in range(rank):
        size, reach = x.shape[2 + i], dilations[i] * (kernel[i] - 1) + 1
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (-(-size // strides[i]) - 1) * strides[i] + reach - size)
            small, large = total // 2, total - total // 2
            pads[i], pads[rank + i] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        elif call.attrs.get("ceil_mode", 0):
            before, after = pads[i], pads[rank + i]
            count = -(-(size + before + after - reach) // strides[i]) + 1
            if (count - 1) * strides[i] >= size + before:
                count -= 1  # a window must begin inside of the input or the padding before it
            if count > window_count(size, kernel[i], strides[i], (before, after), dilations[i]):
                pads[rank + i] = (count - 1) * strides[i] + reach - size - before
                extra[i] = pads[rank + i] - after
    return Window(kernel, strides, dilations, pads, extra)


def kernel_of(call: Call, x: Value, w: Value) -> list[int]:
    """Return the kernel of weights [., ., kernel...] over an image `x`; raises ModelError where `kernel_shape` says another."""
    kernel = list(w.shape[2:])
    if list(call.attrs.get("kernel_shape", kernel)) != kernel or len(w.shape) != len(x.shape):
        stated = call.attrs.get("kernel_shape")
        raise ModelError(
            f"node {call.name}: {call.op} of {x.name} {x.shape} by {w.name} {w.shape}, kernel_shape {stated}"
        )
    return kernel


def auto_pad_of(call: Call) -> str:
    """Return the attribute `auto_pad`; raises ModelError."""
    auto_pad: str = call.attrs.get("auto_pad", b"NOTSET").decode()
    if auto_pad not in AUTO_PADS:
        raise ModelError(f"node {call.name}: {call.op}: auto_pad {auto_pad!r}, one of {', '.join(AUTO_PADS)}")
    return auto_pad


def taps(call: Call, x: Value, window: Window, fill: float) -> Iterator[Value]:
    """Yield the [N, C, windows...] elements under each place of the kernel, row-major; `fill` outside of the image."""
    if math.prod(window.kernel) > MAX_TAPS:
        raise call.unimplemented(
            f"a kernel of {window.kernel}, at most {MAX_TAPS} places where the matrix engine does not do it"
        )
    outputs = window.counts(x.shape[2:])
    x = _padded(call, x, window, fill)
    for place in np.ndindex(*window.kernel):
        starts = [i * dilation for i, dilation in zip(place, window.dilations, strict=True)]
        bounds = {
            2 + i: (start, start + (count - 1) * stride + 1, stride)
            for i, (start, count, stride) in enumerate(zip(starts, outputs, window.strides, strict=True))
        }
        yield call.build.slice(x, bounds)


def convolve(call: Call, x: Value, w: Value, bias: Value | None, window: Window, group: int) -> Value:
    """Return the convolution of `x` [N, C, image...] with `w` [O, C / group, kernel...] and perhaps `bias` [O]."""
    build, rank = call.build, window.rank
    if w.shape[1] * group != x.shape[1] or w.shape[0] % group or 0 in w.shape:
        raise ModelError(f"node {call.name}: {call.op} of {x.name} {x.shape} by {w.name} {w.shape}, {group} groups")
    if w.const is not None and rank <= 2:
        dilations = [1 if k == 1 else d for k, d in zip(window.kernel, window.dilations, strict=True)]
        window = replace(window, dilations=dilations)
        if max(window.strides) > MAX_FIELD:
            axis = int(np.argmax(window.strides))
            return _in_blocks(call, x, w, bias, window, group, axis, window.strides[axis])
        if (
            x.shape[1] == 1
            and window.dilations[-1] == 1
            and (block := math.gcd(window.strides[-1], window.kernel[-1])) > 1
        ):
            # Of one channel the engine multiplies few at a time. The spectrum of a sound is such a convolution.
            return _in_blocks(call, x, w, bias, window, group, rank - 1, block)
        too_long = [k > _longest_part(d) for k, d in zip(window.kernel, window.dilations, strict=True)]
        if any(too_long):
            total = _in_parts(call, x, w, window, group, too_long.index(True))
            return total if bias is None else build.elementwise(("add", X, Y), [total, _per_channel(build, bias, rank)])
    own = bias if bias is None or bias.const is not None else None  # what the engine adds by itself
    if w.const is not None and rank <= 2:
        attrs = window.attrs("strides", "pads", "dilations") | {"group": group, "act": None}
        if rank == 1:
            x = build.reshape(x, (*x.shape[:2], 1, x.shape[2]))
            w = build.const(w.const.reshape(*w.shape[:2], 1, *w.shape[2:]), w.name)
        result = build.emit("Conv", [x, w, own], attrs)
        result = build.reshape(result, (*result.shape[:2], result.shape[3])) if rank == 1 else result
    else:
        own = None
        result = _product_of_taps(call, x, w, window, group)
    if bias is None or own is not None:
        return result
    return build.elementwise(("add", X, Y), [result, _per_channel(build, bias, rank)])


def _per_channel(build: Builder, bias: Value, rank: int) -> Value:
    return build.reshape(bias, (bias.shape[0], *[1] * rank))


def _longest_part(dilation: int) -> int:
    """Return how many places of a kernel with this dilation the engine takes at once along an axis."""
    return 1 if dilation > MAX_FIELD else MAX_FIELD


def _padded(call: Call, x: Value, window: Window, fill: float = 0.0) -> Value:
    if not any(window.pads):
        return x
    pads = [(0, 0), (0, 0), *zip(window.pads[: window.rank], window.pads[window.rank :], strict=True)]
    return call.build.emit("Pad", [x], {"pads": pads, "value": fill})


def _in_parts(call: Call, x: Value, w: Value, window: Window, group: int, axis: int) -> Value:
    """Return a convolution whose kernel the engine does not take along an axis as the sum of those of its parts."""
    build, rank = call.build, window.rank
    assert w.const is not None
    outputs = window.counts(x.shape[2:])
    x = _padded(call, x, window)
    stride, dilation = window.strides[axis], window.dilations[axis]
    most = _longest_part(dilation)
    total: Value | None = None
    for first in range(0, window.kernel[axis], most):
        kernel = list(window.kernel)
        kernel[axis] = min(most, window.kernel[axis] - first)
        start = first * dilation
        stop = start + (outputs[axis] - 1) * stride + (kernel[axis] - 1) * dilation + 1
        taps_of_part = (slice(None), slice(None), *[slice(None)] * axis, slice(first, first + kernel[axis]))
        weights = build.const(np.ascontiguousarray(w.const[taps_of_part]), w.name)
        part = Window(kernel, window.strides, window.dilations, [0] * 2 * rank)
        result = convolve(call, build.slice(x, {2 + axis: (start, stop, 1)}), weights, None, part, group)
        total = result if total is None else build.elementwise(("add", X, Y), [total, result])
    assert total is not None
    return total


def _in_blocks(
    call: Call, x: Value, w: Value, bias: Value | None, window: Window, group: int, axis: int, block: int
) -> Value:
    """Return a convolution in which what lies in a block along an axis become channels; steps are whole blocks.

    Where windows touch, a dilated kernel becomes one with zeros between its weights, and its last step is filled with them, so that an
    infinity or NaN between the places of a kernel makes NaN of the window.
    """
    build, place = call.build, 2 + axis
    assert w.const is not None
    stride, dilation, count = window.strides[axis], window.dilations[axis], window.counts(x.shape[2:])[axis]
    others = [0 if index % window.rank == axis else pad for index, pad in enumerate(window.pads)]
    x = _padded(call, x, replace(window, pads=[p - other for p, other in zip(window.pads, others, strict=True)]))
    reach = (window.kernel[axis] - 1) * dilation + 1
    blocks = -(-reach // block)
    size = (count - 1) * stride + blocks * block
    x = build.slice(x, {place: (0, min(size, x.shape[place]), 1)})
    if x.shape[place] < size:
        pads = [(0, size - x.shape[place] if index == place else 0) for index in range(len(x.shape))]
        x = build.emit("Pad", [x], {"pads": pads, "value": 0.0})
    steps = build.reshape(x, (*x.shape[:place], size // block, block, *x.shape[place + 1 :]))
    if blocks == 1:  # nothing else of a block
        steps = build.slice(steps, {place + 1: (0, reach, dilation)})
        weights = np.expand_dims(w.const, place)
    else:
        filled = np.zeros((*w.shape[:place], blocks * block, *w.shape[place + 1 :]), w.const.dtype)
        filled[(slice(None),) * place + (slice(0, reach, dilation),)] = w.const
        weights = filled.reshape(*w.shape[:place], blocks, block, *w.shape[place + 1 :])
    order = [0, 1, place + 1, *(index for index in range(2, len(steps.shape)) if index != place + 1)]
    moved = build.transpose(steps, order)
    x = build.reshape(moved, (moved.shape[0], math.prod(moved.shape[1:3]), *moved.shape[3:]))
    weights = weights.transpose(order)
    weights = np.ascontiguousarray(weights.reshape(len(weights), -1, *weights.shape[3:]))
    kernel, strides, dilations = list(window.kernel), list(window.strides), list(window.dilations)
    kernel[axis], strides[axis], dilations[axis] = blocks, stride // block, 1
    inner = Window(kernel, strides, dilations, others)
    return convolve(call, x, build.const(weights, w.name), bias, inner, group)


def _product_of_taps(call: Call, x: Value, w: Value, window: Window, group: int) -> Value:
    build = call.build
    columns = columns_of_taps(call, x, window, group, 0.0)
    rows = build.reshape(w, (group, w.shape[0] // group, math.prod(w.shape[1:])))
    product = build.emit("MatMul", [rows, columns, None], {"act": None, "scale": 1.0})
    return build.reshape(product, (x.shape[0], w.shape[0], *window.counts(x.shape[2:])))


def columns_of_taps(call: Call, x: Value, window: Window, group: int, fill: float) -> Value:
    """Return [N, group, C / group · kernel, windows] of an image, `fill` outside of it: what rows of weights are multiplied by."""
    build, (n, c) = call.build, x.shape[:2]
    each, count, pixels = c // group, math.prod(window.kernel), math.prod(window.counts(x.shape[2:]))
    parts = [build.reshape(tap, (n, group, each, 1, pixels)) for tap in taps(call, x, window, fill)]
    stacked = build.emit("Concat", parts, {"axis": 3}) if count > 1 else parts[0]
    return build.reshape(stacked, (n, group, each * count, pixels))


def max_by_taps(call: Call, x: Value, window: Window, with_indices: bool) -> list[Value]:
    """Return the largest elements and, when asked, where in the tensor each was first found."""
    build = call.build
    lowest = float(np.iinfo(x.dtype).min) if x.dtype.kind in "iu" else -math.inf
    places = _places(call, x, window) if with_indices else None
    best: Value | None = None
    found: Value | None = None
    for number, tap in enumerate(taps(call, x, window, lowest)):
        if places is not None:
            place = build.const(np.broadcast_to(places[number], tap.shape).copy(), f"{call.name}.places")
            if found is None or best is None:
                found = build.elementwise(X, [place], np.dtype(np.int64))
            else:
                larger: Expr = ("or", ("gt", X, Y), ("lt", ("in", 2), ("const", 0)))
                better: Expr = ("and", ("ge", ("in", 3), ("const", 0)), larger)
                choice: Expr = ("where", better, ("in", 3), ("in", 2))
                found = build.elementwise(choice, [tap, best, found, place], np.dtype(np.int64))
        best = tap if best is None else build.elementwise(("max", X, Y), [best, tap])
    assert best is not None
    return [best] if found is None else [best, found]


def _places(call: Call, x: Value, window: Window) -> list[NDArray[np.int32]]:
    """Return, for each tap, the position in the flattened tensor of its elements; -1 outside of the image."""
    sizes, rank = x.shape[2:], window.rank
    order = range(rank)[::-1] if call.attrs.get("storage_order", 0) else range(rank)
    steps = [math.prod(sizes[k] for k in list(order)[list(order).index(i) + 1 :]) for i in range(rank)]
    images = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * rank) * math.prod(sizes)
    found = []
    for place in np.ndindex(*window.kernel):
        total, inside = images, np.ones((1,) * (2 + rank), bool)
        for i, count in enumerate(window.counts(sizes)):
            at = np.arange(count) * window.strides[i] + place[i] * window.dilations[i] - window.pads[i]
            at = at.reshape([-1 if k == 2 + i else 1 for k in range(2 + rank)])
            total, inside = total + at * steps[i], inside & (at >= 0) & (at < sizes[i])
        found.append(np.where(inside, total, -1).astype(np.int32))
    return found


def mean_by_taps(call: Call, x: Value, window: Window, count_include_pad: bool) -> Value:
    """Return means over what is inside of the image, or of its padding when that counts."""
    build, counts = call.build, counts_of(x, window, count_include_pad)
    total = sum_of_taps(call, x, window)
    return build.elementwise(("div", X, Y), [total, build.const(counts.astype(x.dtype), f"{call.name}.counts")])


def counts_of(x: Value, window: Window, count_include_pad: bool) -> NDArray[np.float64]:
    """Return how many elements of each window [1, 1, windows...] are in the image, or in its padding when that counts."""
    counts = np.ones((1,) * (2 + window.rank))
    for i, count in enumerate(window.counts(x.shape[2:])):
        before, after = window.pads[i], window.pads[window.rank + i] - window.extra[i]
        low, high = (-before, x.shape[2 + i] + after) if count_include_pad else (0, x.shape[2 + i])
        at = np.arange(count)[:, None] * window.strides[i] + np.arange(window.kernel[i]) * window.dilations[i] - before
        within = ((at >= low) & (at < high)).sum(axis=1)
        counts = counts * within.reshape([-1 if k == 2 + i else 1 for k in range(2 + window.rank)])
    return counts


def sum_of_taps(call: Call, x: Value, window: Window) -> Value:
    total: Value | None = None
    for tap in taps(call, x, window, 0.0):
        total = tap if total is None else call.build.elementwise(("add", X, Y), [total, tap])
    assert total is not None
    return total


def power(x: Expr, exponent: float) -> Expr:
    """Return `x` >= 0 to a power, in products and roots where they are."""
    known: dict[float, Expr] = {1.0: x, 2.0: ("mul", x, x), 0.5: ("sqrt", x)}
    return known.get(exponent, ("pow", x, ("const", float(exponent))))


def lp_pool(call: Call) -> Value:
    """LpPool. Powers and their sum are one expression as far as fusion goes, since float16 does not hold those of small numbers."""
    x, exponent, wide = call.input(0), float(call.attrs.get("p", 2)), np.dtype(np.float32)
    window, own = window_of(call, x, call.attrs["kernel_shape"]), power(("abs", X), exponent)
    total: Value | None = None
    for tap in taps(call, x, window, 0.0):
        more: Expr = ("add", power(("abs", Y), exponent), X)
        expr, inputs = (own, [tap]) if total is None else (more, [total, tap])
        total = call.build.elementwise(expr, inputs, wide)
    assert total is not None
    return call.build.elementwise(power(X, 1 / exponent), [total], x.dtype)


def lrn(call: Call) -> Value:
    """LRN: a window over the channels, as a convolution by ones on and beside the diagonal.

    A factor is applied before squares are taken, so small that they are finite in float16; powers of two make up for it behind.
    What is not a number, or infinite, is so for all channels of its pixel.
    """
    x, build = call.input(0), call.build
    size = int(call.attrs["size"])
    alpha, beta = float(call.attrs.get("alpha", 1e-4)) / size, float(call.attrs.get("beta", 0.75))
    n, c = x.shape[:2]
    behind = 1.0
    while abs(alpha) / behind > _FINITE_SQUARES**2:
        behind *= 2
    small: Expr = ("mul", X, ("const", math.sqrt(abs(alpha) / behind)))
    squares = build.elementwise(("mul", small, small), [x])
    image = x.shape if len(x.shape) == 4 else (n, c, 1, math.prod(x.shape[2:]))
    held = min(behind, _LARGEST_POWER)
    before = (size - 1) // 2
    beside = np.arange(c) - np.arange(c)[:, None]  # [to, from]
    band = np.where((beside >= -before) & (beside < size - before), held, 0).astype(x.dtype)[:, :, None, None]
    attrs = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1, "act": None}
    total = build.reshape(build.emit("Conv", [build.reshape(squares, image), build.const(band), None], attrs), x.shape)
    share: Expr = Y if held == behind else ("mul", Y, ("const", behind / held))
    scale: Expr = ("add" if alpha >= 0 else "sub", ("const", float(call.attrs.get("bias", 1.0))), share)
    return build.elementwise(("div", X, ("pow", scale, ("const", beta))), [x, total])


def turned(build: Builder, w: Value, group: int) -> Value:
    """Return the weights [C, O / group, kernel...] of a transposed convolution as those [O, C / group, kernel...] of a plain one."""
    rank = len(w.shape) - 2
    shape = (group, w.shape[0] // group, *w.shape[1:])
    final = (group * w.shape[1], w.shape[0] // group, *w.shape[2:])
    if w.const is not None:
        back = w.const[(slice(None), slice(None), *[slice(None, None, -1)] * rank)]
        return build.const(np.ascontiguousarray(back.reshape(shape).swapaxes(1, 2).reshape(final)), w.name)
    for axis in range(2, 2 + rank):
        if w.shape[axis] > 1:
            backwards = build.const(np.arange(w.shape[axis], dtype=np.int32)[::-1].copy(), "backwards")
            w = build.emit("Gather", [w, backwards], {"axis": axis})
    return build.reshape(build.transpose(build.reshape(w, shape), [0, 2, 1, *range(3, 3 + rank)]), final)


def col2im(call: Call) -> Value:
    """Col2Im: each place of the kernel puts its columns back where the window took them, and what meets is added."""
    x, build = call.input(0), call.build
    sizes = call.implied(1, "image_shape", None if call.shape() is None else (call.shape() or ())[2:])
    kernel = call.ints(2, "block_shape", 18)
    assert kernel is not None
    rank, count = len(sizes), math.prod(kernel)
    kernel = call.per_axis("block_shape", rank, 1, 1, kernel)
    whole, strides = call.per_axis("pads", 2 * rank, 0, 0), call.per_axis("strides", rank, 1, 1)
    window = Window(kernel, strides, call.per_axis("dilations", rank, 1, 1), whole)
    outputs = window.counts(tuple(sizes))
    if x.shape[1] % count or x.shape[2:] != (math.prod(outputs),):
        raise ModelError(f"node {call.name}: Col2Im of {x.name} {x.shape} into {sizes} by {kernel}")
    channels = x.shape[1] // count
    columns = build.reshape(x, (x.shape[0], channels, count, *outputs))
    padded = [size + before + after for size, before, after in zip(sizes, whole[:rank], whole[rank:], strict=True)]
    total: Value | None = None
    for number, place in enumerate(np.ndindex(*kernel)):
        part = build.reshape(build.slice(columns, {2: (number, number + 1, 1)}), (x.shape[0], channels, *outputs))
        part = _apart(build, part, strides)
        starts = [i * dilation for i, dilation in zip(place, window.dilations, strict=True)]
        room = [(start, size - start - dim) for start, size, dim in zip(starts, padded, part.shape[2:], strict=True)]
        placed = build.emit("Pad", [part], {"pads": [(0, 0), (0, 0), *room], "value": 0.0}) if np.any(room) else part
        total = placed if total is None else build.elementwise(("add", X, Y), [total, placed])
    assert total is not None
    inner = {2 + i: (whole[i], whole[i] + size, 1) for i, size in enumerate(sizes)}
    return build.slice(total, inner) if any(whole) else total


def _apart(build: Builder, x: Value, strides: list[int]) -> Value:
    """Return an image with zeros between its elements, none behind the last."""
    sizes = x.shape[2:]
    if max(strides) == 1:
        return x
    apart = build.reshape(x, (*x.shape[:2], *(dim for size in sizes for dim in (size, 1))))
    gaps = [(0, 0), (0, 0), *(gap for stride in strides for gap in ((0, 0), (0, stride - 1)))]
    wide = build.emit("Pad", [apart], {"pads": gaps, "value": 0.0})
    wide = build.reshape(wide, (*x.shape[:2], *(size * stride for size, stride in zip(sizes, strides, strict=True))))
    ends = {2 + i: (0, (size - 1) * stride + 1, 1) for i, (size, stride) in enumerate(zip(sizes, strides, strict=True))}
    return build.slice(wide, ends)
