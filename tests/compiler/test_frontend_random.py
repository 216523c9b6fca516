"""Random small graphs: no stage changes the values."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libnpu.compiler.frontend import stages
from libnpu.compiler.reference import run_reference

UNARY = ["Relu", "Tanh", "Sigmoid", "Neg", "HardSwish"]
STEPS = st.lists(
    st.tuples(st.sampled_from(["unary", "binary", "channel", "conv", "turn", "reshape", "reduce", "pad"]), st.integers(0, 99), st.integers(0, 99)),
    min_size=1,
    max_size=9,
)  # fmt: skip
SHAPE = (1, 4, 3, 4)


def build(steps):
    """Return nodes, constants and outputs; every value has SHAPE, so that any two can meet."""
    rng = np.random.default_rng(len(steps))
    nodes, constants, values = [], {}, ["x"]

    def constant(array):
        constants[f"k{len(constants)}"] = array
        return f"k{len(constants) - 1}"

    for number, (kind, first, second) in enumerate(steps):
        a, b, y = values[-1 - first % len(values)], values[-1 - second % len(values)], f"v{number}"
        vector = constant(rng.standard_normal((4, 1, 1)).astype(np.float32)) if kind == "channel" else ""
        match kind:
            case "unary":
                nodes.append((UNARY[second % len(UNARY)], [a], [y], {}))
            case "binary":
                nodes.append((["Add", "Sub", "Mul", "Max"][first % 4], [a, b], [y], {}))
            case "channel":
                nodes.append((["Add", "Mul", "Sub"][second % 3], [a, vector], [y], {}))
            case "conv":
                weights = constant(rng.standard_normal((4, 4, 1, 1)).astype(np.float32) / 2)
                nodes.append(("Conv", [a, weights], [y], {}))
            case "turn":
                nodes.append(("Transpose", [a], [f"{y}t"], {"perm": [0, 3, 2, 1]}))
                nodes.append((UNARY[second % len(UNARY)], [f"{y}t"], [y], {}))
            case "reshape":
                nodes.append(("Reshape", [a, constant(np.array([4, 12]))], [f"{y}r"], {}))
                nodes.append((UNARY[second % len(UNARY)], [f"{y}r"], [f"{y}u"], {}))
                nodes.append(("Reshape", [f"{y}u", constant(np.array(SHAPE))], [y], {}))
            case "reduce":
                nodes.append(("ReduceMean", [a], [f"{y}m"], {"axes": [second % 4], "keepdims": 1}))
                nodes.append(("Sub", [b, f"{y}m"], [y], {}))
            case "pad":
                nodes.append(("Pad", [a, constant(np.array([0, 0, 1, 0, 0, 0, 0, 1]))], [f"{y}p"], {}))
                weights = constant(rng.standard_normal((4, 4, 2, 2)).astype(np.float32) / 4)
                nodes.append(("Conv", [f"{y}p", weights], [y], {}))
        values.append(y)
    return nodes, constants, values[-2:] if len(values) > 2 else values[-1:]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_stages_keep_the_values(make_model, steps):
    nodes, constants, outputs = build(steps)
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    model = make_model(nodes, {"x": x}, outputs, constants)
    results = {stage: run_reference(graph, {"x": x}) for stage, graph in stages(model, precision="fp32")}
    for name in outputs:
        want = results["import"][name]
        for stage, values in results.items():
            scale = np.abs(want).max() + 1
            np.testing.assert_allclose(values[name], want, rtol=0, atol=1e-5 * scale, err_msg=f"{stage} {name}")
