"""Print what the stack costs on this machine, as ratios within this run, next to what it must and aims to cost.

Rows follow the budget table of docs/performance.md. BLAS is pinned to one thread; onnxruntime runs with one thread.
Times are the best of several repetitions, taken in turn with their reference so that a noisy neighbour hits both.
Run `python benchmarks/bench.py --rows import,launch` for some rows only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libnpu import Stream
    from libnpu.compiler import Compiled
    from libnpu.tools.session import Execution

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["NPU_COMPILE_CACHE"] = "0"  # the compiler is measured, too

SAMPLE_SECONDS = 0.00071  # no multiple of what is measured
ROOT = Path(__file__).resolve().parent.parent
SHARED = (
    ROOT.parent / "shared" / "models"
)  # more models where they are, with index.json: [{"name", "run_inputs": {input: {"shape"}}}]
sys.path.insert(0, str(ROOT / "scripts"))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: `value` in `unit` against `must`, None where nothing is demanded (`at_least`: larger is better)."""

    what: str
    value: float
    unit: str
    must: float | None
    aim: float | None
    note: str = ""
    at_least: bool = False

    @property
    def holds(self) -> bool:
        if self.must is None:
            return True
        return self.value >= self.must if self.at_least else self.value <= self.must


def best(function: Callable[[], object], repeat: int) -> float:
    """Return the shortest wall time of `repeat` calls, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


LAYERS = {
    "libnpu": "runtime",
    "npu_driver": "driver",
    "npu_firmware": "firmware",
    "npu_device": "device",
    "npu_model": "device",
}


def shares(function: Callable[[], object], seconds: float = 1.5) -> dict[str, float]:
    """Return the part of `function`'s time that each layer takes, by samples of where the program is.

    What another package does, NumPy for example, is its caller's.
    """
    found: Counter[str] = Counter(dict.fromkeys(LAYERS.values(), 0))

    def sample(_signal: int, frame: FrameType | None) -> None:
        while frame is not None:
            layer = LAYERS.get(frame.f_globals.get("__name__", "").partition(".")[0])
            if layer is not None:
                found[layer] += 1
                return
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, sample)
    signal.setitimer(signal.ITIMER_REAL, SAMPLE_SECONDS, SAMPLE_SECONDS)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        function()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return {layer: count / found.total() for layer, count in found.items()}


def bench_import() -> list[Row]:
    bare = best(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 5)
    full = best(lambda: subprocess.run([sys.executable, "-c", "import libnpu"], check=True), 5)
    return [Row("import libnpu", full - bare, "s", 0.25, 0.08, f"bare interpreter {bare:.3f} s, subtracted")]


def bench_first_call_from_c() -> list[Row]:
    config = Path(sysconfig.get_path("scripts")) / "npu-config"
    flags = subprocess.run([config, "--cflags", "--libs"], capture_output=True, text=True, check=True).stdout.split()
    source = "#include <npu.h>\nint main(void) { return npu_init(0) != NPU_SUCCESS; }\n"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "first"
        (Path(folder) / "first.c").write_text(source)
        subprocess.run(["gcc", f"{program}.c", "-o", program, *flags], check=True)
        seconds = best(lambda: subprocess.run([program], check=True), 5)
    return [Row("first call from C (whole process)", seconds, "s", 0.6, 0.2)]


def empty_blob() -> bytes:
    """A blob with no task at all."""
    from libnpu.blob import write
    from libnpu.blob.image import BlobImage

    return write(BlobImage("empty", "npu-37xx", 1, 0, 0, [], [], {}))


def bench_launch() -> list[Row]:
    import numpy as np

    import libnpu

    blob_bytes = empty_blob()
    with libnpu.open() as device, device.load(blob_bytes) as blob, device.create_stream() as stream:
        relu = device.kernel("relu")
        memory = device.to_device(np.arange(-4, 4, dtype=np.float32))
        empty_us, empty_note = launch_cost(stream, lambda: stream.launch(blob, {}, {}), 70)
        relu_us, relu_note = launch_cost(stream, lambda: relu.launch(stream, memory, memory, 8, grid=1), 20)
    from_c = c_launch_us(blob_bytes)
    return [
        Row("launch + synchronise, empty blob, Python", empty_us, "us", 150, 60, empty_note),
        Row("launch + synchronise, empty blob, C", from_c, "us", 150, 60, f"{from_c - empty_us:+.0f} to Python's"),
        Row("launch + synchronise, relu of 8 elements, Python", relu_us, "us", None, None, relu_note),
    ]


def launch_cost(stream: Stream, launch: Callable[[], object], repeat: int) -> tuple[float, str]:
    """Return the microseconds that a launch and its synchronisation take, and where they go."""
    rounds = 50

    def loop() -> None:
        for _ in range(rounds):
            launch()
            stream.synchronize()

    loop()
    each = best(loop, repeat) / rounds * 1e6
    return each, ", ".join(f"{layer} {share * each:.0f}" for layer, share in shares(loop).items())


C_LAUNCH = r"""
#include <npu.h>
#include <stdio.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec / 1e3; }
#define TRY(x) do { if ((x) != NPU_SUCCESS) { fprintf(stderr, "%s\n", npu_get_error_string(npu_peek_last_error())); return 1; } } while (0)
int main(int argc, char **argv) {
    npu_blob_t blob; npu_kernel_t kernel; npu_stream_t stream; double best = 1e30;
    (void)argc;
    TRY(npu_init(0)); TRY(npu_load_blob(&blob, argv[1]));
    TRY(npu_get_kernel(&kernel, blob, 0)); TRY(npu_create_stream(&stream));
    for (int r = 0; r < 70; r++) {
        double start = now();
        for (int i = 0; i < 50; i++) { TRY(npu_launch_kernel_async(kernel, 0, 0, stream)); TRY(npu_synchronize_stream(stream)); }
        double each = (now() - start) / 50; if (each < best) best = each;
    }
    printf("%.3f\n", best);
    return 0;
}
"""


def c_launch_us(blob_bytes: bytes) -> float:
    """Return what a launch and its synchronisation take from C."""
    config = Path(sysconfig.get_path("scripts")) / "npu-config"
    flags = subprocess.run([config, "--cflags", "--libs"], capture_output=True, text=True, check=True).stdout.split()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "launch"
        (Path(folder) / "launch.c").write_text(C_LAUNCH)
        (Path(folder) / "empty.blob").write_bytes(blob_bytes)
        subprocess.run(["gcc", "-O2", f"{program}.c", "-o", program, *flags], check=True)
        done = subprocess.run([program, Path(folder) / "empty.blob"], capture_output=True, text=True, check=True)
    return float(done.stdout)


def bench_task_list() -> list[Row]:
    """A long list of DMA tasks in barrier pairs over both ports, timing only; and what four times as long a list costs."""
    import libnpu

    seconds = {}
    for count in (5_000, 20_000):
        with libnpu.open(compute=False) as device, device.load(flat_list(count)) as blob:
            blob.run({})
            seconds[count] = best(lambda blob=blob: blob.run({}), 25)
    return [
        Row("flat task list, timing only", 20_000 / seconds[20_000] / 1e3, "k tasks/s", 100, 500, "20000 tasks", True),
        Row("time of 4 N tasks by that of N", seconds[20_000] / seconds[5_000], "x", 5, None, "5000 and 20000 tasks"),
    ]


def flat_list(count: int) -> bytes:
    """A blob of so many DMA tasks, half of them on each port."""
    import numpy as np
    from npu_abi import C, dtype

    from libnpu.blob import write
    from libnpu.blob.image import BlobImage

    ids = 32
    lists = []
    for port in range(2):
        tasks = np.zeros(count // 2, dtype("npu_dma_task"))
        tasks["transaction_src"] = C.NPU_CMX_BASE
        tasks["transaction_dst"] = C.NPU_CMX_BASE + 4096 * (1 + port)
        for field in ("length", "src_width", "dst_width"):
            tasks[f"transaction_{field}"] = 1024
        tasks["transaction_num_planes"] = 1
        tasks["task_id"] = np.arange(len(tasks)) * 2 + port
        tasks["sched_start_after"] = C.NPU_BARRIER_NONE
        lists.append(tasks)
    index = np.arange(count // 2)
    lists[0]["barriers_post_mask"] = lists[1]["barriers_wait_mask"] = np.uint64(1) << (index % ids).astype(np.uint64)
    for tasks in lists:
        tasks["sched_start_after"][ids:] = index[:-ids]
    barriers = np.zeros(count // 2, dtype("npu_barrier_config"))
    barriers["next_same_id"] = index + ids
    barriers["next_same_id"][-ids:] = C.NPU_BARRIER_NONE
    barriers["producer_count"] = barriers["consumer_count"] = 1
    barriers["real_id"] = index % ids
    image = BlobImage(
        "flat",
        "npu-37xx",
        1,
        16384,
        ids,
        [],
        [],
        {".npu.tasks.dma0": lists[0], ".npu.tasks.dma1": lists[1], ".npu.barriers": barriers},
    )
    return write(image)


def bench_resnet() -> list[Row]:
    import numpy as np
    import onnxruntime
    from models import seeded
    from threadpoolctl import threadpool_limits

    import libnpu
    from libnpu.compiler import CompileOptions, compile_model

    path = seeded("resnet50")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    tensor = session.get_inputs()[0]
    inputs = {tensor.name: np.random.default_rng(0).standard_normal(tensor.shape).astype(np.float32)}
    compile_model(path, CompileOptions(precision="fp16"))  # imports are not counted
    start = time.perf_counter()
    compiled = compile_model(path, CompileOptions(precision="fp16"))
    rows = [Row("compile ResNet-50", time.perf_counter() - start, "s", 5, 1)]
    with threadpool_limits(1):
        for numerics, must, aim in (("exact", 5.0, 3.0), ("fast", 3.0, 1.5)):
            with libnpu.open(numerics=numerics) as device, device.load(compiled.blob) as blob:
                blob.run(inputs)
                session.run(None, inputs)
                ours, theirs = [], []
                for _ in range(5):
                    theirs.append(best(lambda: session.run(None, inputs), 1))
                    ours.append(best(lambda blob=blob: blob.run(inputs), 1))
            rows.append(
                Row(
                    f"ResNet-50 fp16 {numerics}, values and time, against onnxruntime",
                    min(ours) / min(theirs),
                    "x",
                    must,
                    aim,
                    f"{min(ours) * 1e3:.0f} ms against {min(theirs) * 1e3:.0f} ms, one thread each",
                )
            )
    for fidelity, must in (("fast", 0.5), ("full", 10.0)):
        with libnpu.open(compute=False, fidelity=fidelity) as device, device.load(compiled.blob) as blob:
            blob.run(inputs)
            seconds = best(lambda blob=blob: blob.run(inputs), 5)
        rows.append(Row(f"ResNet-50 fp16, times alone, fidelity {fidelity}", seconds, "s", must, None))
    return rows + timing_processes(compiled.blob)


TIMING_RUN = """
import re, sys, time
import numpy as np, libnpu
start = time.perf_counter()
with libnpu.open(compute=False, fidelity=sys.argv[2]) as device, device.load(sys.argv[1]) as blob:
    blob.run({tensor.name: np.zeros(tensor.shape, np.float32) for tensor in blob.inputs})
    seconds = time.perf_counter() - start
    with open("/proc/self/status") as status:  # ru_maxrss would begin with what the parent has
        print(seconds, re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1])
