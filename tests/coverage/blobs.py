"""What the programs load: a profile with little memory, a copy of 16 floats, and a blob for each way in which a job fails."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

from npu_abi import C
from onnx import TensorProto, helper

from libnpu.blob import assemble, write
from libnpu.blob.image import KernelParam
from libnpu.blob.kernels import KernelSource, kernel_library
from libnpu.parts import HostNode, HostPart, PartedModel, Tensor, pack

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = """
blob "{name}" abi=1.0
profile "npu-37xx"
resources tiles=1 cmx_bytes=0 barriers={barriers} scratch_bytes=0 macs=0
input "x" f32 [1,{count}]
output "y" f32 [1,{count}]
"""
_COPY = (
    'transaction_src={source} transaction_dst=@"out:y" transaction_length={size} transaction_num_planes=1 '
    "transaction_src_width={size} transaction_dst_width={size} sched_start_after=none {barriers}\n"
)


def _copies(name: str, *tasks: str, barriers: str = "", count: int = 16, source: str = '@"in:x"') -> str:
    """Return a blob of copies that only differ in their barriers; `barriers` configures those."""
    text = _HEAD.format(name=name, count=count, barriers=int(bool(barriers))) + "section .npu.tasks.dma0\n"
    for number, masks in enumerate(tasks):
        text += f"  {number}: " + _COPY.format(source=source, size=4 * count, barriers=masks)
    return text + (f"section .npu.barriers\n{barriers}" if barriers else "")


_WAIT, _POST = "barriers_wait_mask=0x1", "barriers_post_mask=0x1"
_ONE = "  0: next_same_id=none producer_count=1 consumer_count=1\n"
_TWO = (
    "  0: next_same_id=1 producer_count=1 consumer_count=1\n  1: next_same_id=none producer_count=1 consumer_count=1\n"
)
MODELS = {
    "copy": _copies("copy", ""),
    "long": _copies("long", *[""] * 4, count=65536),
    "page_fault": _copies("page_fault", "", source="0x170000000"),
    "deadlock": _copies("deadlock", _WAIT, _POST, barriers=_ONE),
    # the second of two producers posts before the first's barrier has retired
    "underflow": _copies("underflow", _POST, _POST, _WAIT, _WAIT, barriers=_TWO),
}

# y[i] = x[i] + number + offset for 16 elements; block b of n writes its number to blocks[b]
_ADD = """
    ldm r6, r1, 0, 3      # x, y, blocks
    ld.i64 r9, r1, 24     # number
    fld.f32 f0, r1, 32    # offset
    itof f1, r9
    fadd f0, f0, f1
    li r10, 16
    li r11, 1
    li r12, 4
    setvl r11, r10
    vld.f32 v0, r6, r0, r12, 0
    vadd.f32.s v1, v0, f0
    vst.f32 v1, r7, r0, r12, 0
    mul r13, r2, r12
    add r13, r13, r8
    st.i32 r2, r13, 0
    halt
"""


def _buffer(name: str, direction: int, dtype: int = C.NPU_DT_F32) -> KernelParam:
    return KernelParam(name, C.NPU_ARG_BUFFER, direction, dtype)


def library() -> bytes:
    """Return a kernel library: "add" (see above), "trap", which faults, and "spin", which takes long."""
    x, y = _buffer("x", C.NPU_ARG_IN), _buffer("y", C.NPU_ARG_OUT)
    blocks = _buffer("blocks", C.NPU_ARG_OUT, C.NPU_DT_I32)
    number = KernelParam("number", C.NPU_ARG_INT, C.NPU_ARG_IN, C.NPU_DT_I64)
    offset = KernelParam("offset", C.NPU_ARG_FLOAT, C.NPU_ARG_IN, C.NPU_DT_F32)
    spin = "li r6, 0\nli r7, 4000\nagain:\naddi r6, r6, 1\nblt r6, r7, again\nhalt"
    return kernel_library(
        "library",
        {
            "add": KernelSource(_ADD, (x, y, blocks, number, offset), max_grid=8),
            "trap": KernelSource("trap 7\nhalt", ()),
            "spin": KernelSource(spin, ()),
        },
    )


def parts() -> bytes:
    """Return a model in parts: the host says where x is not 0, which has a shape that only a run tells."""
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16)),
        helper.make_tensor_value_info("y", TensorProto.INT64, (2, None)),
    ]
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "parts", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    host = HostPart(("x",), ("y",), (HostNode("y", "NonZero", "an example"),), 0, "onnx.reference", model)
    tensors = {"x": Tensor("x", "f32", (1, 16)), "y": Tensor("y", "i64", (2, -1))}
    return pack(PartedModel("parts", "npu-37xx", ("x",), ("y",), tensors, (host,)))


def write_blobs(folder: Path) -> None:
    """Write all of them into `folder`, one that is damaged, and profile.json: npu-37xx with 64 MiB of memory."""
    profile = json.loads((files("npu_model") / "profiles" / "npu-37xx.json").read_text())
    profile["ddr"]["capacity_bytes"] = 64 << 20
    (folder / "profile.json").write_text(json.dumps(profile))
    for name, text in MODELS.items():
        (folder / f"{name}.blob").write_bytes(write(assemble(text)))
    (folder / "library.blob").write_bytes(library())
    (folder / "parts.blob").write_bytes(parts())
    damaged = bytearray((folder / "copy.blob").read_bytes())
    damaged[-1] ^= 1
    (folder / "damaged.blob").write_bytes(damaged)
