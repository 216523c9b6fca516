"""`npu compare`: two ways to run the same model, measured on fresh devices: what each costs host and device.

--mode blob,launch: the whole model as one blob in one launch, against a launch per layer, each layer a blob of its own, in
one stream with one wait at the end. --sched static,dynamic: the core walks through the lists of the blob, or chooses
tasks at run time. Everything is measured in the second of two runs: the first one makes command buffers and instances.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libnpu
from libnpu.tools import reference, source, values
from libnpu.tools.console import CheckFailed, format_time, print_json, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MODES, SCHEDULERS = ("blob", "launch"), ("static", "dynamic")
PS_PER_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """What one way costs. Times are ps of the virtual clock; the host's are from the first launch to the end of the wait."""

    name: str
    launches: int
    doorbells: int  # times that the host told the device about work
    interrupts: int
    host_busy_ps: int
    host_blocked_ps: int
    makespan_ps: int  # of the device: from the start of the first job to the end of the last one
    counters: dict[str, int]  # what the device counted
    outputs: dict[str, NDArray[Any]]

    @property
    def wall_ps(self) -> int:
        """From the first launch to the end of the wait."""
        return self.host_busy_ps + self.host_blocked_ps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL|BLOB", help="an ONNX file; for --sched also what npu compile made of one"
    )
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--mode", type=_choice(MODES), metavar="blob,launch", help="one launch against one per layer")
    ways.add_argument(
        "--sched", type=_choice(SCHEDULERS), metavar="static,dynamic", help="lists against run-time choice"
    )
    parser.add_argument("--inputs", metavar="FILE.npz", help="arrays by input name (default: seeded random values)")
    parser.add_argument("--seed", type=source.count, metavar="N", default=0, help="of the random inputs (default 0)")
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run `options.model` in each way. Raises CheckFailed when the outputs are not the same, after the report."""
    runs, title = _modes(options) if options.mode else _schedulers(options)
    first = runs[0]
    differences = {
        name: max(reference.max_abs_difference(other.outputs[name], array) for other in runs[1:])
        for name, array in first.outputs.items()
    }
    if options.json:
        print_json({"model": options.model, "runs": [_json(run) for run in runs], "max_abs_diff": differences})
    else:
        _print(title, runs, differences)
    for name, difference in differences.items():
        if difference:
            raise CheckFailed(
                f"{options.model}: output {name!r} differs by {difference:.3g} from the one of {first.name}"
            )
    return 0


def _modes(options: argparse.Namespace) -> tuple[list[Run], str]:
    from libnpu.compiler.layers import compile_layers

    source.check_model(options.model)
    whole = source.compile_source(options)
    with progress(f"Compiling the layers of {options.model}"):
        layers = compile_layers(options.model, source.compile_options(options))
    profile = whole.image.profile
    inputs = _inputs(options, whole.image.inputs)
    names = [tensor.name for tensor in whole.image.outputs]
    blobs = {"blob": [whole.blob], "launch": [layer.blob for layer in layers.blobs]}
    return [
        run_way(mode, profile, blobs[mode], inputs, names) for mode in options.mode
    ], f"{whole.image.name} on {profile}"


def _schedulers(options: argparse.Namespace) -> tuple[list[Run], str]:
    model = source.open_source(options)
    profile = options.profile or model.image.profile
    inputs = _inputs(options, model.image.inputs)
    names = [tensor.name for tensor in model.image.outputs]
    runs = [run_way(s, profile, [model.data], inputs, names, dynamic=s == "dynamic") for s in options.sched]
    return runs, f"{model.image.name} on {profile}"


def _inputs(options: argparse.Namespace, tensors: Sequence[Any]) -> dict[str, NDArray[Any]]:
    from libnpu.runtime import TensorInfo

    infos = [TensorInfo(t.name, t.dtype, t.shape, t.size_bytes) for t in tensors]
    return values.load_inputs(options.inputs, infos) if options.inputs else values.random_inputs(infos, options.seed)


def run_way(
    name: str,
    profile: str,
    blobs: Sequence[bytes],
    inputs: dict[str, NDArray[Any]] | None,
    outputs: Sequence[str] = (),
    *,
    dynamic: bool = False,
    wait_each: bool = False,
) -> Run:
    """Run `blobs` one after the other in one stream, twice, and measure the second time. Memory is by tensor name.

    `inputs` None: times only. `wait_each`: the host waits for each of them before it launches the next one.
    """
    compute = inputs is not None
    with progress(f"Running {name}"), libnpu.open(profile, compute=compute) as device:
        modules = [device.load(data) for data in blobs]
        tensors = {t.name: t for module in modules for t in (*module.inputs, *module.outputs)}
        memory = {tensor.name: device.alloc(max(1, tensor.size_bytes)) for tensor in tensors.values()}
        for tensor_name, array in (inputs or {}).items():
            if tensor_name in memory:  # a layer reads it
                memory[tensor_name].write(array)
        stream = device.create_stream()
        for _ in range(2):
            counters, (busy, blocked) = device.counters(), device.host_times()
            jobs = []
            for module in modules:
                jobs.append(
                    stream.launch(
                        module,
                        {t.name: memory[t.name] for t in module.inputs},
                        {t.name: memory[t.name] for t in module.outputs},
                        dynamic=dynamic,
                    )
                )
                if wait_each:
                    stream.synchronize()
            stream.synchronize()
            host = device.host_times()
            after = device.counters()
        return Run(
            name=name,
            launches=len(jobs),
            doorbells=after["DOORBELLS"] - counters["DOORBELLS"],
            interrupts=after["IRQS"] - counters["IRQS"],
            host_busy_ps=host[0] - busy,
            host_blocked_ps=host[1] - blocked,
            makespan_ps=jobs[-1].end_ps - jobs[0].start_ps if jobs else 0,
            counters={counter: value - counters[counter] for counter, value in after.items()},
            outputs={n: memory[n].read(tensors[n].numpy_dtype, tensors[n].shape) for n in outputs},
        )


def _json(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "launches": run.launches,
        "interactions": run.doorbells,
        "interrupts": run.interrupts,
        "host_overhead_us": run.host_busy_ps / PS_PER_US,
        "host_blocked_us": run.host_blocked_ps / PS_PER_US,
        "makespan_ps": run.makespan_ps,
        "wall_ps": run.wall_ps,
    }


def _print(title: str, runs: Sequence[Run], differences: dict[str, float]) -> None:
    columns = ("", "interactions", "interrupts", "host overhead", "host blocked", "makespan", "launch to wake-up")
    rows = [
        (
            run.name,
            str(run.doorbells),
            str(run.interrupts),
            f"{run.host_busy_ps / PS_PER_US:.3f} µs",
            f"{run.host_blocked_ps / PS_PER_US:.3f} µs",
            format_time(run.makespan_ps),
            format_time(run.wall_ps),
        )
        for run in runs
    ]
    print_table(title, columns, rows)
    same = [(name, "same" if not difference else f"{difference:.3g}") for name, difference in differences.items()]
    print_table("outputs", ("name", "largest difference"), same)


def _choice(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a parser of some of `known`, with commas between."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        if len(words) < 2 or len(set(words)) < len(words) or not set(words) <= set(known):
            raise argparse.ArgumentTypeError(f"expected {','.join(known)}, found {text!r}")
        return words

    return parse
