"""Recipes of windows over images: convolutions, poolings, resizes."""

from __future__ import annotations

import math

import numpy as np

from tests.compiler.fuzz.draw import Reject
from tests.compiler.fuzz.recipes.table import BYTES, ENGINE, F32, I64, recipe


def window(g, op, x, kernel):
    """Return attributes of a window over the axes of `x` from 2 on."""
    rank = len(kernel)
    attrs = {"strides": [g.whole(1, 3) for _ in range(rank)]}
    known = g.schema(op).attributes
    if "dilations" in known and g.chance(0.3):
        attrs["dilations"] = [g.whole(1, 2) for _ in range(rank)]
    beside = any(size < step for size, step in zip(kernel, attrs["strides"], strict=True))
    if (
        g.chance(0.3) and not beside
    ):  # there onnxruntime differs between operators: it has paddings below zero, or smaller results
        attrs["auto_pad"] = g.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
        if attrs["auto_pad"] != "VALID":
            attrs.pop("dilations", None)
    elif g.chance(0.6):
        attrs["pads"] = [g.whole(0, size - 1) for size in (*kernel, *kernel)]
    if "ceil_mode" in known and g.chance(0.3):
        attrs["ceil_mode"] = 1
    return attrs


def image(g, dtypes, ranks=(3, 4, 4, 4, 5)):
    rank = g.choice(ranks)
    return g.operand(dtypes, lambda a: a.ndim == rank and 0 not in a.shape, g.shape(rank))


def kernel_of(g, x):
    return [g.whole(1, min(3, size)) for size in g.known(x).shape[2:]]


