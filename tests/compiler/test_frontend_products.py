"""Products with one matrix that become one product, and those that have to stay apart."""

from __future__ import annotations

import numpy as np
import pytest

STEPS, WIDTH = 6, 5


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def products(graph):
    """Return the shapes of the left operands of all products, in order."""
    return [node.inputs[0].shape for node in graph.nodes if node.op == "MatMul"]


def cell(number, fed, state, out):
    """Return the nodes of one step of a recurrence: out = tanh(fed W + state R + b)."""
    names = [f"{what}{number}" for what in "pqst"]
    return [
        ("MatMul", [fed, "w"], [names[0]], {}),
        ("MatMul", [state, "r"], [names[1]], {}),
        ("Add", [names[0], names[1]], [names[2]], {}),
        ("Add", [names[2], "b"], [names[3]], {}),
        ("Tanh", [names[3]], [out], {}),
    ]


def unrolled(order, axis=0):
    """Return nodes and constants of a recurrence over `order`, which reads pieces of x along `axis`."""
    nodes, state, outs = [], "start", []
    for number, step in enumerate(order):
        nodes += [
            ("Gather", ["x", f"i{step}"], [f"x{number}"], {"axis": axis}),
            *cell(number, f"x{number}", state, f"h{number}"),
        ]
        state = f"h{number}"
        outs.append(state)
    return [*nodes, ("Concat", outs, ["y"], {"axis": 0})], {f"i{step}": np.int64(step) for step in order}


def weights(rng):
    return {"w": f32(rng, WIDTH, 8), "r": f32(rng, 8, 8) / 8, "b": f32(rng, 8), "start": np.zeros((2, 8), np.float32)}


@pytest.mark.parametrize("order", [range(STEPS), range(STEPS)[::-1], (4, 1, 2, 0, 3, 5)])
def test_the_inputs_of_a_recurrence_are_one_product(order, check, rng):
    nodes, constants = unrolled(order)
    graph = check(nodes, {"x": f32(rng, STEPS, 2, WIDTH)}, constants={**constants, **weights(rng)})
    assert products(graph)[0] == (STEPS * 2, WIDTH)
    assert products(graph).count((2, 8)) == len(products(graph)) - 1 >= STEPS - 1
    assert "Concat" not in [node.op for node in graph.nodes][:-1]


def test_steps_that_are_left_out_are_not_multiplied(check, rng):
    nodes, constants = unrolled((1, 2, 3, 5))
    graph = check(nodes, {"x": f32(rng, STEPS, 2, WIDTH)}, constants={**constants, **weights(rng)})
    assert products(graph)[0] == (4 * 2, WIDTH)


def test_rows_that_lie_apart_are_put_together(check, rng):
    """Along the second axis a step has a row of each of the batch."""
    nodes, constants = unrolled(range(STEPS), axis=1)
    graph = check(nodes, {"x": f32(rng, 2, STEPS, WIDTH)}, constants={**constants, **weights(rng)})
    assert products(graph)[0] == (STEPS * 2, WIDTH)


@pytest.mark.parametrize(("steps", "rows"), [(3, 2), (4, 17)])
def test_few_products_and_those_of_many_rows_stay_apart(steps, rows, check, rng):
    nodes, constants = unrolled(range(steps))
    constants = {**constants, **weights(rng), "start": np.zeros((rows, 8), np.float32)}
    graph = check(nodes, {"x": f32(rng, steps, rows, WIDTH)}, constants=constants)
    assert products(graph).count((rows, WIDTH)) == steps


def test_a_second_layer_waits_for_the_whole_first_one_only_if_it_is_computed_then(check, rng):
    """Layer by layer, the second layer's inputs are one product too; step by step, they are made too late."""
    first, constants = unrolled(range(STEPS))
    second = [("Gather", ["y1", f"i{k}"], [f"z{k}"], {"axis": 0}) for k in range(STEPS)]
    outs = [f"v{k}" for k in range(STEPS)]
    second += [("MatMul", [f"z{k}", "r"], [f"m{k}"], {}) for k in range(STEPS)]
    second += [("Exp", [f"m{k}"], [outs[k]], {}) for k in range(STEPS)]
    first[-1] = ("Concat", [f"u{k}" for k in range(STEPS)], ["y1"], {"axis": 0})
    first[-1:-1] = [("Unsqueeze", [f"h{k}", "zero"], [f"u{k}"], {}) for k in range(STEPS)]
    constants = {**constants, **weights(rng), "zero": np.array([0], np.int64)}
    layers = check(
        [*first, *second, ("Concat", outs, ["y"], {"axis": 0})],
        {"x": f32(rng, STEPS, 2, WIDTH)},
        constants=constants,
    )
    assert (STEPS * 2, 8) in products(layers)


