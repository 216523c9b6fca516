"""The operation `vadd-scalar`: a SHAVE program that adds vectors as a processor without vectors would, one element at a time.

DMA brings the operands to CMX and takes the sum away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from npu_abi import C, dtype

from libnpu.blob import BlobImage, IoTensor, Relocation, write
from libnpu.blob.records import field_offset
from libnpu.blob.shave_tasks import INVOCATIONS, RANGES
from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from npu_model.profile import Profile

MAX_COUNT = 8192  # elements: the watchdog ends a program that does much more
TYPES = {"fp32": ("f32", 4, C.NPU_DT_F32), "fp16": ("f16", 2, C.NPU_DT_F16)}
PART_BYTES = 4 * MAX_COUNT  # of CMX for each operand and the sum
COPIES = ".npu.tasks.dma0"
PROGRAM = """
    ldm r2, r1, 0, 4
    li r6, {size}
next:
    vld.{type} v0, r2, r0, r6, 0
    vld.{type} v1, r3, r0, r6, 0
    vadd.{type} v2, v0, v1
    vst.{type} v2, r4, r0, r6, 0
    add r2, r2, r6
    add r3, r3, r6
    add r4, r4, r6
    addi r5, r5, -1
    bne r5, r0, next
    halt
"""


def scalar_add(profile: Profile, count: int, kind: str) -> tuple[bytes, BlobImage]:
    """Return a blob that adds two vectors of `count` elements of `kind` ("fp32", "fp16"). Raises ToolError for too many."""
    from npu_model.shave_isa import assemble

    if not 1 <= count <= MAX_COUNT:
        raise ToolError(f"--size {count}: vadd-scalar takes 1 to {MAX_COUNT} elements")
    name, size, code = TYPES[kind]
    nbytes = size * count
    places = [C.NPU_CMX_BASE + n * PART_BYTES for n in range(3)]
    copies = np.zeros(3, dtype("npu_dma_task"))
    copies["transaction_length"] = copies["transaction_src_width"] = copies["transaction_dst_width"] = nbytes
    copies["transaction_num_planes"] = 1
    copies["transaction_dst"][:2], copies["transaction_src"][2] = places[:2], places[2]
    copies["barriers_post_mask"], copies["barriers_wait_mask"] = (1, 1, 0), (0, 0, 2)
    text = assemble(PROGRAM.format(type=name, size=size))
    ranges, invocations = np.zeros(1, dtype("npu_shave_range")), np.zeros(1, dtype("npu_shave_invocation"))
    arguments = np.array([*places, count], np.int64).tobytes()
    ranges["code_bytes"], invocations["args_bytes"] = len(text), len(arguments)
    invocations["barriers_wait_mask"], invocations["barriers_post_mask"] = 1, 2
    barriers = np.zeros(2, dtype("npu_barrier_config"))
    barriers["real_id"], barriers["producer_count"], barriers["consumer_count"] = (0, 1), (2, 1), 1
    barriers["next_same_id"] = copies["sched_start_after"] = invocations["sched_start_after"] = C.NPU_BARRIER_NONE
    copies["task_id"], invocations["task_id"] = (0, 1, 3), 2
    a, b, y = (IoTensor(label, code, (count,), nbytes) for label in "aby")
    ends = (("src", "in:a"), ("src", "in:b"), ("dst", "out:y"))
    names = ("load a", "load b", "add", "store y")
    image = BlobImage(
        name=f"vadd-scalar {kind}",
        profile=profile.name,
        tile_count=1,
        cmx_bytes=3 * PART_BYTES,
        barrier_count=len(barriers),
        inputs=[a, b],
        outputs=[y],
        tasks={COPIES: copies, RANGES: ranges, INVOCATIONS: invocations, ".npu.barriers": barriers},
        text=text,
        shave_args=arguments,
        relocations=[
            Relocation(RANGES, 0, ".text.shave", 0),
            Relocation(INVOCATIONS, field_offset(INVOCATIONS, "args_va"), ".data.shave_args", 0, 4),
            *(
                Relocation(COPIES, n * copies.itemsize + field_offset(COPIES, f"transaction_{end}"), symbol, 0)
                for n, (end, symbol) in enumerate(ends)
            ),
        ],
        debug={"tasks": [{"name": task, "layer": "vadd-scalar"} for task in names]},
    )
    return write(image), image
