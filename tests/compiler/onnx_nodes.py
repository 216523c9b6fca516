"""onnx's own node tests as a measure of the operators: which are right on the device, and why the others are not.

    python tests/compiler/onnx_nodes.py            # the counts, and what the lists would gain and lose
    python tests/compiler/onnx_nodes.py --write    # the lists anew; a case that stops being right is refused

`onnx_nodes_oracle.txt` has the cases that are judged, by name: not expanded, static shapes, plain types, and right by
onnxruntime. `onnx_nodes_open.txt` has those that the NPU alone does not get right as they are, with the reason. "host: " in front of
it says that a case is right with nodes on the host, "constant: ..." that the NPU is right when that operand, an input of the
test, is a constant, as it is in models.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).parents[2]
ORACLE = Path(__file__).with_name("onnx_nodes_oracle.txt")
OPEN = Path(__file__).with_name("onnx_nodes_open.txt")
T = onnx.TensorProto
PLAIN = frozenset(
    (T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16, T.INT8, T.INT16, T.INT32, T.INT64, T.UINT8, T.UINT16, T.UINT32, T.UINT64,
     T.BOOL)
)  # fmt: skip
# A step of the type, relative: what rounding to it costs. Everything else keeps the tolerance of the case.
STEPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
NOT_CONSTANT = re.compile(r"node \S+?: (.*) \((\S+)\) is not a constant$")
MAX_CONSTANTS = 8  # operands of a test that become constants one after the other


@dataclass(frozen=True)
class Case:
    """One test; `sets` are (inputs, outputs) by name."""

    name: str
    model: onnx.ModelProto
    sets: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]
    rtol: float
    atol: float


def cases(modules=None):
    """Return the cases that may be judged, by name; only those of some modules of onnx's (quick), or of all (15 s)."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if modules is None:
            found = node.collect_testcases(None)
        else:
            for module in modules:
                importlib.import_module(f"onnx.backend.test.case.node.{module}")
            found = node._NodeTestCases
    kept = [case for case in found if "_expanded" not in case.name and _is_plain(case.model)]
    return {case.name: _case(case) for case in kept}


def _is_plain(model):
    for value in (*model.graph.input, *model.graph.output):
        tensor = value.type.tensor_type
        if value.type.WhichOneof("value") != "tensor_type" or tensor.elem_type not in PLAIN:
            return False
        if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            return False
    return True


def _case(case):
    graph = case.model.graph

    def named(values, arrays):
        arrays = [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x) for x in arrays]
        return dict(zip((value.name for value in values), arrays, strict=True))

    sets = [(named(graph.input, inputs), named(graph.output, outputs)) for inputs, outputs in case.data_sets]
    return Case(case.name, case.model, sets, case.rtol, case.atol)


def difference(case, got, expected):
    """Return what is wrong with the outputs, "" when nothing is: integers exactly, floats within the tolerance."""
    for name, want in expected.items():
        have = got[name]
        if (have.dtype, have.shape) != (want.dtype, want.shape):
            return f"{name} is {have.dtype}{have.shape}, expected {want.dtype}{want.shape}"
        if want.dtype.kind in "iub":
            good = np.array_equal(have, want)
        else:
            rtol = max(case.rtol, STEPS.get(want.dtype.name, 0.0))
            wide = have.astype(np.float64), want.astype(np.float64)
            good = np.allclose(*wide, rtol=rtol, atol=case.atol, equal_nan=True)
        if not good:
            return f"wrong values of {name}"
    return ""