def test_a_chain_of_products_stays_one(check, rng):
    nodes = [("MatMul", [f"v{k}", "r"], [f"v{k + 1}"], {}) for k in range(6)]
    nodes[-1] = ("MatMul", ["v5", "r"], ["y"], {})
    graph = check(nodes, {"v0": f32(rng, 2, 8)}, constants={"r": f32(rng, 8, 8) / 8})
    assert products(graph) == [(2, 8)] * 6


def test_results_that_are_outputs_and_operands_that_are_inputs(make_model, oracle, rng):
    """Several inputs of several ranks, one of them twice; each result is an output."""
    import libnpu
    from libnpu.compiler import CompileOptions, compile_model
    from libnpu.compiler.frontend import load

    feeds = {"a": f32(rng, 2, WIDTH), "b": f32(rng, 1, 3, WIDTH), "c": f32(rng, 1, WIDTH), "d": f32(rng, 4, WIDTH)}
    nodes = [("MatMul", [name, "w"], [f"{name}y"], {}) for name in feeds]
    model = make_model(nodes, feeds, [f"{name}y" for name in feeds], {"w": f32(rng, WIDTH, 8)})
    assert products(load(model, precision="fp32")) == [(10, WIDTH)]
    with libnpu.open("npu-37xx") as device:
        found = device.load(compile_model(model, CompileOptions(precision="fp32")).blob).run(feeds)
    for name, wanted in oracle(model, feeds).items():
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_layer_of_each_step_is_a_layer_of_all(batch, check, rng):
    """What is written out step by step and stacked is one product, with the bias and activation that follow each."""
    nodes = [
        node
        for k in range(STEPS)
        for node in (
            ("Gather", ["x", f"i{k}"], [f"x{k}"], {"axis": 1}),
            ("MatMul", [f"x{k}", "w"], [f"p{k}"], {}),
            ("Add", [f"p{k}", "b"], [f"s{k}"], {}),
            ("Relu", [f"s{k}"], [f"r{k}"], {}),
            ("Unsqueeze", [f"r{k}", "one"], [f"u{k}"], {}),
        )
    ]
    nodes.append(("Concat", [f"u{k}" for k in range(STEPS)], ["y"], {"axis": 1}))
    constants = {f"i{k}": np.int64(k) for k in range(STEPS)} | {"one": np.array([1], np.int64)}
    constants |= {"w": f32(rng, WIDTH, 8), "b": f32(rng, 8)}
    graph = check(nodes, {"x": f32(rng, batch, STEPS, WIDTH)}, constants=constants)
    assert products(graph) == [(STEPS * batch, WIDTH)]
    assert len(graph.nodes) <= 3 or batch > 1
    assert [node.op for node in graph.nodes].count("Concat") == (batch > 1)


def test_pieces_in_another_order_stay_pieces(check, rng):
    nodes = [("Gather", ["x", f"i{k}"], [f"x{k}"], {"axis": 0}) for k in range(4)]
    nodes.append(("Concat", ["x0", "x1", "x3", "x2"], ["y"], {"axis": 0}))
    graph = check(nodes, {"x": f32(rng, 4, 2, 3)}, constants={f"i{k}": np.int64(k) for k in range(4)})
    assert [node.op for node in graph.nodes].count("Concat") == 1
    nodes[-1] = ("Concat", ["x0", "x1", "x2", "x3"], ["y"], {"axis": 1})
    graph = check(nodes, {"x": f32(rng, 4, 2, 3)}, constants={f"i{k}": np.int64(k) for k in range(4)})
    assert {node.op for node in graph.nodes} == {"Reshape", "Transpose"}
