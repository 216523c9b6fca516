"""A model in parts through the whole stack: values, streams, crossings, host time, and what is refused."""

import json
import zipfile

import numpy as np
import pytest
from npu_abi import C
from onnx import TensorProto, helper

import libnpu
from libnpu.compiler import CompileOptions, HostPartWarning, compile_model

X = np.array([[-1, 2, 0], [3, 0, 5]], np.float32)


def model_of(nodes, outputs, shape=(2, 3), element=TensorProto.FLOAT):
    results = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in outputs.items()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", element, shape)], results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def compiled(model):
    with pytest.warns(HostPartWarning):
        return compile_model(model, CompileOptions(precision="fp32")).blob


@pytest.fixture(scope="module")
def counting():
    """y = relu(x) * (how many elements of relu(x) are not 0): one part on the host between two on the NPU."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("NonZero", ["a"], ["n"]),
        helper.make_node("Shape", ["n"], ["s"], start=1),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["a", "f"], ["y"]),
    ]
    return compiled(model_of(nodes, {"y": (TensorProto.FLOAT, (2, 3))}))


@pytest.fixture(scope="module")
def finding():
    """z = where relu(x) is not 0, of a shape that only a run tells."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("NonZero", ["a"], ["z"])]
    return compiled(model_of(nodes, {"z": (TensorProto.INT64, (2, "count"))}))


@pytest.fixture
def device():
    with libnpu.open("npu-37xx") as device:
        yield device


def test_values_are_those_of_the_model(device, counting):
    with device.load(counting) as module:
        assert [(t.name, t.shape) for t in (*module.inputs, *module.outputs)] == [("x", (2, 3)), ("y", (2, 3))]
        for x in (X, -X, X + 1):
            a = np.maximum(x, 0)
            np.testing.assert_array_equal(module.run({"x": x})["y"], a * np.count_nonzero(a))


def test_an_output_of_open_shape_comes_from_run_and_not_from_a_launch(device, finding):
    with device.load(finding) as module:
        np.testing.assert_array_equal(module.run({"x": X})["z"], [[0, 1, 1], [1, 0, 2]])
        assert module.run({"x": -X})["z"].tolist() == [[0], [0]]
        with pytest.raises(libnpu.Unsupported, match="output 'z' of 'g': only a run tells its shape"):
            module["g"].launch(None, device.alloc(64), device.alloc(64))


def test_launches_in_two_streams_share_the_memory_between_parts_in_turn(device, counting):
    module = device.load(counting)
    inputs = [device.to_device(X * scale) for scale in (1, 2, 3)]
    outputs = [device.alloc(24) for _ in inputs]
    streams = [device.create_stream(), device.create_stream()]
    for index, (x, y) in enumerate(zip(inputs, outputs, strict=True)):
        streams[index % 2].launch(module, {"x": x}, {"y": y})
    assert module.in_flight == 3
    with pytest.raises(libnpu.NpuError, match="IN_USE"):
        module.unload()
    for stream in streams:
        stream.synchronize()
    for scale, y in zip((1, 2, 3), outputs, strict=True):
        np.testing.assert_array_equal(y.read(np.float32, (2, 3)), np.maximum(X, 0) * scale * 3)
    module.unload()


def test_a_launch_returns_at_once_and_the_host_part_takes_the_hosts_time(device, counting):
    module, x, y = device.load(counting), device.to_device(X), device.alloc(24)
    stream = device.create_stream()
    stream.launch(module, {"x": x}, {"y": y})
    returned = device.now_ps
    stream.launch(module, {"x": x}, {"y": y})
    jobs = module.last_launch
    stream.synchronize()
    assert [job.operation.kind for part in jobs for job in part] == [
        "model",
        "memcpy",
        "host_function",
        "memcpy",
        "model",
    ]
    host = device.primary.profile.host
    copies, gate = (jobs[1][0], jobs[1][2]), jobs[1][1]
    work_ns = 2 * host.api_call_ns + (24 + 8) / host.copy_bytes_per_ns
    assert gate.end_ps - copies[0].end_ps > work_ns * 1000
    assert device.now_ps > returned + gate.latency_ps


