"""Operands of the matrix engine whose elements lie at several places of an axis, or backwards, through the whole stack, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

BEFORE_ALL = np.iinfo(np.int64).min


def expand(source, *shape):
    return [("Constant", [], ["wide"], {"value_ints": list(shape)}), ("Expand", [source, "wide"], ["e"], {})]


def backwards(*axes):
    ints = (("starts", -1), ("ends", BEFORE_ALL), ("steps", -1))
    found = [("Constant", [], [name], {"value_ints": [value] * len(axes)}) for name, value in ints]
    axis = ("Constant", [], ["axes"], {"value_ints": list(axes)})
    return [*found, axis, ("Slice", ["x", "starts", "ends", "axes", "steps"], ["e"], {})]


def mean_resized(*size):
    sizes = ("Constant", [], ["sizes"], {"value_ints": [1, 16, *size]})
    mean = ("GlobalAveragePool", ["x"], ["m"], {})
    return [mean, sizes, ("Resize", ["m", "", "", "sizes"], ["r"], {"mode": "nearest"})]


def conv(source, **attrs):
    return [("Conv", [source, "w"], ["y"], attrs)]


def pool(op, source="e", kernel=(3, 3)):
    return [(op, [source], ["y"], {"kernel_shape": list(kernel)})]


PIXEL, PLANE = (1, 16, 1, 1), (1, 16, 5, 6)
MATMUL, RIGHT = [("MatMul", ["e", "w"], ["y"], {})], [("MatMul", ["a", "e"], ["y"], {})]
SUM = [("Add", ["c", "e"], ["y"], {})]
SCORES = [
    ("MatMul", ["e", "k"], ["s"], {}),
    ("Softmax", ["s"], ["p"], {"axis": -1}),
    ("MatMul", ["p", "v"], ["y"], {}),
]
OF_ONE_KEY = [
    ("Transpose", ["e"], ["t"], {"perm": [0, 1, 3, 2]}),
    ("MatMul", ["q", "t"], ["s"], {}),
    ("Softmax", ["s"], ["p"], {"axis": -1}),
    ("MatMul", ["p", "e"], ["y"], {}),
]
CASES = {
    "rows of a left matrix": (expand("x", 6, 16), MATMUL, {"x": (1, 16)}, {"w": (16, 5)}),
    "columns of a left matrix": (expand("x", 6, 16), MATMUL, {"x": (6, 1)}, {"w": (16, 5)}),
    "left matrices": (expand("x", 3, 6, 16), [("MatMul", ["e", "b"], ["y"], {})], {"x": (1, 1, 16), "b": (3, 16, 5)}, {}),
    "rows of a right matrix": (expand("x", 16, 5), RIGHT, {"x": (1, 5), "a": (6, 16)}, {}),
    "columns of a right matrix": (expand("x", 16, 5), RIGHT, {"x": (16, 1), "a": (6, 16)}, {}),
    "right matrices": (expand("x", 3, 16, 5), RIGHT, {"x": (1, 16, 1), "a": (3, 6, 16)}, {}),
    "a convolution": (expand("x", *PLANE), conv("e"), {"x": PIXEL}, {"w": (4, 16, 3, 3)}),
    "a convolution in groups": (expand("x", *PLANE), conv("e", group=2), {"x": PIXEL}, {"w": (4, 8, 3, 3)}),
    "a pointwise convolution": (expand("x", *PLANE), conv("e"), {"x": PIXEL}, {"w": (4, 16, 1, 1)}),
    "a depthwise convolution": (expand("x", *PLANE), conv("e", group=16, pads=[1] * 4), {"x": PIXEL}, {"w": (16, 1, 3, 3)}),
    "channels": (expand("x", *PLANE), conv("e"), {"x": (1, 1, 5, 6)}, {"w": (4, 16, 3, 3)}),
    "rows": (expand("x", *PLANE), conv("e"), {"x": (1, 16, 1, 6)}, {"w": (4, 16, 3, 3)}),
    "columns": (expand("x", *PLANE), conv("e"), {"x": (1, 16, 5, 1)}, {"w": (4, 16, 3, 3)}),
    "images": (expand("x", 3, 16, 5, 6), conv("e"), {"x": (1, 16, 5, 6)}, {"w": (4, 16, 3, 3)}),
    "one long row": (expand("x", 1, 16, 1, 43), conv("e"), {"x": PIXEL}, {"w": (4, 16, 1, 4)}),
    "one long column": (expand("x", 1, 16, 43, 1), conv("e"), {"x": PIXEL}, {"w": (4, 16, 4, 1)}),
    "a largest element": (expand("x", *PLANE), pool("MaxPool"), {"x": PIXEL}, {}),
    "a mean": (expand("x", *PLANE), pool("AveragePool"), {"x": PIXEL}, {}),
    "a mean of all": (expand("x", 1, 16, 40, 40), [("GlobalAveragePool", ["e"], ["y"], {})], {"x": PIXEL}, {}),
    "a mean resized": ([*mean_resized(2, 2)], conv("r"), {"x": PLANE}, {"w": (4, 16, 2, 2)}),
    "a mean resized to more columns": ([*mean_resized(2, 3)], conv("r"), {"x": PLANE}, {"w": (4, 16, 2, 2)}),
    "a mean resized to one row": ([*mean_resized(1, 4)], conv("r"), {"x": PLANE}, {"w": (4, 16, 1, 2)}),
    "a mean resized and expanded": ([*mean_resized(1, 4), *expand("r", 1, 16, 3, 4)], pool("AveragePool"), {"x": PLANE}, {}),
    "a sum of what repeats": (expand("x", *PLANE), [("Add", ["e", "e"], ["y"], {})], {"x": PIXEL}, {}),
    "a sum behind a convolution": (
        [("Conv", ["z", "w"], ["c"], {}), *expand("x", *PLANE)], SUM, {"x": PIXEL, "z": PLANE}, {"w": (16, 16, 1, 1)},
    ),
    "a sum behind a product": (
        [("MatMul", ["z", "w"], ["c"], {}), *expand("x", 6, 8)], SUM, {"x": (1, 8), "z": (6, 16)}, {"w": (16, 8)},
    ),
    "queries": (expand("x", 1, 2, 40, 16), SCORES, {"x": (1, 2, 1, 16), "k": (1, 2, 16, 24), "v": (1, 2, 24, 16)}, {}),
    "keys and values": (expand("x", 1, 2, 24, 16), OF_ONE_KEY, {"x": (1, 2, 1, 16), "q": (1, 2, 40, 16)}, {}),
    "rows backwards": (backwards(2), conv("e"), {"x": PLANE}, {"w": (4, 16, 3, 3)}),
    "columns and channels backwards": (backwards(1, 3), conv("e"), {"x": PLANE}, {"w": (4, 16, 3, 3)}),
    "a left matrix backwards": (backwards(0, 1), MATMUL, {"x": (6, 16)}, {"w": (16, 5)}),
    "a right matrix backwards": (backwards(0, 1), RIGHT, {"x": (16, 5), "a": (6, 16)}, {}),
    "a sum backwards": (
        [("Conv", ["z", "w"], ["c"], {}), *backwards(2, 3)], SUM, {"x": PLANE, "z": PLANE}, {"w": (16, 16, 1, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 5e-3)])
@pytest.mark.parametrize("of", CASES)
def test_the_engine_takes(of, precision, tolerance, make_model, oracle, run_on_device, rng):
    view, use, inputs, constants = CASES[of]
    feeds, weights = (
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for shapes in (inputs, constants)
    )
    model = make_model([*view, *use], feeds, ["y"], weights)
    (wanted,) = oracle(model, feeds).values()
    found = run_on_device(model, feeds, precision)["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * float(np.abs(wanted).max()))
