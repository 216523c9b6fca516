"""Windows, and Fourier transforms as products with constants, on the matrix engine.

A window of a length that is computed is a constant where the length of the result is declared, and a check of the length.
"""

from __future__ import annotations

import math
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import onnx

from libnpu.compiler.frontend.ops_window import Window, convolve
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Value

MAX_WEIGHTS = 1 << 24  # chosen: 64 MiB of float32
# Operator -> the factors of cosines of 0, 1, 2 turns over the window.
WINDOWS = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def window_function(call: Call) -> Value:
    """HannWindow, HammingWindow and BlackmanWindow, periodic or symmetric."""
    declared = call.shape()
    (size,) = call.implied(0, "size", [declared[0]] if declared else None)
    turn = 2 * math.pi / (size if call.attrs.get("periodic", 1) else size - 1 or 1)
    values = [sum(f * math.cos(k * n * turn) for k, f in enumerate(WINDOWS[call.op])) for n in range(size)]
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(call.attrs.get("output_datatype", onnx.TensorProto.FLOAT)))
    return call.build.const(np.array(values, np.float64).astype(dtype), f"{call.name}.window")


def dft(call: Call) -> Value:
    """DFT along one axis: a matrix product with the cosines and sines of all frequencies."""
    x, build = call.input(0), call.build
    rank = len(x.shape)
    given = call.optional(2)
    axis = int(call.attrs.get("axis", 1)) if call.opset < 20 else -2 if given is None else _whole(call, 2, "axis")
    axis = call.axis(axis, rank)
    if axis == rank - 1 or x.shape[-1] not in (1, 2):
        raise ModelError(f"node {call.name}: DFT of {x.shape} on axis {axis}")
    length = x.shape[axis] if call.optional(1) is None else _whole(call, 1, "dft_length")
    if call.attrs.get("inverse", 0) and call.attrs.get("onesided", 0):
        raise call.unimplemented("onesided and inverse")
    order = [*(index for index in range(rank) if index not in (axis, rank - 1)), axis, rank - 1]
    rows = build.transpose(x, order)
    if length < x.shape[axis]:
        rows = build.slice(rows, {rank - 2: (0, length, 1)})
    elif length > x.shape[axis]:
        pads = [(0, 0)] * (rank - 2) + [(0, length - x.shape[axis]), (0, 0)]
        rows = build.emit("Pad", [rows], {"pads": pads, "value": 0.0})
    weights = _turns(call, length, x.shape[-1], np.ones(length))
    bins = weights.shape[2]
    matrix = build.const(weights.reshape(length * x.shape[-1], bins * 2).astype(x.dtype), f"{call.name}.turns")
    flat = build.reshape(rows, (prod(rows.shape[:-2]), length * x.shape[-1]))
    product = build.emit("MatMul", [flat, matrix, None], {"act": None, "scale": 1.0})
    result = build.reshape(product, (*rows.shape[:-2], bins, 2))
    return build.transpose(result, [order.index(index) for index in range(rank)])


def stft(call: Call) -> Value:
    """STFT: a convolution whose kernels are the windowed cosines and sines, and whose stride is the frame's step."""
    x, build = call.input(0), call.build
    step, window = _whole(call, 1, "frame_step"), call.array(2, "window")
    if call.optional(3) is not None:
        length = _whole(call, 3, "frame_length")
    elif window is not None:
        length = window.size
    else:
        raise ModelError(f"node {call.name}: STFT without a frame length or a window")
    signal = x if len(x.shape) == 3 else build.reshape(x, (*x.shape, 1))
    if not 0 < length <= signal.shape[1] or step < 1:
        raise ModelError(f"node {call.name}: STFT of {x.shape} in frames of {length}, {step} apart")
    scale = np.ones(length) if window is None else window.astype(np.float64)
    if scale.shape != (length,):
        raise ModelError(f"node {call.name}: STFT in frames of {length} by a window of {scale.shape}")
    weights = _turns(call, length, signal.shape[2], scale)
    bins = weights.shape[2]
    kernels = np.ascontiguousarray(weights.transpose(2, 3, 1, 0).reshape(bins * 2, signal.shape[2], length), x.dtype)
    frames = Window([length], [step], [1], [0, 0])
    moved = build.transpose(signal, [0, 2, 1])
    result = convolve(call, moved, build.const(kernels, f"{call.name}.turns"), None, frames, 1)
    return build.reshape(build.transpose(result, [0, 2, 1]), (x.shape[0], result.shape[2], bins, 2))


def _whole(call: Call, index: int, what: str) -> int:
    array = call.array(index, what)
    assert array is not None
    return int(array.reshape(-1)[0])


def _turns(call: Call, length: int, channels: int, scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what an element of each channel adds to each frequency: [length, channels, frequencies, real and imaginary].

    The angles are those of whole numbers below `length`, so that they are as exact for long transforms as for short ones.
    """
    onesided = call.attrs.get("onesided", 1 if call.op == "STFT" else 0)
    bins = length // 2 + 1 if onesided else length
    if length * channels * bins * 2 > MAX_WEIGHTS:
        raise call.unimplemented(f"{length} elements: {length * channels * bins * 2} weights, at most {MAX_WEIGHTS}")
    angle = np.arange(length)[:, None] * np.arange(bins) % length * (2 * math.pi / length)
    sign, factor = (1.0, 1 / length) if call.attrs.get("inverse", 0) else (-1.0, 1.0)
    cosine, sine = np.cos(angle) * factor, np.sin(angle) * sign * factor
    parts = np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)][:channels], 1)
    return np.asarray(parts * scale[:, None, None, None])
