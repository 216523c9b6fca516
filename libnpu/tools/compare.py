"""`npu compare`: two ways to run the same model, measured on fresh devices: what each costs host and device.

--mode blob,launch: the whole model as one blob in one launch, against a launch per layer, each layer a blob of its own, in
one stream with one wait at the end. --mode streaming,resident: weights that come from DDR in each inference, against those
that stay in a scratchpad which has room for all of them: an inference more in the same blob. --sched static,dynamic: the core
walks through the lists of the blob, or chooses tasks at run time. --vf on,off: values go from layer to layer in CMX, or each
goes to DDR and comes back. Everything is measured in the second of two runs: the first one makes command buffers and instances.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npu_model.profile import load_profile

import libnpu
from libnpu.tools import reference, source, values
from libnpu.tools.console import CheckFailed, ToolError, format_time, print_json, print_table, progress
from libnpu.tools.session import DDR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MODES, SCHEDULERS = ("blob", "launch", "streaming", "resident"), ("static", "dynamic")
FUSION = ("on", "off")
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
    def ddr_bytes(self) -> int:
        """Read and written by all engines."""
        return sum(self.counters[name] for name in DDR)

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
    ways.add_argument(
        "--mode",
        type=_choice(MODES),
        metavar="blob,launch|streaming,resident",
        help="one launch against one per layer; weights from DDR in each inference against those that stay in CMX",
    )
    ways.add_argument(
        "--sched", type=_choice(SCHEDULERS), metavar="static,dynamic", help="lists against run-time choice"
    )
    ways.add_argument(
        "--vf", type=_choice(FUSION), metavar="on,off", help="values handed on in CMX against all through DDR"
    )
    parser.add_argument("--inputs", metavar="FILE.npz", help="arrays by input name (default: seeded random values)")
    parser.add_argument("--seed", type=source.count, metavar="N", default=0, help="of the random inputs (default 0)")
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run `options.model` in each way. Raises CheckFailed when the outputs are not the same, after the report."""
    between: list[str] = []
    if options.vf:
        runs, title, between = _fusion(options)
    else:
        runs, title = _modes(options) if options.mode else _schedulers(options)
    first = runs[0]
    differences = {
        name: max(reference.max_abs_difference(other.outputs[name], array) for other in runs[1:])
        for name, array in first.outputs.items()
    }
    if options.json:
        saved = [{"against": run.name} | _saved(first, run) for run in runs[1:]]
        report = {"model": options.model, "runs": [_json(run) for run in runs], "saved": saved}
        print_json(report | {"max_abs_diff": differences} | ({"between": between} if options.vf else {}))
    else:
        _print(title, runs, differences, between)
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

    def layers() -> list[bytes]:
        with progress(f"Compiling the layers of {options.model}"):
            return [layer.blob for layer in compile_layers(options.model, source.compile_options(options)).blobs]

    profile = whole.image.profile
    inputs = _inputs(options, whole.image.inputs)
    names = [tensor.name for tensor in whole.image.outputs]

    def measured(mode: str) -> Run:
        if mode == "resident":
            return _resident(options, profile, inputs, names)
        return run_way(mode, profile, layers() if mode == "launch" else [whole.blob], inputs, names)

    return [measured(mode) for mode in options.mode], f"{whole.image.name} on {profile}"


