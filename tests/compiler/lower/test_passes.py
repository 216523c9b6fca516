"""Element-wise expressions as passes of the matrix engine: which they are, when they are, and that the values are those of float64."""

import numpy as np
import pytest
from npu_model.profile import load_profile

from libnpu.compiler import CompileOptions
from libnpu.compiler.ir import Node, Value
from libnpu.compiler.lower.eltwise import _three_dims
from libnpu.compiler.lower.passes import passes_of
from libnpu.compiler.pipeline import compile_graph

X, Y, A, B = (("in", k) for k in range(4))
CHANNELS = 24


def const(number):
    return ("const", number)


def leaky(x, slope):
    return np.where(x < 0, x * slope, x)


def swish(x):
    return x * np.clip(x + 3, 0, 6) / 6


EXPRESSIONS = {  # with two tensors and two constants of each channel, which may be negative
    "relu": (("relu", X), lambda x, y, a, b: np.maximum(x, 0), 1),
    "line": (("clip", ("add", ("mul", X, const(0.3)), const(0.5)), const(0.0), const(1.0)), lambda x, y, a, b: np.clip(0.3 * x + 0.5, 0, 1), 1),
    "hard sigmoid": (("hard_sigmoid", X, const(0.2), const(0.5)), lambda x, y, a, b: np.clip(0.2 * x + 0.5, 0, 1), 1),
    "hard swish": (("hard_swish", X), lambda x, y, a, b: swish(x), 3),
    "hard swish, a line": (("add", ("mul", const(0.7), ("hard_swish", X)), const(-0.2)), lambda x, y, a, b: 0.7 * swish(x) - 0.2, 3),
    "normalisation": (("relu", ("add", ("mul", ("sub", X, B), A), B)), lambda x, y, a, b: np.maximum((x - b) * a + b, 0), 1),
    "leaky": (("leaky_relu", X, const(0.1)), lambda x, y, a, b: leaky(x, 0.1), 1),
    "slopes": (("prelu", X, A), lambda x, y, a, b: leaky(x, a), 4),
    "square": (("mul", ("mul", const(0.25), X), ("mul", const(0.25), X)), lambda x, y, a, b: x * x / 16, 1),
    "difference": (("relu", ("sub", X, Y)), lambda x, y, a, b: np.maximum(x - y, 0), 3),
    "between": (("max", ("min", ("add", X, Y), const(0.5)), const(-1.0)), lambda x, y, a, b: np.clip(x + y, -1, 0.5), 2),
}  # fmt: skip


def sketched(s, expr, size, dtype=np.float16):
    x = s.input(1, CHANNELS, size, size + 3, dtype=dtype)
    vectors = [s.const(CHANNELS, 1, 1, data=np.linspace(-1, 2, CHANNELS)[::step].reshape(-1, 1, 1)) for step in (1, -1)]
    taken = sorted(set(_leaves(expr)))
    made = s.conv(x, CHANNELS, kernel=1, pad=0), s.conv(x, CHANNELS, kernel=1, pad=0), *vectors
    expr = _renumbered(expr, taken)
    outside = [
        s.reshape(value, 1, CHANNELS, size * (size + 3)) for value in made[:2]
    ]  # copies: what is computed stays inside
    return s.graph(*outside, s.map(expr, *(made[k] for k in taken))), vectors


def _leaves(expr):
    return (
        [expr[1]]
        if expr[0] == "in"
        else [leaf for child in expr[1:] if isinstance(child, tuple) for leaf in _leaves(child)]
    )


def _renumbered(expr, taken):
    if expr[0] == "in":
        return ("in", taken.index(expr[1]))
    return (expr[0], *(_renumbered(child, taken) if isinstance(child, tuple) else child for child in expr[1:]))


