"""Models through every layer on npu-37xx, in fp32 and fp16 policy: whether their values are right, and what the compiler took.

    python -m benchmarks.model_values                            the nine topologies of the onnx package, with seeded weights
    python -m benchmarks.model_values --folder F [NAME ...]      the models F/NAME.onnx beside them, with F/NAME.npz
    python -m benchmarks.model_values --compile-only [NAME ...]  without running them

An .npz has `in0...`, `out0...`, `input_names` and `output_names`; without one, inputs are seeded and onnxruntime says what is
right. Exit status 1 when a model is refused or wrong.

Errors are the largest difference of an output over its largest value. In fp32 policy at most 1e-4: products are summed
exactly and rounded once, but each value in between is rounded to 24 bits in another order than the reference's. In fp16
policy the values in between have 11 bits; a rounding is 2^-11 of a value and some hundred of them add up as a random walk,
so 3e-2 and a cosine of 0.999. Some models make more of a difference: onnxruntime runs each with its inputs and constants rounded to
float16 and nothing else, and an output may be off by twice what that costs it, as the values in between are rounded too. A model with quantised values has steps: the least difference before one may end a step
apart, so that its outputs are held to the limits of fp16 in both policies. Integers are equal.

A Sigmoid or Softmax at the end hides its operand: scores far below zero all give nothing, and onnxruntime's own Sigmoid is off by
up to 2^-23. So its operand becomes an output too, which is judged as above against onnxruntime's, and its result as a number
out of 1.

Seconds are CPU time of the compiler without imports (a small model is compiled before), which other processes do not change
much.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.pipeline import Compiled

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
PROFILE = "npu-37xx"
FP32_ERROR, FP16_ERROR, FP16_COSINE = 1e-4, 3e-2, 0.999
HALF_MAX = 65504.0
HIDING = frozenset({"Sigmoid", "Softmax"})
STEPPED = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QLinearAdd"})
COLUMNS = ("model", "policy", "right", "error", "cosine", "compile, s", "tasks", "makespan, us", "weights, KiB")
COLUMNS += ("scratch, KiB", "CMX peak, KiB", "spilled, KiB")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A model with inputs and what its outputs should be; `shapes` fixes what it leaves open."""

    name: str
    model: Any
    shapes: dict[str, tuple[int, ...]]
    feeds: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]
    of_one: frozenset[str]  # outputs whose operand is one too, numbers out of 1
    steps: bool  # whether it rounds to quantised values on the way
    halved: dict[str, float] = field(default_factory=dict)  # output -> error from float16 in inputs and constants alone


def from_folder(folder: Path, name: str) -> Case:
    """Return the model `name` of a folder of models with their inputs and outputs."""
    with np.load(folder / f"{name}.npz") as file:
        feeds = {str(key): file[f"in{k}"] for k, key in enumerate(file["input_names"])}
        expected = {str(key): file[f"out{k}"] for k, key in enumerate(file["output_names"])}
    return _case(name, folder / f"{name}.onnx", {key: array.shape for key, array in feeds.items()}, feeds, expected)


def topology(name: str) -> Case:
    """Return a topology of the onnx package with seeded weights and inputs; onnxruntime says what is right."""
    from models import inputs, seeded

    path = seeded(name)
    return _case(name, path, {}, inputs(path), {})


def _case(
    name: str,
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    feeds: dict[str, NDArray[Any]],
    expected: dict[str, NDArray[Any]],
) -> Case:
    """Return the case of a model file; onnxruntime gives the outputs that `expected` lacks."""
    import onnx

    model = onnx.load(path)
    outputs = {output.name for output in model.graph.output}
    last = [node for node in model.graph.node if node.op_type in HIDING and node.output[0] in outputs]
    for node in last:
        if node.input[0] not in outputs:
            model.graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None))
            outputs.add(node.input[0])
    if missing := [output.name for output in model.graph.output if output.name not in expected]:
        expected = expected | dict(zip(missing, _by_onnxruntime(model, missing, feeds), strict=True))
    names = [name for name, want in expected.items() if want.dtype.kind == "f"]
    halves = {name: _half(array) for name, array in feeds.items()}
    rounded = dict(zip(names, _by_onnxruntime(_of_halves(model), names, halves), strict=True))
    of_one = frozenset(node.output[0] for node in last)
    halved = {name: _error(rounded[name], expected[name], name in of_one) for name in names}
    steps = any(node.op_type in STEPPED for node in model.graph.node)
    return Case(name, model, shapes, feeds, expected, of_one, steps, halved)


def _by_onnxruntime(model: Any, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[NDArray[Any]] = session.run(names, feeds)
    return results


def _of_halves(model: Any) -> Any:
    """Return the model with its float32 constants rounded to float16."""
    import onnx

    result = onnx.ModelProto()
    result.CopyFrom(model)
    for tensor in result.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(_half(onnx.numpy_helper.to_array(tensor)), tensor.name))
    return result


