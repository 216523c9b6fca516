"""Activations that leave fp16's range are reported with the layer's name, by the device that rounded them."""

from pathlib import Path

import npu_abi
import numpy as np
import onnx
import pytest
from npu_abi import C, ioctl_request, sizeof

import libnpu
from libnpu.compiler import CompileOptions, compile_model


@pytest.fixture
def two_layers(maker):
    """Return a function that makes two convolutions, the first of which multiplies sums of 16 values by `weight`."""

    def make(weight):
        m = maker()
        m.weights("w", 16, 16, 1, 1, values=np.full((16, 16, 1, 1), weight))
        m.weights("v", 16, 16, 1, 1, values=np.full((16, 16, 1, 1), 1 / 64))
        m.node("Conv", ["x", "w"], "big")
        m.node("Conv", ["big", "v"], "y")
        return m.model({"x": [1, 16, 4, 4]}, {"y": [1, 16, 4, 4]})

    return make


ONES = {"x": np.ones((1, 16, 4, 4), np.float32)}


def overflows(model, feeds, precision="fp16"):
    with libnpu.open() as device:
        device.load(compile_model(model, CompileOptions(precision=precision)).blob).run(feeds)
        return device.overflows()


@pytest.mark.parametrize(("weight", "count"), [(4094.0, 0), (4096.0, 256), (-4096.0, 256)])
def test_the_layer_that_overflows_is_named_and_not_the_one_that_reads_infinities(two_layers, weight, count):
    """16 x 4094 is the largest fp16 but one; 16 x 4096 = 65536 is none."""
    expected = [("big", count)] if count else []
    assert overflows(two_layers(weight), ONES) == expected
    assert overflows(two_layers(weight), ONES, "fp32") == []


def test_an_infinite_input_is_no_overflow(two_layers):
    feeds = {"x": np.full((1, 16, 4, 4), np.inf, np.float32)}
    assert overflows(two_layers(1.0), feeds) == []


def test_a_finite_input_beyond_the_range_is_one_of_the_layer_that_reads_it(two_layers):
    feeds = {"x": np.zeros((1, 16, 4, 4), np.float32)}
    feeds["x"][0, 3, 1, 2] = 7e4
    ((layer, count),) = overflows(two_layers(0.0), feeds)
    assert (layer, count) == ("x", 1)


def test_a_vector_operation_that_overflows_is_named(maker):
    m = maker()
    m.node("Sigmoid", ["x"], "s")
    m.node("Exp", ["x"], "e")
    m.node("Mul", ["s", "e"], "y")
    model = m.model({"x": [1, 64]}, {"y": [1, 64]})
    x = np.linspace(0, 12, 64, dtype=np.float32).reshape(1, 64)
    assert overflows(model, {"x": x}, "fp32") == []
    m.node("MatMul", ["y", m.weights("w", 64, 16)], "z")
    ((_, count),) = overflows(m.model({"x": [1, 64]}, {"z": [1, 16]}), {"x": x})
    half = x.astype(np.float16).astype(np.float64)
    assert count == np.count_nonzero(np.exp(half) / (1 + np.exp(-half)) >= 65520)


def test_reading_forgets_and_launches_add_up(two_layers):
    with libnpu.open() as device:
        loaded = device.load(compile_model(two_layers(4096.0)).blob)
        loaded.run(ONES)
        loaded.run(ONES)
        assert device.overflows() == [("big", 512)]
        assert device.overflows() == []


def test_a_new_context_of_the_same_number_sees_nothing_of_the_old_one(two_layers):
    with libnpu.open() as device:
        device.load(compile_model(two_layers(4096.0)).blob).run(ONES)
        device.reset()
        assert device.overflows() == []


def test_a_run_warns_with_one_line_per_layer_and_lists_them_in_json(npu, npu_json, two_layers, tmp_path):
    path = tmp_path / "big.onnx"
    onnx.save(two_layers(1e5 / 16), path)
    np.savez(tmp_path / "in.npz", **ONES)
    status, _, err = npu("run", path, "--inputs", tmp_path / "in.npz")
    assert status == 0
    assert err == "npu: warning: big: 256 values left fp16's range and became infinite\n"
    assert npu_json("run", path, "--inputs", tmp_path / "in.npz")["overflows"] == [{"layer": "big", "count": 256}]
    assert npu_json("run", path, "--no-compute")["overflows"] == []


def test_a_model_whose_constant_weights_overflow_fp16_says_in_which_layer(npu_json):
    """The SqueezeNet topology of the onnx package: its sums grow from layer to layer."""
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
    convolutions = {node.name for node in onnx.load(path).graph.node if node.op_type == "Conv"}
    found = npu_json("run", path)["overflows"]
    assert found != []
    assert {entry["layer"] for entry in found} <= convolutions


@pytest.mark.parametrize(
    ("operation", "count"), [("vadd.f16 v2, v1, v1", 2), ("vcvt.f16 v2, v1", 0), ("vadd.f32 v2, v1, v1", 0)]
)
def test_a_program_that_rounds_in_registers_is_counted_too(program_blob, operation, count):
    """The fourth powers of 0 to 15, at most 50,625; twice those of 14 and 15 are above 65,520."""
    code = ["li r2, 1", "li r3, 16", "setvl r2, r3", "viota.i32 v0", "vcvt.f32 v1, v0"]
    code += ["vmul.f32 v1, v1, v1", "vmul.f32 v1, v1, v1", operation, "halt"]
    with libnpu.open() as device:
        device.load(program_blob(code)).run({})
        assert device.overflows() == ([("task 0", count)] if count else [])


def test_records_are_read_as_the_header_says_and_belong_to_their_context(two_layers):
    """The size first, then whole records; another file of the same device sees none of them."""
    blob = compile_model(two_layers(4096.0)).blob
    with libnpu.open() as device:
        device.load(blob).run(ONES)
        node = device.node
        request = ioctl_request(C.NPU_IOCTL_EMU_OVERFLOWS, "npu_emu_overflows")
        syscall = node.machine.syscall  # the seam, as another process would use it
        other, *_ = syscall(ioctl_request(C.NPU_SYS_OPEN, None), b"", [], node.now_ps)
        empty = bytes(sizeof("npu_emu_overflows"))
        ret, out, *_ = syscall(other << 32 | request, empty, [], node.now_ps)
        assert (ret, npu_abi.view("npu_emu_overflows", bytearray(out)).used_bytes) == (0, 0)
        assert device.overflows() == [("big", 256)]
        wrong = npu_abi.new("npu_emu_overflows", used_bytes=1)
        ret, *_ = syscall(node._fd_bits | request, npu_abi.pack(wrong), [], node.now_ps)
        assert ret == -22
