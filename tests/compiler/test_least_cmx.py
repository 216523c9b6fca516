"""Products of several matrices whose result is moved to DDR after the first of them: the rest follows it there."""

import numpy as np
import pytest

import libnpu
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.lower import CompileError


@pytest.mark.parametrize("cmx_bytes", [512, 576, 640])
def test_all_matrices_of_a_product_are_in_one_place(cmx_bytes, make_model, rng):
    feeds = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("a", (2, 6, 7)), ("b", (2, 7, 8)))
    }
    nodes = [
        ("Relu", ["a"], ["r"], {}),
        ("MatMul", ["r", "b"], ["p"], {}),
        ("Transpose", ["p"], ["y"], {"perm": [0, 2, 1]}),
    ]
    model = make_model(nodes, feeds, ["y"])
    try:
        compiled = compile_model(model, CompileOptions(precision="fp32", cmx_bytes=cmx_bytes))
    except CompileError:
        assert cmx_bytes == 512
        return
    with libnpu.open("npu-37xx") as device, device.load(compiled.blob) as blob:
        expected = (np.maximum(feeds["a"], 0) @ feeds["b"]).transpose(0, 2, 1)
        np.testing.assert_allclose(blob.run(feeds)["y"], expected, rtol=1e-5, atol=1e-6)
