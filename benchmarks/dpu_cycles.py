"""Compare the cycle models of DPU, DMA and SHAVE with tables of others: the error by device and operation.

    python benchmarks/dpu_cycles.py                  the tables of docs/cycles.md
    python benchmarks/dpu_cycles.py --update         and write them there
    python benchmarks/dpu_cycles.py WORKLOADS.csv    the first table for these workloads, and the rows with the largest errors

benchmarks/data/README.md has the columns. A workload belongs to the calibration half when the CRC-32 of its row's text is even;
the profiles' parameters were fitted on that half only. Rows without a measurement are left out, and rows that are faster
than the MAC array can be: they are named.
"""

from __future__ import annotations

import argparse
import csv
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import npu_abi
import numpy as np
import onnx
from npu_abi import C
from npu_model.cycles import dma_alone_ps, dpu_cycles, dpu_macs
from npu_model.profile import Dma, Profile, load_profile

from libnpu.compiler.frontend import load
from libnpu.compiler.kernels.cost import cost_cycles
from libnpu.compiler.kernels.elementwise import elementwise
from libnpu.compiler.kernels.program import Operand

DATA = Path(__file__).resolve().parent / "data"
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "cycles.md"
OPS = {0: C.NPU_DPU_CONV, 1: C.NPU_DPU_DWCONV, 2: C.NPU_DPU_ELTWISE_ADD, 3: C.NPU_DPU_MAXPOOL}
NAMES = {0: "convolution", 1: "depthwise", 2: "element-wise", 3: "max pooling"}
LIMITS = {"npu-37xx": 0.10, "npu-40xx": 0.15}  # beyond which a difference is explained
PREDICTED_OPS = {"CONV": 0, "DW": 1, "ELT": 2, "MAXP": 3}  # as dpu_cycles_model.csv names them
DTYPES = {0: C.NPU_DT_U8, 2: C.NPU_DT_F16}
PROFILES = {2: "npu-37xx", 3: "npu-40xx"}
GRIDS = {3: C.NPU_MPE_16X16, 4: C.NPU_MPE_8X16, 5: C.NPU_MPE_4X16}  # exec -> enum npu_mpe_grid
CALIBRATION, HELD_OUT = "calibration", "held out"
MOST_CHANNELS = 64  # of a workload that works channel by channel, in the table of VPUNN's predictions

Row = dict[str, int]


@dataclass(frozen=True, slots=True)
class Workload:
    """A row with its half, and the model's cycles."""

    row: Row
    text: str
    half: str
    cycles: int
    possible: bool  # the MAC array is not slower than the measurement

    @property
    def error(self) -> float:
        """The model's cycles over the measured ones, less 1."""
        return self.cycles / self.row["gt_cycles"] - 1


def records(row: Row) -> tuple[np.ndarray, np.ndarray]:
    """Return one invariant and its variant. Half of the padding, which the row gives as a sum, comes first."""
    invariant = np.zeros(1, npu_abi.dtype("npu_dpu_invariant"))
    variant = np.zeros(1, npu_abi.dtype("npu_dpu_variant"))
    fields = {
        "op": OPS[row["op"]], "groups": 1, "in_z": row.get("inC", row["outC"]), "variant_count": 1,
        "dilation_y": 1, "dilation_x": 1, "act_dtype": DTYPES[row["dtin"]], "wt_dtype": DTYPES[row["dtin"]],
        "out_dtype": DTYPES[row["dtout"]], "mpe_grid": GRIDS[row["exec"]], "out_z": row["outC"],
    }  # fmt: skip
    variant["size_z"] = row["outC"]
    for axis, letter, low, high in (("y", "H", "pad_top", "pad_bottom"), ("x", "W", "pad_left", "pad_right")):
        out, kernel, stride = row[f"out{letter}"], row[f"k{letter}"], row[f"s{letter}"]
        reach = (out - 1) * stride + kernel
        size = row.get(f"in{letter}", reach)
        padding = max(reach - size, 0)
        fields |= {f"out_{axis}": out, f"in_{axis}": size, f"kernel_{axis}": kernel, f"stride_{axis}": stride}
        variant[f"size_{axis}"], variant[low], variant[high] = out, padding // 2, padding - padding // 2
    for name, value in fields.items():
        invariant[name] = value
    return invariant, variant