def _resident(options: argparse.Namespace, profile: str, inputs: dict[str, NDArray[Any]], names: Sequence[str]) -> Run:
    """Return what one inference more costs in a blob whose weights stay. Raises ToolError when CMX has no room for all of them."""
    from libnpu.compiler import compile_model
    from libnpu.compiler.lower import CompileError

    wanted = dataclasses.replace(source.compile_options(options, ("bytes-per-tensor",)), cmx_bytes=None)
    runs, read = [], []  # `read`: bytes of weights from DDR
    for count in (1, 2):
        with progress(f"Compiling {options.model} with its weights in CMX"):
            try:
                compiled = compile_model(options.model, dataclasses.replace(wanted, inferences=count))
            except CompileError as error:
                raise ToolError(f"--mode resident: not all weights stay in CMX: {error}") from None
        lines = compiled.report["dumps"]["bytes-per-tensor"].splitlines()
        read.append(sum(int(line.rsplit(": ", 1)[1].split()[0]) for line in lines if line.startswith("weights ")))
        if compiled.report["spill_out_bytes"] or read[-1] > read[0]:
            limit = load_profile(profile)
            room = limit.cmx.workspace_bytes * min(wanted.tiles or limit.tiles, limit.tiles)
            weights = len(compiled.image.weights)
            raise ToolError(
                f"--mode resident: {weights} bytes of weights, and what is computed, in {room} bytes of CMX"
            )
        runs.append(run_way("resident", profile, [compiled.blob], inputs, names))
    once, twice = runs
    return dataclasses.replace(
        once,
        makespan_ps=twice.makespan_ps - once.makespan_ps,
        host_blocked_ps=twice.wall_ps - once.wall_ps - once.host_busy_ps,
        counters={name: count - once.counters[name] for name, count in twice.counters.items()},
        outputs=twice.outputs,
    )


def _fusion(options: argparse.Namespace) -> tuple[list[Run], str, list[str]]:
    """Return a run with values handed on in CMX and one without, a title, and what lies between layers then."""
    source.check_model(options.model)
    both = {
        way: source.compile_source(
            argparse.Namespace(**{**vars(options), "no_cmx_residency": way == "off"}), ("bytes-per-tensor",)
        )
        for way in options.vf
    }
    image = both["on"].image
    inputs, names = _inputs(options, image.inputs), [tensor.name for tensor in image.outputs]
    runs = [run_way(way, image.profile, [compiled.blob], inputs, names) for way, compiled in both.items()]
    lines = {way: compiled.report["dumps"]["bytes-per-tensor"].splitlines() for way, compiled in both.items()}
    kept = [line for line in lines["off"] if line.startswith("scratch ") and line not in lines["on"]]
    return runs, f"{image.name} on {image.profile}", kept


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
        "ddr_bytes": run.ddr_bytes,
        "makespan_ps": run.makespan_ps,
        "wall_ps": run.wall_ps,
    }


def _saved(first: Run, other: Run) -> dict[str, int]:
    """Return what `first` saves of what another run costs."""
    return {"launches": other.launches - first.launches, "ddr_bytes": other.ddr_bytes - first.ddr_bytes}


def _print(title: str, runs: Sequence[Run], differences: dict[str, float], between: list[str]) -> None:
    columns = (
        "",
        "interactions",
        "interrupts",
        "host overhead",
        "host blocked",
        "makespan",
        "launch to wake-up",
        "DDR bytes",
    )
    rows = [
        (
            run.name,
            str(run.doorbells),
            str(run.interrupts),
            f"{run.host_busy_ps / PS_PER_US:.3f} µs",
            f"{run.host_blocked_ps / PS_PER_US:.3f} µs",
            format_time(run.makespan_ps),
            format_time(run.wall_ps),
            str(run.ddr_bytes),
        )
        for run in runs
    ]
    print_table(title, columns, rows)
    saved = [(run.name, *map(str, _saved(runs[0], run).values())) for run in runs[1:]]
    print_table(f"what {runs[0].name} saves", ("against", "launches", "DDR bytes"), saved)
    if between:
        print_table("in DDR between layers, without fusion", ("tensor",), [(line,) for line in between])
    same = [(name, "same" if not difference else f"{difference:.3g}") for name, difference in differences.items()]
    print_table("outputs", ("name", "largest difference"), same)


def _choice(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a parser of some of `known`, with commas between."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        if len(words) < 2 or len(set(words)) < len(words) or not set(words) <= set(known):
            raise argparse.ArgumentTypeError(f"expected some of {','.join(known)}, found {text!r}")
        return words

    return parse
