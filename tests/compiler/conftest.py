"""Small ONNX models, and their values by onnxruntime: the oracle that shares nothing with the compiler."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from libnpu.compiler.frontend import load
from libnpu.compiler.reference import run_reference

IR_VERSION = 10  # what every onnxruntime since 1.18 reads


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def make_model():
    """Return make(nodes, inputs, outputs, constants, opset) -> ModelProto.

    `nodes` are (op, inputs, outputs, attributes); inputs are name -> array or (dtype, shape); outputs are names.
    """

    def make(nodes, inputs, outputs, constants=None, opset=17, functions=()):
        protos = [
            helper.make_node(op, ins, outs, name=f"{op}_{index}", **attrs)
            for index, (op, ins, outs, attrs) in enumerate(nodes)
        ]
        infos = []
        for name, value in inputs.items():
            dtype, shape = (value.dtype, value.shape) if isinstance(value, np.ndarray) else value
            infos.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
            )
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
        graph = helper.make_graph(protos, "g", infos, results, tensors)
        foreign = sorted({attrs["domain"] for *_, attrs in nodes if "domain" in attrs})
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in foreign)]
        model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=IR_VERSION)
        inferred = onnx.shape_inference.infer_shapes(model)
        for result, known in zip(model.graph.output, inferred.graph.output, strict=True):
            result.CopyFrom(known)
        return model

    return make


@pytest.fixture
def oracle():
    """Return run(model, feeds) -> outputs by name, by onnxruntime on one thread."""

    def run(model, feeds):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


@pytest.fixture
def check(make_model, oracle):
    """Return check(nodes, feeds, outputs, constants, opset) -> canonical fp32 graph, after comparing both policies."""

    def compare(nodes, feeds, outputs=("y",), constants=None, opset=17, half_tolerance=5e-3, expected=None):
        model = make_model(nodes, feeds, outputs, constants, opset)
        expected = expected or oracle(model, feeds)
        graphs = {}
        for precision, tolerance in (("fp32", 1e-5), ("fp16", half_tolerance)):
            graph = graphs[precision] = load(model, precision=precision)
            actual = run_reference(graph, feeds)
            for name in outputs:
                want, got = expected[name], actual[name]
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                scale = max(1e-30, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
                np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale, err_msg=f"{precision} {name}")
        return graphs["fp32"]

    return compare


@pytest.fixture(scope="module")
def run_on_device():
    """Return run(model, feeds, precision) -> outputs by name, through the whole stack."""
    import libnpu
    from libnpu.compiler import CompileOptions, compile_model

    with libnpu.open("npu-37xx") as device:

        def run(model, feeds, precision="fp32"):
            with device.load(compile_model(model, CompileOptions(precision=precision)).blob) as blob:
                return blob.run(feeds)

        yield run
