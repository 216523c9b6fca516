"""Hand-made blobs: a complete one with every section, and builders for smaller ones."""

import hashlib
import json
import struct

import npu_abi
import numpy as np
import pytest
from npu_abi import C
from npu_model import shave_isa

from libnpu.blob import TASK_SECTIONS, BlobImage, IoTensor, Relocation

CMX = C.NPU_CMX_BASE
NONE = C.NPU_BARRIER_NONE


def records(section, *rows):
    """Return a record array of task section `section`, one entry per dict of fields."""
    array = np.zeros(len(rows), npu_abi.dtype(TASK_SECTIONS[section]))
    for entry, row in zip(array, rows, strict=True):
        for field, value in row.items():
            entry[field] = value
    return array


def dma(src=0, dst=0, length=64, wait=0, post=0, task_id=0, start_after=NONE):
    return {
        "transaction_src": src,
        "transaction_dst": dst,
        "transaction_length": length,
        "transaction_num_planes": 1,
        "transaction_src_width": length,
        "transaction_dst_width": length,
        "barriers_wait_mask": wait,
        "barriers_post_mask": post,
        "sched_start_after": start_after,
        "task_id": task_id,
    }


def make_image():
    """Return input (64 B) -> CMX -> DPU max-pool 1x1 -> CMX -> SHAVE -> CMX -> output, with all three engines and weights.

    Barriers: 0 after the loads, 1 after the DPU, 2 after the SHAVE (on id 0 again), 3 after the store.
    """
    text = shave_isa.assemble("li r2, 7\nhalt\n")
    tasks = {
        ".npu.tasks.dma0": records(
            ".npu.tasks.dma0",
            dma(dst=CMX, post=1, task_id=0),
            dma(src=CMX + 512, wait=1, post=2, task_id=4, start_after=1),
        ),
        ".npu.tasks.dma1": records(".npu.tasks.dma1", dma(dst=CMX + 64, post=1, task_id=1)),
        ".npu.tasks.dpu_invariant": records(
            ".npu.tasks.dpu_invariant",
            {
                "act_addr": CMX, "out_addr": CMX + 256, "in_x": 2, "in_y": 1, "in_z": 16, "out_x": 2, "out_y": 1, "out_z": 16,
                "act_stride_x": 32, "act_stride_y": 64, "out_stride_x": 32, "out_stride_y": 64, "groups": 1,
                "kernel_x": 1, "kernel_y": 1, "stride_x": 1, "stride_y": 1, "dilation_x": 1, "dilation_y": 1,
                "op": C.NPU_DPU_MAXPOOL, "ppe_scale": 1.0, "clamp_low": -np.inf, "clamp_high": np.inf,
                "barriers_wait_mask": 1, "barriers_post_mask": 2, "sched_start_after": NONE, "variant_count": 1, "task_id": 2,
            },
        ),
        ".npu.tasks.dpu_variant": records(".npu.tasks.dpu_variant", {"size_x": 2, "size_y": 1, "size_z": 16}),
        ".npu.tasks.shave_range": records(".npu.tasks.shave_range", {"code_bytes": 32}),
        ".npu.tasks.shave_invocation": records(
            ".npu.tasks.shave_invocation",
            {"args_bytes": 16, "barriers_wait_mask": 2, "barriers_post_mask": 1, "sched_start_after": 0, "task_id": 3},
        ),
        ".npu.barriers": records(
            ".npu.barriers",
            {"next_same_id": 2, "producer_count": 2, "consumer_count": 1, "real_id": 0},
            {"next_same_id": 3, "producer_count": 1, "consumer_count": 1, "real_id": 1},
            {"next_same_id": NONE, "producer_count": 1, "consumer_count": 1, "real_id": 0},
            {"next_same_id": NONE, "producer_count": 1, "consumer_count": 0, "real_id": 1},
        ),
    }  # fmt: skip
    return BlobImage(
        name="tiny",
        profile="npu-37xx",
        tile_count=1,
        cmx_bytes=1024,
        barrier_count=2,
        inputs=[IoTensor("x", C.NPU_DT_F16, (1, 16, 1, 2), 64)],
        outputs=[IoTensor("y:0", C.NPU_DT_F32, (16,), 64), IoTensor("empty", C.NPU_DT_F32, (0,), 0)],
        tasks=tasks,
        text=text,
        shave_args=struct.pack("<QII", 0, CMX + 256, 512),
        weights=bytes(range(100)),
        scratch_bytes=4096,
        relocations=[
            Relocation(".npu.tasks.dma0", 0, "in:x", 0),
            Relocation(".npu.tasks.dma0", 128 + 8, "out:y:0", 0),
            Relocation(".npu.tasks.dma1", 0, ".data.weights", 32),
            Relocation(".npu.tasks.shave_range", 0, ".text.shave", 0),
            Relocation(".npu.tasks.shave_invocation", 4, ".data.shave_args", 0, 4),
            Relocation(".data.shave_args", 0, ".data.weights", 64),
        ],
        macs=1,
        debug=json.loads('{"tasks": [{"name": "load \\u00e9", "layer": "x"}], "stats": {"ratio": 0.1}}'),
    )


def headers(data):
    shoff = struct.unpack_from("<Q", data, 40)[0]
    count = struct.unpack_from("<H", data, 60)[0]
    return shoff, [list(struct.unpack_from("<IIQQQQIIQQ", data, shoff + 64 * i)) for i in range(count)]


def names(data):
    _, table = headers(data)
    strings = data[table[-1][4] : table[-1][4] + table[-1][5]]
    return [strings[h[0] : strings.index(b"\0", h[0])].decode() for h in table]


def seal_digest(data):
    """Return `data` with the digest recomputed, so that the parser behind it is reached."""
    data = bytearray(data)
    _, table = headers(data)
    state = hashlib.sha256()
    for name, (_, kind, _, _, offset, size, *_) in zip(names(data)[1:], table[1:], strict=True):
        if name == ".npu.digest":
            at = offset
        else:
            state.update(name.encode() + b"\0" + struct.pack("<IQ", kind, size))
            state.update(b"" if kind == 8 else data[offset : offset + size])
    data[at : at + 32] = state.digest()
    return bytes(data)


@pytest.fixture
def image():
    return make_image()


@pytest.fixture
def make():
    return make_image


@pytest.fixture
def build_records():
    return records


@pytest.fixture
def build_dma():
    return dma


@pytest.fixture(scope="session")
def seal():
    return seal_digest