"""


def timing_processes(blob: bytes) -> list[Row]:
    """What a process needs that runs ResNet-50 from a blob once, times alone: opening and loading counted, imports not."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.blob"
        path.write_bytes(blob)
        for fidelity, must in (("fast", 0.5), ("full", 10.0)):
            command = [sys.executable, "-c", TIMING_RUN, path, fidelity]
            found = [
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(5)
            ]
            what = f"ResNet-50 fp16 from a blob, times alone, fidelity {fidelity}"
            rows.append(Row(f"{what}, first run", min(float(one[0]) for one in found), "s", must, None))
            peak = max(int(one[1]) for one in found) / 1024
            rows.append(Row(f"{what}, memory of the process", peak, "MiB", 1024, None))
    return rows


def bench_decoder() -> list[Row]:
    """Tokens of a 7B-shaped decoder from its blob, times alone: opening and loading counted, the compilation not."""
    import numpy as np

    from libnpu.compiler import CompileOptions, compile_model
    from libnpu.tools.session import execute
    from libnpu.tools.shapes import llama7b

    rows = []
    for precision in ("int8", "int4"):
        plan = compile_model(llama7b(), CompileOptions(precision=precision, profile="npu-40xx", plan_only=True))

        def run(plan: Compiled = plan) -> Execution:
            return execute(
                plan.blob,
                plan.image,
                "npu-40xx",
                lambda tensors: {tensor.name: np.zeros(tensor.shape, tensor.numpy_dtype) for tensor in tensors},
                compute=False,
            )

        slices = run().slices
        span_ps = max(each.end_ps for each in slices) - min(each.start_ps for each in slices)
        name = f"token of a 7B-shaped decoder, {precision}, npu-40xx, times alone"
        what = f"{len(slices)} tasks; {1e12 / span_ps:.1f} tokens a second on the device"
        rows.append(Row(name, best(run, 3), "s", 2, None, what))
    return rows