def by_onnxruntime(case):
    """Return what onnxruntime does wrong with a case, or "". It exchanges bfloat16 with NumPy as float32."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    model = _with_float32_ends(case.model)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for inputs, expected in case.sets:
            feeds = {
                item.name: inputs[item.name].astype(np.float32)
                if inputs[item.name].dtype.name == "bfloat16"
                else inputs[item.name]
                for item in session.get_inputs()
            }
            names = [item.name for item in session.get_outputs()]
            got = dict(zip(names, session.run(names, feeds), strict=True))
            got = {name: array.astype(expected[name].dtype) if expected[name].dtype.name == "bfloat16" else array
                   for name, array in got.items()}  # fmt: skip
            if wrong := difference(case, got, expected):
                return wrong
    except Exception as error:  # of onnxruntime's many kinds: it does not do the case
        return str(error)
    return ""


def _with_float32_ends(model):
    """Return `model` with casts behind inputs and before outputs of bfloat16."""
    ends = [v for v in (*model.graph.input, *model.graph.output) if v.type.tensor_type.elem_type == T.BFLOAT16]
    if not ends:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    names = {value.name for value in ends}
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [f"{name}.inside" if name in names else name for name in field]
    for value in graph.input:
        if value.name in names:
            value.type.tensor_type.elem_type = T.FLOAT
            inner = f"{value.name}.inside"
            graph.node.insert(0, onnx.helper.make_node("Cast", [value.name], [inner], to=T.BFLOAT16))
    for value in graph.output:
        if value.name in names:
            value.type.tensor_type.elem_type = T.FLOAT
            graph.node.append(onnx.helper.make_node("Cast", [f"{value.name}.inside"], [value.name], to=T.FLOAT))
    return result


def on_device(case, device):
    """Return why the NPU alone does not get a case right as it is, "" when it does; "host: ..." and "constant: ..." as the module says."""
    reason = _on_device(case, device, strict=True)
    return f"host: {reason}" if reason and not _on_device(case, device, strict=False) else reason


def _on_device(case, device, strict):
    from libnpu.compiler import CompileOptions, compile_model

    made_constant, needed = {}, []
    try:
        for inputs, expected in case.sets:
            for _ in range(MAX_CONSTANTS):
                try:
                    options = CompileOptions(precision="fp32", strict=strict)
                    compiled = compile_model(_frozen(case.model, made_constant), options)
                    break
                except Exception as error:
                    match = NOT_CONSTANT.search(str(error)) if strict else None
                    if match is None or match[2] not in inputs or match[2] in made_constant:
                        raise
                    made_constant[match[2]] = inputs[match[2]]
                    needed.append(match[1])
            with device.load(compiled.blob) as blob:
                got = blob.run({name: array for name, array in inputs.items() if name not in made_constant})
            if wrong := difference(case, got, expected):
                return wrong
    except Exception as error:
        return re.sub(r"NPU_ERROR_\w+: ", "", f"{type(error).__name__}: {error}".splitlines()[0])
    return f"constant: {', '.join(needed)}" if needed else ""


def _frozen(model, constants):
    """Return `model` with some inputs as initialisers."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    rest = [value for value in result.graph.input if value.name not in constants]
    del result.graph.input[:]
    result.graph.input.extend(rest)
    result.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return result


def read_oracle():
    """Return the names of the cases that are judged."""
    return ORACLE.read_text().split()


def read_open():
    """Return case -> reason."""
    return dict(line.split("\t") for line in OPEN.read_text().splitlines())


def counts(judged, open_cases):
    """Return the lines of a summary: right of all, and the reasons by frequency."""
    host = sum(reason.startswith("host: ") for reason in open_cases.values())
    kinds = Counter(re.sub(r"node \S+?: |\(\S*\)|\b(input|output|value) \S+", "", r) for r in open_cases.values())
    right = len(judged) - len(open_cases)
    lines = [f"{right} right on the NPU alone, {host} more with nodes on the host, of {len(judged)}"]
    return lines + [f"{count:4} {kind}" for kind, count in kinds.most_common()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the lists anew")
    parser.add_argument("--only", default="", help="a pattern of names: run and show those cases, write nothing")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / folder) for folder in (".", "include", "driver", "firmware", "device")]
    import libnpu

    warnings.simplefilter("ignore")
    found = cases()
    if options.only:
        chosen = [name for name in found if re.search(options.only, name)]
        with libnpu.open("npu-37xx") as device:
            for name in chosen:
                print(f"{name}\t{on_device(found[name], device) or 'right'}")
        return
    if options.write:
        judged = sorted(name for name, case in found.items() if not by_onnxruntime(case))
    else:
        judged = [name for name in read_oracle() if name in found]
    with libnpu.open("npu-37xx") as device:
        now = {name: reason for name in judged if (reason := on_device(found[name], device))}
    before = read_open() if OPEN.exists() else dict.fromkeys(judged, "")
    lost = [f"{name}: {now[name]}" for name in now if name in judged and name not in before]
    gained = [name for name in before if name in judged and name not in now]
    print("\n".join(counts(judged, now)))
    print(f"{len(gained)} became right: {' '.join(gained)}")
    if lost:
        sys.exit("no longer right:\n" + "\n".join(lost))
    if options.write:
        ORACLE.write_text("".join(f"{name}\n" for name in judged))
        OPEN.write_text("".join(f"{name}\t{reason}\n" for name, reason in now.items()))


if __name__ == "__main__":
    main()