def test_crossings_are_copies_by_dma(device, counting):
    module, x, y = device.load(counting), device.to_device(X), device.alloc(24)
    stream = device.create_stream()
    stream.launch(module, {"x": x}, {"y": y})
    jobs = module.last_launch
    stream.synchronize()
    assert [job.operation.size_bytes for job in jobs[1] if job.operation.kind == "memcpy"] == [24, 8]


def test_no_values_no_evaluation_and_the_same_time(counting):
    ends = []
    for compute in (True, False):
        with libnpu.open("npu-37xx", compute=compute) as device, device.load(counting) as module:
            module.run({"x": X})
            ends.append(device.now_ps)
    assert ends[0] - ends[1] == 2400  # y's 24 bytes are read, at 10 bytes per ns


def test_memory_is_free_again(device, counting):
    with device.load(counting) as module:
        module.run({"x": X})  # what the context has of its own
    free = device.memory_info()[0]
    with device.load(counting) as module:
        module.run({"x": X})
        assert module.memory_bytes and device.memory_info()[0] < free
    assert device.memory_info()[0] == free


def test_what_takes_one_operation_refuses_several(device, counting):
    module, x, y = device.load(counting), device.to_device(X), device.alloc(24)
    commands = device.primary.create_command_list()
    with pytest.raises(libnpu.Unsupported, match="'g' as a single operation: 2 of its nodes run on the host"):
        commands.append_launch(module, {"x": x}, {"y": y})
    stream = device.create_stream()
    with pytest.raises(libnpu.NpuError, match="CAPTURE"), stream.capture():
        stream.launch(module, {"x": x}, {"y": y})


def test_an_integer_that_only_the_host_sees_has_64_bits(device):
    model = model_of(
        [helper.make_node("Unique", ["x"], ["y"])], {"y": (TensorProto.INT64, ("n",))}, (3,), TensorProto.INT64
    )
    with device.load(compiled(model)) as module:
        assert module.run({"x": np.array([1 << 40, 7, 1 << 40])})["y"].tolist() == [7, 1 << 40]


def test_an_integer_that_the_npu_does_not_take_ends_the_run_by_name(device):
    nodes = [
        helper.make_node("Unique", ["x"], ["u"], axis=0),
        helper.make_node("Shape", ["u"], ["s"]),
        helper.make_node("Mul", ["s", "s"], ["t"]),
    ]
    graph = helper.make_graph(
        [*nodes[:1], helper.make_node("ReduceMax", ["u"], ["m"], keepdims=0), helper.make_node("Neg", ["m"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, (3,))], [helper.make_tensor_value_info("y", TensorProto.INT64, ())],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with device.load(compiled(model)) as module:
        assert module.run({"x": np.array([4, 7, 4])})["y"] == -7
        with pytest.raises(libnpu.NpuError, match="2147483648"):
            module.run({"x": np.array([4, 1 << 31, 4])})


def test_a_part_that_fails_ends_the_run_with_what_the_evaluator_says(device):
    nodes = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Reshape", ["n", "s"], ["r"]),
             helper.make_node("Neg", ["r"], ["y"])]  # fmt: skip
    model = model_of(nodes, {"y": (TensorProto.INT64, (2, 3))})
    model.graph.initializer.append(helper.make_tensor("s", TensorProto.INT64, (2,), (2, 3)))
    with device.load(compiled(model)) as module:
        np.testing.assert_array_equal(module.run({"x": np.maximum(X, 0)})["y"], [[0, -1, -1], [-1, 0, -2]])
        with pytest.raises(libnpu.NpuError, match=r"HOST_FUNCTION.*part0.*reshape"):
            module.run({"x": X})


def test_a_damaged_container_is_no_blob(device, counting, tmp_path):
    for data in (counting[:100], counting[:-40], counting.replace(b"libnpu model in parts", b"something of another")):
        with pytest.raises(libnpu.NpuError) as error:
            device.load(data)
        assert error.value.result == C.NPU_ERROR_INVALID_BLOB
    path = tmp_path / "m.blob"
    path.write_bytes(counting)
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest["parts"].reverse()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, content)
    with pytest.raises(libnpu.NpuError, match=r"part 0 reads '\w', which nothing before it makes"):
        device.load(path)
