"""Compare the cycle models of DPU, DMA and SHAVE with tables of others: the error by device and operation.

    python benchmarks/dpu_cycles.py                  the tables of docs/cycles.md
    python benchmarks/dpu_cycles.py --update         and write them there
    python benchmarks/dpu_cycles.py WORKLOADS.csv    the first table for these workloads, and the rows with the largest errors

benchmarks/data/README.md has the columns. A workload belongs to the calibration half when the CRC-32 of its row's text is even;
the profiles' parameters were fitted on that half only, of profiled workloads and of predicted ones. Rows without a measurement are
left out, and rows that are faster than the MAC array can be: they are named.
"""

from __future__ import annotations

import argparse
import csv
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import npu_abi
import numpy as np
import onnx
from npu_abi import C
from npu_model.cycles import MPE_POSITIONS, dma_alone_ps, dpu_cycles, dpu_macs
from npu_model.dpu_walk import Walk
from npu_model.profile import Dma, Profile, load_profile

from libnpu.compiler.frontend import load
from libnpu.compiler.kernels.cost import cost_cycles
from libnpu.compiler.kernels.elementwise import elementwise
from libnpu.compiler.kernels.program import Operand

DATA = Path(__file__).resolve().parent / "data"
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "cycles.md"
OPS = {0: C.NPU_DPU_CONV, 1: C.NPU_DPU_DWCONV, 2: C.NPU_DPU_ELTWISE_ADD, 3: C.NPU_DPU_MAXPOOL}
NAMES = {0: "convolution", 1: "depthwise", 2: "element-wise", 3: "max pooling"}
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


@dataclass(frozen=True, slots=True)
class Predicted:
    """A row of VPUNN's predictions for one tile, with the model's cycles for the fastest grid and size of workload."""

    profile: str
    kind: str
    name: str
    half: str
    row: Row
    theirs: int
    ours: int

    @property
    def error(self) -> float:
        """The model's cycles over VPUNN's, less 1."""
        return self.ours / self.theirs - 1

    @property
    def doubtful(self) -> bool:
        """Whether a convolution takes fewer cycles than the array needs for whole blocks, or a plane is smaller than any that was profiled."""
        if self.row["op"] == 0:
            return self.theirs < whole_blocks(self.profile, self.row | {"exec": 3})
        return self.row["outW"] * self.row["outH"] <= 16


def predicted_rows() -> Iterator[Predicted]:
    """Yield the rows of dpu_cycles_model.csv."""
    lines = (DATA / "dpu_cycles_model.csv").read_text(encoding="utf-8").splitlines()
    for texts, line in zip(csv.DictReader(lines), lines[1:], strict=True):
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
        half = HELD_OUT if zlib.crc32(line.encode()) & 1 else CALIBRATION
        what = f"{texts['name']} {texts['dtype'].lower()}"
        yield Predicted(name, kind, what, half, row, int(texts["best_cycles"]), best)


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
    """Yield the lines of the tables of VPUNN's predictions, and what both it and the model say beside what was profiled."""
    rows = list(predicted_rows())
    groups: dict[tuple[str, str, str], list[Predicted]] = defaultdict(list)
    for row in rows:
        groups[row.profile, row.kind, row.half].append(row)
    yield "| profile | operation | half | workloads | mean difference | 90th percentile | bias | furthest | doubtful | mean without | 90th percentile |"
    yield "|---" * 11 + "|"
    for (profile, kind, half), found in sorted(groups.items()):
        furthest = max(found, key=lambda row: abs(row.error))
        sound = [row.error for row in found if not row.doubtful]
        mean, p90, bias = _spread([row.error for row in found])
        rest = " | ".join(_spread(sound)[:2]) if sound else "- | -"
        cells = f"{len(found)} | {mean} | {p90} | {bias} | {furthest.name}, {furthest.error:+.0%}"
        yield f"| {profile} | {kind} | {half} | {cells} | {len(found) - len(sound)} | {rest} |"
    yield ""
    yield "| cycles over those of whole blocks | profile | profiled | fewest | median | model | VPUNN's | fewest | median | model |"
    yield "|---" * 10 + "|"
    for what, profile, measured, theirs in same_kind(profiled, rows):
        yield f"| {what} | {profile} | {_medians(measured)} | {_medians(theirs)} |"
    yield ""
    yield "| profiled too, as one workload | profile | cycles | VPUNN | difference | model | difference |"
    yield "|---|---|---|---|---|---|---|"
    for name, cycles, workload in in_both(profiled):
        measured_cycles, ours = workload.row["gt_cycles"], workload.cycles
        cells = f"{measured_cycles} | {cycles} | {cycles / measured_cycles - 1:+.1%} | {ours} | {ours / measured_cycles - 1:+.1%}"
        yield f"| {name} | {PROFILES[workload.row['device']]} | {cells} |"


def _spread(errors: list[float]) -> tuple[str, str, str]:
    return (
        f"{np.mean(np.abs(errors)):.1%}",
        f"{np.quantile(np.abs(errors), 0.9):.1%}",
        f"{np.mean(errors):+.1%}",
    )


Ratio = tuple[float, float]  # of whole blocks: what others say, and the model


def _medians(ratios: list[Ratio]) -> str:
    said, ours = zip(*ratios, strict=True)
    return f"{len(ratios)} | {min(said):.2f} | {np.median(said):.2f} | {np.median(ours):.2f}"


def same_kind(
    profiled: list[Workload], predicted: list[Predicted]
) -> Iterator[tuple[str, str, list[Ratio], list[Ratio]]]:
    """Yield (what, profile, ratios of profiled workloads, of predicted ones) of convolutions of a kind, both over the cycles that the MAC
    array needs for the whole blocks of the workload.
    """
    kinds: list[tuple[str, str, Callable[[Row], bool]]] = [
        ("convolution, 9 taps, 16, 28 or 56 columns", "npu-37xx", lambda r: r["kW"] == 3 and r["outW"] in (16, 28, 56)),
        ("9 taps, 7 or 14 columns, 64 channels or more", "npu-40xx", lambda r: r["kW"] == 3 and r["outW"] in (7, 14) and r["outC"] >= 64),
        ("9 taps, 28 or 56 columns", "npu-40xx", lambda r: r["kW"] == 3 and r["outW"] in (28, 56)),
        ("1x1 in 8 bits, 128 or 256 deep, 64 channels or more", "npu-40xx", lambda r: r["kW"] == 1 and r["inC"] in (128, 256) and r["outC"] >= 64 and not r["dtin"]),
    ]  # fmt: skip
    for what, profile, chosen in kinds:
        measured = [
            (w.row["gt_cycles"] / need, w.cycles / need)
            for w in profiled
            if PROFILES[w.row["device"]] == profile and w.possible and w.row["op"] == 0 and chosen(w.row)
            for need in [whole_blocks(profile, w.row)]
        ]
        theirs = [
            (p.theirs / need, p.ours / need)
            for p in predicted
            if p.profile == profile and p.row["op"] == 0 and chosen(p.row)
            for need in [whole_blocks(profile, p.row | {"exec": 3})]
        ]
        yield what, profile, measured, theirs


def whole_blocks(name: str, row: Row) -> int:
    """Return the cycles that the MAC array needs for a convolution, of whole blocks."""
    walk = Walk(*records(row))
    rate = load_profile(name).dpu.macs_per_cycle["f16" if row["dtin"] else "u8"]
    return int((walk.tap_blocks()[0] * walk.channel_blocks)[0]) * -(-int(walk.depth[0]) * MPE_POSITIONS // rate)


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
