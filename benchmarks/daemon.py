"""Print what npud costs: several client processes against one process with the device in it, for the same total of inferences,
and a launch of an empty blob and of a small kernel through the socket against one in process.

The model is small: a convolution, an activation and a product, of the size of the first layers of ppocr_v2_cls. A ratio of throughput
must be 0.9 or more, of launches 4 or less. Both are measured in turn, so that a noisy neighbour hits both. `--inferences 1000 --model ppocr_v2_cls.onnx --shape 1,3,48,192` is the long run. Every output is compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

MUST_THROUGHPUT, MUST_LAUNCH = 0.9, 4.0
LAUNCHES = 500


def client(blob: Path, inputs: Path, where: str, count: int) -> None:
    """Run `count` inferences; print how many were right, and the seconds from the first line of standard input on."""
    import numpy as np

    import libnpu

    values = dict(np.load(inputs))
    wanted = {name.removeprefix("out:"): value for name, value in values.items() if name.startswith("out:")}
    given = {name.removeprefix("in:"): value for name, value in values.items() if name.startswith("in:")}
    with libnpu.open(where=where) as device:
        model = device.load(blob)
        model.run(given)
        print("ready", flush=True)
        sys.stdin.readline()
        right = 0
        for _ in range(count):
            outputs = model.run(given)
            right += all(np.array_equal(outputs[name], wanted[name]) for name in wanted)
    print(right, flush=True)


def run_clients(blob: Path, inputs: Path, where: str, clients: int, count: int) -> float:
    """Return the seconds that `clients` processes take for `count` inferences each. Raises when one is wrong."""
    command = [sys.executable, __file__, "--client", str(blob), str(inputs), where, str(count)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(clients)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    start = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    rights = [process.communicate()[0] for process in processes]
    seconds = time.perf_counter() - start
    if rights != [f"{count}\n"] * clients:
        raise SystemExit(f"inferences that were right, of {count}: {rights}")
    return seconds


def small_model(path: Path) -> None:
    """Write a model as ONNX: 3 x 48 x 192 inputs, as ppocr_v2_cls has."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    first = rng.standard_normal((16, 3, 3, 3)).astype(np.float32) * np.float32(0.1)
    second = rng.standard_normal((32, 16, 1, 1)).astype(np.float32) * np.float32(0.1)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("HardSwish", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "w2"], ["c"]),
            helper.make_node("Relu", ["c"], ["d"]),
            helper.make_node("GlobalAveragePool", ["d"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 48, 192])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 1, 1])],
        [numpy_helper.from_array(first, "w1"), numpy_helper.from_array(second, "w2")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def prepare(folder: Path, model: Path | None, shape: tuple[int, ...] | None) -> tuple[Path, Path]:
    """Compile the model and note what it gives in process. Returns the paths of the blob and of inputs with outputs."""
    import numpy as np

    import libnpu
    from libnpu.compiler import CompileOptions, compile_model

    options = CompileOptions()
    if model is None:
        small_model(model := folder / "small.onnx")
    elif shape is not None:
        options = CompileOptions(shapes={"x": shape})
    blob, inputs = folder / "model.blob", folder / "values.npz"
    blob.write_bytes(compile_model(model, options).blob)
    rng = np.random.default_rng(2)
    with libnpu.open(where="") as device:
        loaded = device.load(blob)
        given = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in loaded.inputs}
        outputs = loaded.run(given)
    values: dict[str, Any] = {f"in:{name}": value for name, value in given.items()}
    np.savez(inputs, **values, **{f"out:{name}": value for name, value in outputs.items()})
    return blob, inputs


def launch_us(where: str) -> tuple[float, ...]:
    """Return what launch and synchronise of an empty blob and of a small kernel cost, in microseconds."""
    import numpy as np

    import libnpu
    from libnpu.blob import write
    from libnpu.blob.image import BlobImage

    empty = write(BlobImage("empty", "npu-37xx", 1, 0, 0, [], [], {}))
    with libnpu.open(where=where) as device, device.load(empty) as blob, device.create_stream() as stream:
        relu = device.kernel("relu")
        memory = device.to_device(np.arange(-4, 4, dtype=np.float32))
        found = []
        for launch in (
            lambda: stream.launch(blob, {}, {}),
            lambda: relu.launch(stream, memory, memory, 8, grid=1),
        ):
            best = float("inf")
            for _ in range(2):
                start = time.perf_counter()
                for _ in range(LAUNCHES):
                    launch()
                    stream.synchronize()
                best = min(best, (time.perf_counter() - start) / LAUNCHES * 1e6)
            found.append(best)
    return tuple(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--inferences", type=int, default=100, help="of each client")
    parser.add_argument("--rounds", type=int, default=3, help="in turn; the best counts")
    parser.add_argument("--model", type=Path, help="an ONNX file instead of the small model")
    parser.add_argument(
        "--shape", type=lambda text: tuple(map(int, text.split(","))), help="of its input x, e.g. 1,3,48,192"
    )
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        blob, inputs, where, count = options.client
        client(Path(blob), Path(inputs), where, int(count))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        blob, inputs = prepare(folder, options.model, options.shape)
        path = folder / "npud.sock"
        daemon = subprocess.Popen(
            [sys.executable, "-m", "libnpu.daemon", "--socket", str(path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert daemon.stdout is not None and daemon.stdout.readline().startswith("npud: ")
            where, total = f"unix:{path}", options.clients * options.inferences
            alone = shared = float("inf")
            for _ in range(options.rounds):
                alone = min(alone, run_clients(blob, inputs, "", 1, total))
                shared = min(shared, run_clients(blob, inputs, where, options.clients, options.inferences))
            ratio = alone / shared
            print(
                f"{total} inferences: in process {alone:.2f} s, {options.clients} clients of npud {shared:.2f} s, all right"
            )
            print(
                f"throughput ratio {ratio:.2f} (must be at least {MUST_THROUGHPUT})  {'ok' if ratio >= MUST_THROUGHPUT else 'TOO LITTLE'}"
            )
            inside, outside = launch_us(""), launch_us(where)
            for _ in range(options.rounds - 1):
                inside = tuple(map(min, inside, launch_us("")))
                outside = tuple(map(min, outside, launch_us(where)))
            for what, one, other in zip(("empty blob", "relu of 8 elements"), inside, outside, strict=True):
                ratio = other / one
                print(
                    f"launch + synchronise, {what}: in process {one:.0f} us, npud {other:.0f} us, ratio {ratio:.2f} "
                    f"(must be at most {MUST_LAUNCH:.0f})  {'ok' if ratio <= MUST_LAUNCH else 'TOO MUCH'}"
                )
        finally:
            daemon.terminate()
            daemon.wait()


if __name__ == "__main__":
    main()
