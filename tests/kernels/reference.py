"""What the kernels compute, in float64 NumPy."""

import numpy as np


def windows(x, kernel, stride, pad, value):
    """Return [n, c, out_h, out_w, kernel_h, kernel_w] of x padded with `value`."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *((p, p) for p in pad)), constant_values=value)
    return np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(2, 3))[:, :, :: stride[0], :: stride[1]]


def conv2d(x, weights, bias, stride, pad, groups=1):
    view = windows(x, weights.shape[2:], stride, pad, 0)
    c, k = weights.shape[1], len(weights) // groups
    parts = [
        np.einsum("nchwij,kcij->nkhw", view[:, g * c : (g + 1) * c], weights[g * k : (g + 1) * k], optimize=True)
        for g in range(groups)
    ]
    return np.concatenate(parts, axis=1) + (0 if bias is None else bias[None, :, None, None])


def max_pool(x, kernel, stride, pad):
    return windows(x, kernel, stride, pad, -np.inf).max(axis=(-2, -1))


def average_pool(x, kernel, stride, pad):
    count = windows(np.ones_like(x), kernel, stride, pad, 0).sum(axis=(-2, -1))
    return windows(x, kernel, stride, pad, 0).sum(axis=(-2, -1)) / count


def softmax(x):
    e = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layernorm(x, gamma, beta, epsilon):
    x = x.astype(np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon) * gamma + beta