@recipe("Conv", "ConvTranspose")
def conv(g, op):
    x = image(g, g.dtypes(op, among=ENGINE))
    channels, kernel = g.known(x).shape[1], kernel_of(g, x)
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
    outs = g.choice((1, 2, 3, 8, 16))
    attrs = window(g, op, x, kernel) | {"group": group}
    dtype, total = g.known(x).dtype, outs * group if outs * group < 64 else group
    shape = (total, channels // group, *kernel) if op == "Conv" else (channels, total // group, *kernel)
    if op == "ConvTranspose" and g.chance(0.3):
        attrs["output_padding"] = [g.whole(0, stride - 1) for stride in attrs["strides"]]
    w = g.operand([dtype], shape=shape, constant=g.chance(0.9), low=-1, high=1)
    g.add(op, [x, w, *([g.like(x, (total,), constant=True)] if g.chance(0.5) else [])], attrs)


@recipe("FusedConv")
def fused_conv(g, op):
    x = image(g, [F32], (3, 4, 4))
    kernel, outs = kernel_of(g, x), g.choice((1, 3, 8, 16))
    name, parameters = g.choice(
        (("Relu", []), ("Sigmoid", []), ("LeakyRelu", [0.1]), ("Clip", [-1.0, 2.0]), ("HardSigmoid", [0.2, 0.5]))
    )
    attrs = (
        window(g, "Conv", x, kernel) | {"activation": name} | ({"activation_params": parameters} if parameters else {})
    )
    w = g.new(g.array(F32, (outs, g.known(x).shape[1], *kernel), -1, 1), True)
    g.add(op, [x, w, *([g.new(g.array(F32, (outs,)), True)] if g.chance(0.5) else [])], attrs, domain="com.microsoft")


@recipe("NhwcMaxPool")
def max_pool_channels_last(g, op):
    x = g.operand(BYTES, lambda a: a.ndim == 4 and 0 not in a.shape, g.shape(4))
    kernel = [g.whole(1, min(3, size)) for size in g.known(x).shape[1:3]]
    g.add(op, [x], {"kernel_shape": kernel, "strides": [g.whole(1, 2) for _ in kernel]}, domain="com.microsoft")


@recipe("MaxPool", "AveragePool", "LpPool")
def pool(g, op):
    x = image(g, g.dtypes(op, among=(*ENGINE, *BYTES)))
    kernel = kernel_of(g, x)
    attrs = {"kernel_shape": kernel} | window(g, op, x, kernel)
    if op == "AveragePool" and g.chance(0.5):
        attrs["count_include_pad"] = 1
    if op == "LpPool":
        attrs["p"] = g.choice((1, 2, 3))
    g.add(op, [x], attrs, 2 if op == "MaxPool" and g.opset >= 8 and g.chance(0.2) else 1)


@recipe("GlobalAveragePool", "GlobalMaxPool")
def global_pool(g, op):
    g.add(op, [image(g, g.dtypes(op, among=ENGINE))], {})


@recipe("LRN")
def lrn(g, op):
    g.add(
        op,
        [image(g, g.dtypes(op, among=ENGINE), (4,))],
        {"size": g.choice((1, 3, 5)), "alpha": g.number(0.01, 1), "bias": g.number(0.5, 2)},
    )


@recipe("Col2Im")
def col2im(g, op):
    size, block = [g.whole(2, 6), g.whole(2, 6)], [g.whole(1, 2), g.whole(1, 2)]
    count = math.prod(s - b + 1 for s, b in zip(size, block, strict=True))
    x = g.operand(g.dtypes(op, among=ENGINE), shape=(g.whole(1, 2), g.whole(1, 3) * math.prod(block), count))
    g.add(op, [x, g.constant(size, I64), g.constant(block, I64)], {})


@recipe("Resize", "Upsample")
def resize(g, op):
    rank = g.choice((3, 4, 4, 4))
    x = g.operand(
        g.dtypes(op, among=(*ENGINE, np.dtype(np.uint8))),
        lambda a: a.ndim == rank and 0 not in a.shape,
        g.shape(rank, 8),
    )
    shape = g.known(x).shape
    mode = g.choice(("nearest", "linear", *(["cubic"] if g.opset >= 11 and op == "Resize" else [])))
    if mode != "nearest" and rank != 4:
        raise Reject
    scales = [1.0] * 2 + [g.choice((0.5, 1.0, 1.5, 2.0, 3.0)) for _ in shape[2:]]
    attrs = {"mode": mode}
    if op == "Upsample":
        scales = [max(1.0, s) for s in scales]
        if g.opset < 9:
            attrs["scales"] = scales
        g.add(op, [x, *([g.constant(scales, F32)] if g.opset >= 9 else [])], attrs)
        return
    if g.opset == 10:
        g.add(op, [x, g.constant(scales, F32)], attrs)
        return
    attrs["coordinate_transformation_mode"] = g.choice(
        ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    )
    if mode == "nearest":
        attrs["nearest_mode"] = g.choice(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic":
        attrs["cubic_coeff_a"] = g.choice((-0.75, -0.5))
    empty = g.constant(np.zeros(0), F32) if g.opset < 13 else ""
    if g.chance(0.5):
        sizes = [
            size if axis < 2 else max(1, int(size * scale))
            for axis, (size, scale) in enumerate(zip(shape, scales, strict=True))
        ]
        g.add(op, [x, empty, empty, g.constant(sizes, I64)], attrs)
    else:
        g.add(op, [x, empty, g.constant(scales, F32)], attrs)


@recipe("GridSample")
def grid_sample(g, op):
    x = g.operand(g.dtypes(op, among=(F32,)), lambda a: a.ndim == 4 and 0 not in a.shape, g.shape(4, 8))
    grid = g.operand([F32], shape=(g.known(x).shape[0], g.whole(1, 4), g.whole(1, 4), 2), low=-1.2, high=1.2)
    names = ("bilinear", "nearest", "bicubic") if g.opset < 20 else ("linear", "nearest", "cubic")
    attrs = {
        "mode": g.choice(names),
        "padding_mode": g.choice(("zeros", "border", "reflection")),
        "align_corners": g.whole(0, 1),
    }
    g.add(op, [x, grid], attrs)


@recipe("Det")
def det(g, op):
    size = g.whole(1, 4)
    g.add(op, [g.operand(g.dtypes(op, among=(F32,)), shape=(*g.shape(g.whole(0, 1), 4), size, size))], {})


@recipe("CenterCropPad")
def center_crop_pad(g, op):
    x = g.operand(g.dtypes(op), lambda a: a.ndim >= 1 and 0 not in a.shape, g.shape(g.whole(1, 4)))
    axes = g.axes(g.known(x).ndim)
    g.add(op, [x, g.constant([g.whole(1, 9) for _ in axes], I64)], {"axes": axes})


@recipe("HannWindow", "HammingWindow", "BlackmanWindow")
def window_of_numbers(g, op):
    g.add(op, [g.constant(g.whole(2, 17), I64)], {"periodic": g.whole(0, 1)})


@recipe("DFT")
def dft(g, op):
    x = g.operand([F32], shape=(g.whole(1, 2), g.whole(2, 9), g.whole(1, 2)))
    attrs = {"inverse": g.whole(0, 1)} if g.known(x).shape[-1] == 2 and g.chance(0.3) else {"onesided": g.whole(0, 1)}
    if g.known(x).shape[-1] == 2:
        attrs.pop("onesided", None)
    g.add(op, [x, "", g.constant(1, I64)] if g.opset >= 20 else [x], attrs)


@recipe("STFT")
def stft(g, op):
    length, step = g.whole(2, 9), g.whole(1, 4)
    x = g.operand(g.dtypes(op, among=(F32,)), shape=(g.whole(1, 2), g.whole(length, 17), 1))
    frame = g.new(g.array(F32, (length,), 0, 1), True) if g.chance(0.5) else ""
    g.add(
        op,
        [x, g.constant(step, I64), frame, *([] if frame else [g.constant(length, I64)])],
        {"onesided": g.whole(0, 1)},
    )


@recipe("AffineGrid")
def affine_grid(g, op):
    rank = g.whole(2, 3)
    theta = g.operand(g.dtypes(op, among=(F32,)), shape=(g.whole(1, 2), rank, rank + 1))
    sizes = [g.known(theta).shape[0], g.whole(1, 3), *(g.whole(2, 5) for _ in range(rank))]
    g.add(op, [theta, g.constant(sizes, I64)], {"align_corners": g.whole(0, 1)})


@recipe("DeformConv")
def deform_conv(g, op):
    x = g.operand(g.dtypes(op, among=(F32,)), lambda a: a.ndim == 4 and 0 not in a.shape, g.shape(4, 8))
    n, channels, *sizes = g.known(x).shape
    kernel, strides = kernel_of(g, x), [g.whole(1, 2) for _ in sizes]
    outs = [(size - k) // step + 1 for size, k, step in zip(sizes, kernel, strides, strict=True)]
    groups, taps = g.choice([d for d in range(1, channels + 1) if channels % d == 0]), math.prod(kernel)
    w = g.new(g.array(F32, (g.choice((1, 2, 8)), channels, *kernel), -1, 1), True)
    offset = g.new(g.array(F32, (n, groups * taps * 2, *outs), -2, 2))
    mask = ["", g.new(g.array(F32, (n, groups * taps, *outs), 0, 1))] if g.chance(0.4) else []
    g.add(op, [x, w, offset, *mask], {"strides": strides, "offset_group": groups, "pads": [0] * 4})