@pytest.mark.parametrize(
    ("size", "options"),
    [
        pytest.param(30, {}, id="fits"),
        pytest.param(60, {"cmx_bytes": 48 << 10, "tiles": 1}, id="streams", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_values_are_those_of_float64_rounded_once(name, size, options, sketch, run, feeds_of):
    expr, wanted, passes = EXPRESSIONS[name]
    graph, vectors = sketched(sketch(), expr, size)
    compiled = compile_graph(graph, CompileOptions(**options))
    node = graph.nodes[-1]
    found = passes_of(node, load_profile("npu-37xx"), 2)
    assert found is not None and len(found) == passes
    tasks = [task for task in compiled.image.debug["tasks"] if f"{node.name}.Elementwise" in task["name"]]
    assert "DPU" in {task["engine"] for task in tasks}  # SHAVEs may turn the result
    x, y, got = (
        v.astype(np.float64).reshape(node.outputs[0].shape) for v in run(compiled.blob, feeds_of(graph)).values()
    )
    exact = wanted(x, y, *(v.const.astype(np.float64) for v in vectors))
    ulp = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
    assert np.all(np.abs(got - exact) <= ulp * 0.501 + 1e-6)  # and what float32 loses where a difference is near 0


def node_of(expr, *shapes, dtype=np.float16, out=np.float16):
    inputs = [Value(f"x{k}", shape, np.dtype(dtype)) for k, shape in enumerate(shapes)]
    return Node("Elementwise", "node", inputs, [Value("y", shapes[0], np.dtype(out))], {"expr": expr})


@pytest.mark.parametrize(
    "node",
    [
        node_of(("exp", X), (1, 8, 32, 32)),
        node_of(("div", X, Y), (1, 8, 32, 32), (1, 8, 32, 32)),
        node_of(("add", X, Y), (1, 8, 32, 32), (1, 8, 1, 1)),
        node_of(("relu", X), (1, 8, 32, 32), dtype=np.int32),
        node_of(X, (1, 8, 32, 32), out=np.float32),
        node_of(("add", ("hard_swish", X), ("hard_swish", Y)), (1, 8, 32, 32), (1, 8, 32, 32)),  # six passes
    ],
)
def test_other_expressions_are_for_the_vector_cores(node):
    assert passes_of(node, load_profile("npu-37xx"), 2) is None


def test_a_constant_of_many_numbers_is_an_operand(sketch, run, feeds_of):
    """Turned by an angle for each place, as in a Fourier transform."""
    s = sketch()
    x, y = (s.matmul(s.input(20, 16, 32), s.const(32, 32)) for _ in range(2))
    a, b = s.const(16, 32), s.const(16, 32)
    expr = ("sub", ("mul", ("in", 0), ("in", 1)), ("mul", ("in", 2), ("in", 3)))
    graph = s.graph(s.map(expr, x, a, y, b), s.reshape(x, 320, 32), s.reshape(y, 320, 32))
    compiled = compile_graph(graph, CompileOptions())
    assert "SHAVE" not in {task["engine"] for task in compiled.image.debug["tasks"]}
    found, x, y = (v.astype(np.float64).reshape(20, 16, 32) for v in run(compiled.blob, feeds_of(graph)).values())
    exact = x * a.const.astype(np.float64) - y * b.const.astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=2**-10.99, atol=1e-6)


def test_nan_and_infinity_pass_through(sketch, run):
    s = sketch()
    graph = s.graph(
        *(s.map(expr, s.input(1, 4, 1, 1)) for expr in (("hard_swish", X), ("hard_sigmoid", X, const(0.2), const(0.5))))
    )
    x = np.array([np.nan, np.inf, 65504.0, -65504.0], np.float16).reshape(1, 4, 1, 1)
    compiled = compile_graph(graph, CompileOptions())
    assert "SHAVE" not in {task["engine"] for task in compiled.image.debug["tasks"]}
    swished, gate = (v.ravel() for v in run(compiled.blob, {"x0": x, "x1": x}).values())
    np.testing.assert_array_equal(swished, np.float16([np.nan, np.inf, 65504, 0]))
    np.testing.assert_array_equal(gate, np.float16([np.nan, 1, 1, 0]))


def test_a_band_of_long_rows_is_walked_in_contexts():
    """Three rows of 36 times 64 elements that lie apart: a pixel of 2304 channels would leave 15 of 16 positions idle."""
    assert _three_dims([3, 2304], [[9216, 4]], [4], False) == ([3, 36, 64], [[9216, 256, 4]])
    assert _three_dims([3, 2304], [[9216, 4]], [4], True)[0][-1] == 2304
    # two halves of the 66 would leave positions idle
    assert _three_dims([400, 66], [[1024, 4]], [4], False)[0][-1] == 66
