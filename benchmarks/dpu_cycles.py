"""Compare the DPU's cycle model with a table of profiled workloads: the error per device and operation.

    python benchmarks/dpu_cycles.py WORKLOADS.csv

A row is one workload. Columns, integers: device (2: npu-37xx, 3: npu-40xx), op (0 convolution, 1 depthwise, 2 element-wise
add, 3 max pooling), outH, outW, outC, inC, kH, kW, sH, sW (stride), dtin and dtout (0: 8-bit, 2: fp16), exec (3, 4, 5: enum
npu_mpe_grid 0, 1, 2) and gt_cycles, the measurement; rows without one are left out.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import npu_abi
import numpy as np
from npu_abi import C
from npu_model.cycles import dpu_cycles
from npu_model.profile import Profile, load_profile

OPS = {0: C.NPU_DPU_CONV, 1: C.NPU_DPU_DWCONV, 2: C.NPU_DPU_ELTWISE_ADD, 3: C.NPU_DPU_MAXPOOL}
DTYPES = {0: C.NPU_DT_U8, 2: C.NPU_DT_F16}
PROFILES = {2: "npu-37xx", 3: "npu-40xx"}
GRIDS = {3: 0, 4: 1, 5: 2}  # exec -> enum npu_mpe_grid


def model_cycles(profile: Profile, row: dict[str, int]) -> int:
    """Return what the model says of one workload."""
    invariant = np.zeros(1, npu_abi.dtype("npu_dpu_invariant"))
    variant = np.zeros(1, npu_abi.dtype("npu_dpu_variant"))
    dtype = DTYPES[row["dtin"]]
    fields = {
        "op": OPS[row["op"]], "out_y": row["outH"], "out_x": row["outW"], "out_z": row["outC"], "groups": 1,
        "in_z": row["inC"] if row["op"] == 0 else row["outC"], "variant_count": 1,
        "in_y": row["outH"] + row["kH"] - 1, "in_x": row["outW"] + row["kW"] - 1,
        "kernel_y": row["kH"], "kernel_x": row["kW"], "stride_y": row["sH"], "stride_x": row["sW"],
        "dilation_y": 1, "dilation_x": 1, "act_dtype": dtype, "wt_dtype": dtype, "out_dtype": DTYPES[row["dtout"]],
        "mpe_grid": GRIDS[row["exec"]],
    }  # fmt: skip
    for name, value in fields.items():
        invariant[name] = value
    for axis in "yxz":
        variant[f"size_{axis}"] = fields[f"out_{axis}"]
    return int(dpu_cycles(profile, invariant, variant)[0])


def main() -> None:
    """Print one line per device and operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="WORKLOADS.csv")
    profiles = {device: load_profile(name) for device, name in PROFILES.items()}
    errors: dict[tuple[int, int], list[float]] = {}
    with parser.parse_args().table.open(encoding="utf-8") as file:
        for texts in csv.DictReader(file):
            row = {name: int(text) for name, text in texts.items() if text}
            if row["dtin"] not in DTYPES or row["device"] not in profiles or row["gt_cycles"] <= 0:
                continue
            cycles = model_cycles(profiles[row["device"]], row)
            errors.setdefault((row["device"], row["op"]), []).append(cycles / row["gt_cycles"] - 1)
    for (device, op), values in sorted(errors.items()):
        name = npu_abi.name_of("npu_dpu_op", OPS[op])
        mean, bias = np.mean(np.abs(values)), np.mean(values)
        print(f"{PROFILES[device]} {name:12} {len(values):6} workloads, mean |error| {mean:6.1%}, mean {bias:+.1%}")


if __name__ == "__main__":
    main()
