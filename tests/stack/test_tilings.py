"""Under policy `exact` a model computes the same bits however little CMX there is; and says so when there is too little."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import libnpu
from libnpu.compiler import CompileOptions, compile_model


def model():
    rng = np.random.default_rng(11)

    def weights(name, *shape):
        scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
        return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a0"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a0"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p", "wd"], ["d0"], pads=[2, 2, 2, 2], dilations=[2, 2], group=48),
        helper.make_node("HardSwish", ["d0"], ["d"]),
        helper.make_node("Conv", ["d", "wg"], ["g"], pads=[1, 1, 1, 1], group=4),
        helper.make_node("Add", ["g", "p"], ["r0"]),
        helper.make_node("Relu", ["r0"], ["r"]),
        helper.make_node("Conv", ["r", "w1"], ["c"]),
        helper.make_node("AveragePool", ["c"], ["v"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["v"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["z"], transB=1),
        helper.make_node("Softmax", ["z"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tilings",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 48])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 40]),
            helper.make_tensor_value_info("r", TensorProto.FLOAT, None),
        ],
        [
            weights("w0", 48, 3, 3, 3),
            weights("b0", 48),
            weights("wd", 48, 1, 3, 3),
            weights("wg", 48, 12, 3, 3),
            weights("w1", 32, 48, 1, 1),
            weights("w2", 40, 32 * 4 * 3),
            weights("b2", 40),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def run(compiled, feeds):
    with libnpu.open() as device:
        return device.load(compiled.blob).run(feeds)


@pytest.mark.parametrize("precision", ["fp16", pytest.param("fp32", marks=pytest.mark.slow)])
def test_less_cmx_means_more_tiles_and_spills_but_the_same_bits(precision):
    feeds = {"x": np.random.default_rng(5).standard_normal((1, 3, 64, 48)).astype(np.float32)}
    whole = compile_model(model(), CompileOptions(precision=precision))
    expected = run(whole, feeds)
    tasks, spills = [], []
    for kib in (512, 256, 128, 64, 48, 32, 24):
        try:
            compiled = compile_model(model(), CompileOptions(precision=precision, cmx_bytes=kib << 10))
        except ValueError as error:
            assert "bytes" in str(error), error
            assert kib < 64, error
            break
        found = run(compiled, feeds)
        for name in expected:
            assert found[name].tobytes() == expected[name].tobytes(), (kib, name)
        assert compiled.report["peak_cmx_bytes"] <= kib << 10
        tasks.append(sum(compiled.report["tasks"].values()))
        spills.append(compiled.report["spill_out_bytes"])
    assert tasks[-1] > tasks[0]
    print(precision, "tasks", tasks, "spilled bytes", spills)


def test_what_cannot_fit_is_named_with_its_bytes():
    with pytest.raises(ValueError, match=r"\d+ bytes"):
        compile_model(model(), CompileOptions(cmx_bytes=2048))


def test_two_runs_and_two_compilations_are_identical_to_the_byte_and_the_picosecond():
    feeds = {"x": np.random.default_rng(5).standard_normal((1, 3, 64, 48)).astype(np.float32)}
    seen = []
    for _ in range(2):
        compiled = compile_model(model(), CompileOptions(cmx_bytes=128 << 10))
        with libnpu.open(trace=True) as device:
            outputs = device.load(compiled.blob).run(feeds)
            seen.append(
                (compiled.blob, {k: v.tobytes() for k, v in outputs.items()}, device.trace().tobytes(), device.now_ps)
            )
    assert seen[0] == seen[1]


def test_spilling_moves_as_many_bytes_back_as_out_and_changes_no_bit(skips):
    feeds = {"x": np.random.default_rng(5).standard_normal((1, 16, 20, 20)).astype(np.float32)}
    expected = run(compile_model(skips), feeds)
    spills = []
    for kib in (128, 96, 80, 64, 56, 52):
        compiled = compile_model(skips, CompileOptions(tiles=1, cmx_bytes=kib << 10))
        assert run(compiled, feeds)["s0"].tobytes() == expected["s0"].tobytes(), kib
        assert compiled.report["spill_out_bytes"] == compiled.report["spill_in_bytes"]
        spills.append(compiled.report["spill_out_bytes"])
    assert spills[0] == 0 and spills[-1] > 0