def model_cycles(profile: Profile, row: Row) -> int:
    """Return what the model says of one workload."""
    return int(dpu_cycles(profile, *records(row), write_tiles=row.get("owt", 1))[0])


def read_workloads(path: Path) -> list[Workload]:
    """Return the rows of a table of profiled workloads that have a measurement."""
    profiles = {device: load_profile(name) for device, name in PROFILES.items()}
    head, *texts = path.read_text(encoding="utf-8").splitlines()
    found = []
    for text in texts:
        row = {name: int(value) for name, value in zip(head.split(","), text.split(","), strict=False) if value}
        if row.get("gt_cycles", 0) <= 0 or row["dtin"] not in DTYPES or row["device"] not in profiles:
            continue
        profile = profiles[row["device"]]
        half = HELD_OUT if zlib.crc32(text.encode()) & 1 else CALIBRATION
        peak = profile.dpu.macs_per_cycle["u8" if row["dtin"] == 0 else "f16"]
        possible = row["op"] != 0 or int(dpu_macs(*records(row))[0]) <= peak * row["gt_cycles"]
        found.append(Workload(row, text, half, model_cycles(profile, row), possible))
    return found


def figures(workloads: Iterable[Workload]) -> dict[tuple[int, int, str], tuple[int, float, float, float]]:
    """Return rows, mean |error|, 90th percentile of |error| and mean error by (device, op, half), of possible rows."""
    errors: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for workload in workloads:
        if workload.possible:
            errors[workload.row["device"], workload.row["op"], workload.half].append(workload.error)
    return {
        key: (len(e), float(np.mean(np.abs(e))), float(np.quantile(np.abs(e), 0.9)), float(np.mean(e)))
        for key, e in sorted(errors.items())
    }


def noise(workloads: Iterable[Workload]) -> tuple[int, float]:
    """Return how many rows have a twin with the same inputs, and the mean deviation from the twins' mean."""
    twins: dict[str, list[int]] = defaultdict(list)
    for workload in workloads:
        twins[workload.text.rsplit(",", 1)[0]].append(workload.row["gt_cycles"])
    several = [np.array(values) for values in twins.values() if len(values) > 1]
    deviations = [abs(value / values.mean() - 1) for values in several for value in values]
    return len(deviations), float(np.mean(deviations)) if deviations else 0.0


def profiled_table(workloads: list[Workload]) -> Iterator[str]:
    """Yield the lines of the table of profiled workloads."""
    yield "| profile | operation | half | workloads | mean error | 90th percentile | bias |"
    yield "|---|---|---|---|---|---|---|"
    for (device, op, half), (count, mean, p90, bias) in figures(workloads).items():
        yield f"| {PROFILES[device]} | {NAMES[op]} | {half} | {count} | {mean:.1%} | {p90:.1%} | {bias:+.1%} |"
    count, deviation = noise(workloads)
    yield ""
    yield f"{count} rows have twins: the same inputs, other cycles. They deviate from their mean by {deviation:.1%}."
    for workload in workloads:
        if not workload.possible:
            yield f"Left out, as it asks for more than the MAC array can do in the cycles given: `{workload.text}`."


