"""Random models against onnxruntime: a slice of them always, two thousand in `make long`; and the fuzzer itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from libnpu.compiler.frontend.handlers import FOREIGN, HANDLERS
from tests.compiler.fuzz.judge import ALL_LEVELS, differs, fuzz, grown, judge, open_device, shrunk
from tests.compiler.fuzz.model import Model, Node
from tests.compiler.fuzz.oracle import bounds, evaluate
from tests.compiler.fuzz.recipes import NOT_DRAWN, RECIPES

pytestmark = pytest.mark.filterwarnings("ignore")  # of NumPy about what overflows, while a model is drawn
BODIES = {
    s.name
    for s in onnx.defs.get_all_schemas()
    if s.domain == "" and (s.has_function or s.has_context_dependent_function)
}
SLICE, ALL = 8, 2000
REFUSED_SHARE = 0.02  # chosen: what the compiler does not do is the exception


@pytest.fixture(scope="module")
def device():
    with open_device() as device:
        yield device


def check(device, count, seed, **how):
    refused = models = 0
    for number, model, verdict in fuzz([(seed, number) for number in range(count)], device, **how):
        if verdict.fault:
            small = shrunk(model, lambda smaller: bool(judge(smaller, device, **how).fault))
            pytest.fail(f"{number}: {verdict.fault}\n{small.text()}\n{judge(small, device, **how).fault}")
        models += 1
        refused += bool(verdict.refusal)
    assert models >= 0.95 * count
    assert refused <= max(1, REFUSED_SHARE * count)


def test_a_slice_of_random_models_is_right(device):
    check(device, SLICE, 13)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_thousand_random_models_are_right(device):
    check(device, ALL, 12, options=ALL_LEVELS)


def test_every_operator_of_the_table_is_drawn_or_named():
    table = set(HANDLERS)
    table |= {f"{name} of Microsoft" if name in HANDLERS or name in BODIES else name for _, name in FOREIGN}
    table |= BODIES
    assert table <= set(RECIPES) | set(NOT_DRAWN)
    assert not set(RECIPES) & set(NOT_DRAWN)


def test_a_seed_grows_one_model():
    first, second = grown((11, 3)), grown((11, 3))
    assert first.text() == second.text()
    assert first.proto().SerializeToString() == second.proto().SerializeToString()


def chain():
    """y = Exp(x) / x; z = Neg(y)."""
    x = np.array([1.0, 2.0], np.float32)
    values = {"x": x, "e": np.exp(x), "y": np.exp(x) / x, "z": -np.exp(x) / x}
    nodes = [Node("Exp", ("x",), ("e",), {}), Node("Div", ("e", "x"), ("y",), {}), Node("Neg", ("y",), ("z",), {})]
    return Model(17, nodes, {"x": x}, {}, ["y", "z"], values)


def test_a_right_model_is_right_and_a_wrong_one_is_told(device):
    model = chain()
    assert judge(model, device).fault == ""
    wrong = model.values["z"] + 1
    assert differs(model.values["z"], wrong, np.full(2, 0.5)).startswith("2 of 2, at [0] ")
    assert differs(model.values["z"], wrong, np.full(2, np.inf)) == ""


def test_a_wrong_model_shrinks_to_the_node_that_is_wrong():
    small = shrunk(chain(), lambda one: any(node.op == "Div" for node in one.nodes))
    assert [node.op for node in small.nodes] == ["Div"]
    assert small.feeds.keys() == {"x", "e"}
    assert "y float32[2] = Div(e, x)" in small.text()


def test_a_model_that_is_wrong_by_two_outputs_keeps_them():
    small = shrunk(replace(chain(), outputs=["e", "y", "z"]), lambda one: {"e", "z"} <= {*one.outputs})
    assert small.outputs == ["e", "z"]


def test_bounds_know_sums_in_any_order_and_logarithms_of_what_is_near_one():
    x, k, u = np.zeros(2, np.float32), np.array([0, 0, 0]), np.array([5, 1, -5.5], np.float32)
    node = Node("ScatterElements", ("x", "k", "u"), ("y",), {"reduction": "add"})
    values = {"x": x, "k": k, "u": u, "y": evaluate(node, [x, k, u], 18)[0]}
    assert (bounds(Model(18, [node], {"x": x, "u": u}, {"k": k}, ["y"], values), "fp32")["y"] >= 5.5 * 2.0**-24).all()
    x = np.array([[12, 0, 0]], np.float32)
    node = Node("LogSoftmax", ("x",), ("y",), {"axis": 1})
    values = {"x": x, "y": evaluate(node, [x], 18)[0]}
    assert (bounds(Model(18, [node], {"x": x}, {}, ["y"], values), "fp32")["y"] >= 2 * 2.0**-24).all()


def test_a_value_that_is_two_operands_is_rounded_in_two_places():
    """x · k + k is nearly nothing where x is nearly -1: what is left is as wrong as k."""
    x, k = np.array([[[0.75, -1.0, 0.25], [1.0, -0.75, -0.75]]], np.float32), np.array([2.5, 1.75], np.float32)
    node = Node("InstanceNormalization", ("x", "k", "k"), ("y",), {"epsilon": 1e-5})
    values = {"x": x, "k": k, "y": evaluate(node, [x, k, k], 15)[0]}
    found = bounds(Model(15, [node], {"x": x}, {"k": k}, ["y"], values), "fp32")["y"]
    assert (found >= 2.0**-24 * k[:, None]).all()


def test_differences_from_a_mean_are_as_wrong_as_the_mean():
    x = np.array([[[0.007, -0.862], [1.4216147661209106, 1.3230462074279785]]], np.float32)
    k, b = np.array([1.25, 1.0], np.float32), np.zeros(2, np.float32)
    node = Node("InstanceNormalization", ("x", "k", "b"), ("y",), {"epsilon": 1e-5})
    values = {"x": x, "k": k, "b": b, "y": evaluate(node, [x, k, b], 18)[0]}
    found = bounds(Model(18, [node], {"x": x}, {"k": k, "b": b}, ["y"], values), "fp32")["y"]
    assert (found[0, 1] >= 2.0**-24 * 1.37 / np.std(x[0, 1])).all()


def test_bounds_follow_the_types_and_what_operators_do_with_errors():
    limits = {precision: bounds(chain(), precision) for precision in ("fp32", "fp16")}
    assert not limits["fp32"]["x"].any()
    e = np.exp([1.0, 2.0])
    assert (limits["fp16"]["e"] >= e * 2.0**-11).all()
    assert (limits["fp16"]["e"] <= e * 2.0**-6).all()
    assert (limits["fp32"]["e"] <= e * 2.0**-19).all()
