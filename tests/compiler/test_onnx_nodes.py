"""onnx's own node tests: a sample always, all of them when there is time; the list of those that are not right only shrinks."""

from __future__ import annotations

import pytest

import libnpu
from tests.compiler import onnx_nodes as nodes

# Operators whose tests are quick to make, of several kinds; onnx's module of tests has the name in lower case.
SAMPLE = (
    "Add", "Atan", "BitShift", "Cast", "Clip", "CumSum", "Div", "Equal", "GatherElements", "Hardmax", "IsInf", "Mod",
    "Pow", "Where",
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")  # onnx makes inputs that overflow


@pytest.fixture(scope="module")
def sample():
    return nodes.cases([operator.lower() for operator in SAMPLE])


@pytest.fixture(scope="module")
def device():
    with libnpu.open("npu-37xx") as device:
        yield device


def check(device, found):
    """Run the judged ones of some cases: those that are not right must be those of the list."""
    judged, listed = set(nodes.read_oracle()), nodes.read_open()
    now = [name for name in found if name in judged and nodes.on_device(found[name], device)]
    before = [name for name in listed if name in found]
    assert sorted(now) == sorted(before), (
        "python tests/compiler/onnx_nodes.py says more, and with --write shortens the list"
    )


@pytest.mark.parametrize("operator", SAMPLE)
def test_a_sample_of_the_node_tests_is_right_but_for_the_list(operator, sample, device):
    found = {name: case for name, case in sample.items() if case.model.graph.node[0].op_type == operator}
    assert found
    check(device, found)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_node_tests_are_right_but_for_the_list(device):
    check(device, nodes.cases())


def test_the_list_names_judged_cases_with_their_reasons():
    judged, listed = nodes.read_oracle(), nodes.read_open()
    assert judged == sorted(judged) and set(listed) <= set(judged)
    assert all(listed.values())
    assert nodes.counts(judged, listed)[0].startswith(f"{len(judged) - len(listed)} right on the NPU alone, ")