def predicted_rows() -> Iterator[tuple[str, str, str, int, int, float]]:
    """Yield (profile, operation, name, VPUNN's cycles, the model's, those that the array needs for its multiplications) for one tile: the fastest
    grid and size of workload.
    """
    with (DATA / "dpu_cycles_model.csv").open(encoding="utf-8") as file:
        for texts in csv.DictReader(file):
            op, name = PREDICTED_OPS[texts["op"]], {"27": "npu-37xx", "40": "npu-40xx"}[texts["device"]]
            size = {axis: int(texts[axis]) for axis in "WH"}
            kernel, stride, dtype = int(texts["k"]), int(texts["s"]), 0 if texts["dtype"] == "U8" else 2
            row = {"op": op, "inC": int(texts["Cin"]), "outC": int(texts["Cout"]), "dtin": dtype, "dtout": dtype}
            for axis, length in size.items():
                row |= {f"in{axis}": length, f"out{axis}": -(-length // stride), f"k{axis}": kernel, f"s{axis}": stride}
            channels = [row["outC"]] if op in (0, 2) else [16, 32, MOST_CHANNELS]
            profile = load_profile(name)
            best = min(
                model_cycles(profile, row | {"outC": part, "exec": grid}) * -(-row["outC"] // part)
                for part in channels
                for grid in GRIDS
            )
            kind = "GEMM" if texts["name"].startswith("gemm") else NAMES[op]
            least = int(texts["macs"]) / profile.dpu.macs_per_cycle["f16" if dtype else "u8"]
            yield name, kind, f"{texts['name']} {texts['dtype'].lower()}", int(texts["best_cycles"]), best, least


def in_both(profiled: list[Workload]) -> Iterator[tuple[str, int, Workload]]:
    """Yield (name, VPUNN's cycles as one workload, the profiled one) where a row of dpu_cycles_model.csv was profiled too."""
    shape = ("device", "op", "inW", "inH", "inC", "outC", "kW", "kH", "sW", "sH", "dtin")
    found = {tuple(w.row[name] for name in shape): w for w in profiled}
    with (DATA / "dpu_cycles_model.csv").open(encoding="utf-8") as file:
        for texts in csv.DictReader(file):
            kernel, stride = int(texts["k"]), int(texts["s"])
            key = ({"27": 2, "40": 3}[texts["device"]], PREDICTED_OPS[texts["op"]], *(int(texts[n]) for n in ("W", "H", "Cin", "Cout")),
                   kernel, kernel, stride, stride, 0 if texts["dtype"] == "U8" else 2)  # fmt: skip
            workload = found.get(key)
            if workload is not None and workload.row["outW"] == -(-workload.row["inW"] // stride):
                yield texts["name"], int(texts["one_dpu_cycles"]), workload


def predicted_table(profiled: list[Workload]) -> Iterator[str]:
    """Yield the lines of the table of VPUNN's predictions, and what both it and the model say of workloads that were profiled too."""
    found: dict[tuple[str, str], list[tuple[float, str, float, float]]] = defaultdict(list)
    for name, operation, workload, theirs, ours, least in predicted_rows():
        found[name, operation].append((ours / theirs - 1, workload, theirs / least, ours / least))
    yield "| profile | operation | workloads | mean difference | 90th percentile | bias | beyond 10 or 15 % | of which the model is faster | furthest |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (name, operation), rows in sorted(found.items()):
        e = [row[0] for row in rows]
        beyond = [error for error in e if abs(error) > LIMITS[name]]
        error, workload, *_ = max(rows, key=lambda row: abs(row[0]))
        figures = f"{np.mean(np.abs(e)):.1%} | {np.quantile(np.abs(e), 0.9):.1%} | {np.mean(e):+.1%}"
        furthest = f"{workload}, {error:+.0%}"
        yield f"| {name} | {operation} | {len(e)} | {figures} | {len(beyond)} | {sum(error < 0 for error in beyond)} | {furthest} |"
    yield ""
    yield "| where the array is the limit, beyond 10 or 15 % | profile | VPUNN, of what the array needs | model, of that |"
    yield "|---|---|---|---|"
    for (name, operation), rows in sorted(found.items()):
        far = [row for row in rows if abs(row[0]) > LIMITS[name]]
        if operation == "GEMM":
            cells = " | ".join(f"{np.median([row[side] for row in far]):.2f}" for side in (2, 3))
            yield f"| {len(far)} GEMMs, median | {name} | {cells} |"
        if operation == "convolution":
            yield from (f"| {row[1]} | {name} | {row[2]:.2f} | {row[3]:.2f} |" for row in far)
    yield ""
    yield "| profiled too, as one workload | profile | cycles | VPUNN | difference | model | difference |"
    yield "|---|---|---|---|---|---|---|"
    for name, theirs, workload in in_both(profiled):
        measured, ours = workload.row["gt_cycles"], workload.cycles
        cells = f"{measured} | {theirs} | {theirs / measured - 1:+.1%} | {ours} | {ours / measured - 1:+.1%}"
        yield f"| {name} | {PROFILES[workload.row['device']]} | {cells} |"


def table_profile(device: int) -> Profile:
    """Return the profile with the parameters that the rows of `device` in dma_cycles_model.csv were made with.

    Those of device 3 have an older set (956 ns, 16 cycles, 45 GB/s, a port of 32 bytes), those of device 4 npu-40xx's with
    other clocks, and CMX to CMX at the port's width.
    """
    profile = load_profile(PROFILES.get(device, "npu-40xx"))
    dma, ddr, cmx, dpu = profile.dma, profile.ddr, profile.cmx, profile.dpu
    if device == 3:
        dma = _changed_dma(dma, bytes_per_cycle=32)
        ddr = msgspec.structs.replace(ddr, latency_ns=956.0, bytes_per_second=45_000_000_000)
        cmx = msgspec.structs.replace(cmx, latency_cycles=16)
    elif device == 4:
        dma = _changed_dma(dma, clock_hz=1_114_000_000, cmx_bytes_per_cycle=64)
        dpu = msgspec.structs.replace(dpu, clock_hz=1_950_000_000)
    return msgspec.structs.replace(profile, dma=dma, ddr=ddr, cmx=cmx, dpu=dpu)


def _changed_dma(dma: Dma, **fields: int) -> Dma:
    return msgspec.structs.replace(dma, **fields)


def transfer_cycles(profile: Profile, nbytes: int, outside: bool) -> int:
    """Return the DPU cycles that one transfer takes, DDR to CMX or inside CMX."""
    task = np.zeros(1, npu_abi.dtype("npu_dma_task"))
    fields = {
        "length": nbytes, "num_planes": 1, "src_width": nbytes, "dst_width": nbytes, "dst": C.NPU_CMX_BASE,
        "src": C.NPU_VA_USER_BASE if outside else C.NPU_CMX_BASE,
    }  # fmt: skip
    for name, value in fields.items():
        task[f"transaction_{name}"] = value
    return round(int(dma_alone_ps(profile, task)[0]) * profile.dpu.clock_hz / 10**12)


def transfer_rows() -> Iterator[tuple[int, int, str, int, int]]:
    """Yield (device, bytes, ends, VPUNN's cycles, the model's with the same parameters)."""
    with (DATA / "dma_cycles_model.csv").open(encoding="utf-8") as file:
        next(file)
        for line in file:
            device, nbytes, ddr, _, cmx = (int(value) for value in line.split(",")[:5])
            profile = table_profile(device)
            yield device, nbytes, "DDR and CMX", ddr, transfer_cycles(profile, nbytes, True)
            yield device, nbytes, "CMX and CMX", cmx, transfer_cycles(profile, nbytes, False)


def transfer_table() -> Iterator[str]:
    """Yield the lines of the table of transfers."""
    yield "| parameters | ends | bytes | VPUNN | model | difference |"
    yield "|---|---|---|---|---|---|"
    sets = {2: "npu-37xx", 3: "npu-40xx, older set", 4: "npu-40xx at 1950 and 1114 MHz"}
    for device, nbytes, ends, theirs, ours in transfer_rows():
        yield f"| {sets[device]} | {ends} | {nbytes} | {theirs} | {ours} | {ours / theirs - 1:+.1%} |"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in fp16 on one SHAVE: cycles of a vector, and start-up in us, of others and of the model."""

    profile: str
    operation: str
    kind: str  # C: a parameter is calibrated on it; M: predicted; X: explained
    quoted: float
    predicted: float
    quoted_us: float
    predicted_us: float


def program_cycles(profile: Profile, operation: str, count: int) -> int:
    """Return the cycles of the program that the compiler makes of an ONNX operation, for `count` elements in one piece."""
    half, tensors = onnx.TensorProto.FLOAT16, ["x", "y"][: 2 if operation in ("Mul", "Max", "PRelu") else 1]
    bounds = {"low": -1.0, "high": 1.0} if operation == "Clip" else {}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operation, [*tensors, *bounds], ["z"])],
        operation,
        [onnx.helper.make_tensor_value_info(name, half, [count]) for name in tensors],
        [onnx.helper.make_tensor_value_info("z", half, [count])],
        [onnx.helper.make_tensor(name, half, [], [value]) for name, value in bounds.items()],
    )
    (node,) = load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])).nodes
    dtypes = [C.NPU_DT_F16] * (len(tensors) + 1)
    program = elementwise(node.attrs["expr"], tuple(dtypes[1:]), C.NPU_DT_F16)
    operands = [Operand(index, dtype, (count,), (2,)) for index, dtype in enumerate(dtypes)]
    return cost_cycles(program, program.args(operands), profile)


def kernels() -> Iterator[Kernel]:
    """Yield the rows of shave_layers.csv."""
    fewer, more = 1 << 14, 1 << 16
    with (DATA / "shave_layers.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            profile = load_profile(row["profile"])
            shave = profile.shave
            short, long = (program_cycles(profile, row["operation"], count) for count in (fewer, more))
            slope = (long - short) / (more - fewer)
            yield Kernel(
                row["profile"],
                row["operation"],
                row["class"],
                float(row["us_per_byte"]) * 2 * shave.lanes["f16"] * shave.clock_hz / 1e6,
                slope * shave.lanes["f16"],
                float(row["us"]),
                (short - slope * fewer) / shave.clock_hz * 1e6,
            )


def kernel_table() -> Iterator[str]:
    """Yield the lines of the table of SHAVE kernels."""
    yield "| profile | operation | class | cycles per vector | model | difference | start-up, us | model | difference |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for k in kernels():
        slopes = f"{k.quoted:.2f} | {k.predicted:.2f} | {k.predicted / k.quoted - 1:+.0%}"
        starts = f"{k.quoted_us:.2f} | {k.predicted_us:.2f} | {k.predicted_us / k.quoted_us - 1:+.0%}"
        yield f"| {k.profile} | {k.operation} | {k.kind} | {slopes} | {starts} |"


def blocks() -> dict[str, str]:
    """Return the tables of docs/cycles.md by name."""
    profiled = read_workloads(DATA / "dpu_cycles_profiled.csv")
    tables = {
        "profiled": profiled_table(profiled), "predicted": predicted_table(profiled), "transfers": transfer_table(),
        "kernels": kernel_table(),
    }  # fmt: skip
    return {name: "\n".join(lines) for name, lines in tables.items()}


def update(text: str) -> str:
    """Return the document with its tables made anew; each stands between two marks."""
    for name, block in blocks().items():
        before, rest = text.split(f"<!-- {name} -->\n")
        after = rest.split("<!-- end -->\n", 1)[1]
        text = f"{before}<!-- {name} -->\n{block}\n<!-- end -->\n{after}"
    return text


def main() -> None:
    """Print the tables, or write them to the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, nargs="?", metavar="WORKLOADS.csv")
    parser.add_argument("--update", action="store_true", help="write the tables to docs/cycles.md")
    options = parser.parse_args()
    if options.table is None:
        print("\n\n".join(blocks().values()))
        if options.update:
            DOCUMENT.write_text(update(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
        return
    workloads = read_workloads(options.table)
    print("\n".join(profiled_table(workloads)))
    print("\nlargest errors:")
    for workload in sorted(workloads, key=lambda w: -abs(w.error))[:10]:
        print(f"{workload.error:+.1%}  model {workload.cycles}  {workload.text}")


if __name__ == "__main__":
    main()