def _half(array: NDArray[Any]) -> NDArray[Any]:
    """Return float32 numbers rounded to float16, those beyond it saturated."""
    if array.dtype != np.float32:
        return array
    return np.asarray(np.clip(array, -HALF_MAX, HALF_MAX), np.float16).astype(np.float32)


def _error(have: NDArray[Any], want: NDArray[Any], of_one: bool) -> float:
    """Return the largest difference over the largest value, or out of 1."""
    a, b = have.astype(np.float64), want.astype(np.float64)
    largest = 1.0 if of_one else max(float(np.abs(b).max(initial=0.0)), 1e-30)
    return float(np.abs(a - b).max(initial=0.0)) / largest


def wrong(case: Case, precision: str, got: dict[str, NDArray[Any]]) -> tuple[str, float, float]:
    """Return what is wrong ("" when nothing is), the largest error and the smallest cosine over the outputs."""
    reason, worst, least = "", 0.0, 1.0
    for name, want in case.expected.items():
        have = got[name]
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            return f"{name} is {have.dtype}{have.shape}, expected {want.dtype}{want.shape}", worst, least
        if want.dtype.kind in "iub":
            if not np.array_equal(have, want):
                reason = f"{np.count_nonzero(have != want)} of {want.size} integers of {name}"
            continue
        a, b = have.astype(np.float64).ravel(), want.astype(np.float64).ravel()
        error = _error(have, want, name in case.of_one)
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        cosine = float(a @ b) / lengths if lengths and name not in case.of_one else 1.0
        exact = precision == "fp32" and not case.steps
        limit = FP32_ERROR if exact else max(FP16_ERROR, 2 * case.halved.get(name, 0.0))
        if not error <= limit or not (exact or cosine >= FP16_COSINE):
            reason = f"{name}: error {error:.2g}, cosine {cosine:.5f}"
        worst, least = max(worst, error if error == error else float("inf")), min(least, cosine)
    return reason, worst, least


def row(case: Case, precision: str, run: bool) -> tuple[list[str], bool]:
    """Compile and run one model; return the cells of its line, and whether it is right."""
    import libnpu
    from libnpu.compiler import CompileOptions, compile_model

    gc.collect()
    start = time.process_time()
    try:
        compiled: Compiled = compile_model(
            case.model, CompileOptions(precision=precision, profile=PROFILE, shapes=case.shapes), cache=False
        )
    except (ValueError, libnpu.NpuError, AssertionError) as error:
        text = " ".join(str(error).split())
        return [case.name, precision, f"refused: {text}", "", "", f"{time.process_time() - start:.1f}"], False
    seconds = time.process_time() - start
    reason, error, cosine = "", float("nan"), float("nan")
    if run:
        with libnpu.open(PROFILE, where="") as device, device.load(compiled.blob) as module:
            reason, error, cosine = wrong(case, precision, module.run(case.feeds))
    judged = [f"no: {reason}" if reason else "yes", f"{error:.1e}", f"{cosine:.5f}"] if run else ["", "", ""]
    cells = [case.name, precision, *judged]
    report, image = compiled.report, compiled.image
    cells += [f"{seconds:.1f}", str(sum(report["tasks"].values())), f"{report['predicted_makespan_ps'] / 1e6:.0f}"]
    spilled = report["spill_out_bytes"] + report["spill_in_bytes"]
    sizes = (image.weight_bytes, image.scratch_bytes, report["peak_cmx_bytes"], spilled)
    return cells + [f"{size / 1024:.0f}" for size in sizes], not reason


def warm_up() -> None:
    """Compile a small model, so that imports and tables are made before anything is timed."""
    from onnx import TensorProto, helper

    from libnpu.compiler import compile_model

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "small", ends[:1], ends[1:])
    compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def main(arguments: list[str]) -> int:
    """Print one line per model and policy as it is known; return 1 when one is not right."""
    from models import SEEDED

    parser = argparse.ArgumentParser(description="whole models in fp32 and fp16 policy: values, compile time, size")
    parser.add_argument("names", nargs="*", help="models; default: all that there are")
    parser.add_argument("--folder", type=Path, help="folder with NAME.onnx and NAME.npz")
    parser.add_argument("--precision", nargs="+", default=["fp32", "fp16"], choices=["fp32", "fp16"])
    parser.add_argument("--compile-only", action="store_true", help="do not run the models")
    chosen = parser.parse_args(arguments)
    folder = sorted(path.stem for path in chosen.folder.glob("*.onnx")) if chosen.folder else []
    known = {**{name: lambda name=name: topology(name) for name in SEEDED}}
    known |= {name: lambda name=name: from_folder(chosen.folder, name) for name in folder}
    if unknown := [name for name in chosen.names if name not in known]:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(known)}")
    warm_up()
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    all_right = True
    for name in chosen.names or known:
        case = known[name]()
        for precision in chosen.precision:
            cells, right = row(case, precision, not chosen.compile_only)
            print(f"| {' | '.join(cells)} |", flush=True)
            all_right &= right
    return not all_right


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