def bench_check() -> list[Row]:
    """What watching costs: a loop of 2,000 launches and copies, and the memory for what is in flight."""
    import contextlib
    import tracemalloc

    import numpy as np

    import libnpu

    size = 256 << 10

    def loop(watch: Callable[[], contextlib.AbstractContextManager[object]]) -> float:
        with watch(), libnpu.open() as device, device.create_stream() as stream:
            x, y, pinned = device.to_device(np.ones(1024, np.float32)), device.alloc(4096), device.alloc_host(4096)
            relu = device.kernel("relu")
            start = time.perf_counter()
            for number in range(1, 1001):
                relu.launch(stream, x, y, 1024)
                stream.copy(pinned, y)
                if number % 16 == 0:
                    stream.synchronize()
            return time.perf_counter() - start

    def peak(watch: Callable[[], contextlib.AbstractContextManager[object]]) -> int:
        """Return the most bytes that Python had while 64 copies of 256 KiB, half of them in rows, were in flight."""
        tracemalloc.start()
        with watch(), libnpu.open() as device, device.create_stream() as stream:
            for number in range(64):
                pinned, memory = device.alloc_host(size), device.alloc(size)
                pinned.array[:] = 1
                if number % 2:
                    stream.copy(memory, pinned)
                else:
                    stream.copy_2d(memory, 512, pinned, 512, 256, size // 512)
            stream.synchronize()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    plain, checked = [], []
    for _ in range(4):
        plain.append(loop(contextlib.nullcontext))
        checked.append(loop(libnpu.check))
    more = (peak(libnpu.check) - peak(contextlib.nullcontext)) / (64 * 2 * size)
    note = f"{min(plain):.2f} s without"
    return [
        Row("npu check, 2,000 launches and copies", min(checked) / min(plain), "x", 3, 1.3, note),
        Row("npu check, memory against the buffers in flight", more, "x", 2, None),
    ]


def bench_small_graphs() -> list[Row]:
    """How far schedules of small graphs are from the shortest, where a solver proves it."""
    from small_graphs import SLACK, TASKS, compare

    tried = [compare(seed, slack, 1.0) for seed in range(1, 13) for slack in SLACK]
    found = [one for one in tried if one is not None]
    proved = [one.ratio for one in found if one.is_shortest]
    every = [one.ratio for one in found]
    note = f"-O2; worst {max(proved):.2f}; beside the shortest found for {len(found) - len(proved)} more mean {statistics.mean(every):.2f}, worst {max(every):.2f}"
    note += f"; {len(tried) - len(found)} more move something twice"
    what = f"makespan over the shortest there is, mean of {len(proved)} graphs of at most {TASKS} tasks"
    return [Row(what, statistics.mean(proved), "x", 1.08, 1.03, note)]


def bench_schedules() -> list[Row]:
    """How far schedules are from what no schedule undercuts, by prediction: the seeded topologies, and the models in $NPU_MODELS."""
    from models import SEEDED, seeded

    from libnpu.compiler import CompileOptions, compile_model

    folder = Path(os.environ.get("NPU_MODELS", SHARED))
    index = json.loads((folder / "index.json").read_text()) if (folder / "index.json").exists() else []
    models = [(name, seeded(name), {}) for name in SEEDED]
    models += [(entry["name"], folder / f"{entry['name']}.onnx", entry["run_inputs"]) for entry in index]
    found, spilled = {}, {}
    for name, path, inputs in models:
        shapes = {key: tuple(one["shape"]) for key, one in inputs.items()}
        report = compile_model(path, CompileOptions(shapes=shapes)).report
        found[name] = report["makespan_over_bound"], report["binding_resource"]
        if report["spill_out_bytes"]:
            spilled[name] = report["spill_out_bytes"]
    mean = statistics.geometric_mean(ratio for ratio, _ in found.values())
    slowest = max(found, key=lambda name: found[name])
    each = ", ".join(f"{name} {ratio:.2f} ({resource})" for name, (ratio, resource) in found.items())
    return [
        Row(f"makespan over lower bound, mean of {len(found)} models", mean, "x", 1.35, None, each),
        Row("the same, worst", found[slowest][0], "x", 1.8, None, slowest),
        Row(
            "models that spill",
            len(spilled),
            "",
            0,
            None,
            ", ".join(f"{name} {size} bytes" for name, size in spilled.items()),
        ),
    ]


ROWS = {
    "import": bench_import,
    "c": bench_first_call_from_c,
    "launch": bench_launch,
    "tasks": bench_task_list,
    "resnet": bench_resnet,
    "decoder": bench_decoder,
    "check": bench_check,
    "schedules": bench_schedules,
    "small graphs": bench_small_graphs,
}


def main() -> int:
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS), help=f"comma-separated, of {', '.join(ROWS)}")
    names = parser.parse_args().rows.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"there are no rows {', '.join(unknown)}; there are {', '.join(ROWS)}")
    table = Table("what", "measured", "must", "aim", "holds", "note", title="Cost on this machine, one BLAS thread")
    held = True
    for name in names:
        for row in ROWS[name]():
            sign = "≥" if row.at_least else "≤"
            table.add_row(
                row.what,
                f"{row.value:.{3 if row.value < 1000 else 4}g} {row.unit}",
                "-" if row.must is None else f"{sign} {row.must:g}",
                "-" if row.aim is None else f"{row.aim:g}",
                "-" if row.must is None else "yes" if row.holds else "NO",
                row.note,
            )
            held = held and row.holds
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
