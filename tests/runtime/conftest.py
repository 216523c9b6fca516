"""Devices, and blobs made by hand: copies from an input to an output through CMX, right and wrong in one way each."""

from __future__ import annotations

import threading
import time

import npu_abi
import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.blob import BlobImage, IoTensor, Relocation, write
from libnpu.runtime.host_functions import RUNNERS

NONE = 0xFFFFFFFF


def copy_image(nbytes=1024, profile="npu-37xx", name="copy", addend=0, deadlock=False, through_scratch=False):
    """A blob that copies input "x" to output "y", `nbytes` uint8.

    `addend` shifts the source away from the input; `deadlock` makes two tasks on two ports wait for each other;
    `through_scratch` takes a detour over .bss.scratch.
    """
    steps = [("in:x", addend, True), ("out:y", 0, False)]
    if through_scratch:
        steps = [steps[0], (".bss.scratch", 64, False), (".bss.scratch", 64, True), steps[1]]
    tasks = np.zeros(len(steps), npu_abi.dtype("npu_dma_task"))
    relocations = []
    for i, (symbol, offset, loads) in enumerate(steps):
        task = tasks[i]
        for field in ("length", "src_width", "dst_width"):
            task[f"transaction_{field}"] = nbytes
        task["transaction_num_planes"] = 1
        task["transaction_dst" if loads else "transaction_src"] = C.NPU_CMX_BASE
        task["sched_start_after"] = NONE
        task["task_id"] = i
        relocations.append(Relocation(".npu.tasks.dma0", 128 * i + (0 if loads else 8), symbol, offset))
        if i:
            task["barriers_wait_mask"] = 1 << (i - 1)
        if i + 1 < len(steps):
            task["barriers_post_mask"] = 1 << i
    lists = {".npu.tasks.dma0": tasks}
    if deadlock:  # each of two lists waits for the other's barrier
        tasks["barriers_wait_mask"], tasks["barriers_post_mask"] = [2, 1], [1, 2]
        lists = {".npu.tasks.dma0": tasks[:1].copy(), ".npu.tasks.dma1": tasks[1:].copy()}
        relocations[1] = Relocation(".npu.tasks.dma1", 8, "out:y", 0)
    count = 2 if deadlock else len(steps) - 1
    barriers = np.zeros(count, npu_abi.dtype("npu_barrier_config"))
    barriers["next_same_id"] = NONE
    barriers["producer_count"] = barriers["consumer_count"] = 1
    barriers["real_id"] = range(count)
    return BlobImage(
        name=name,
        profile=profile,
        tile_count=1,
        cmx_bytes=nbytes,
        barrier_count=count,
        inputs=[IoTensor("x", C.NPU_DT_U8, (nbytes,), nbytes)],
        outputs=[IoTensor("y", C.NPU_DT_U8, (nbytes,), nbytes)],
        tasks=lists | {".npu.barriers": barriers},
        scratch_bytes=nbytes + 64 if through_scratch else 0,
        relocations=relocations,
        debug={"tasks": [{"name": f"step{i}", "op": "copy"} for i in range(len(steps))]},
    )


@pytest.fixture
def device():
    """An open device of profile npu-37xx, traced."""
    with libnpu.open("npu-37xx", trace=True) as opened:
        yield opened


@pytest.fixture
def image():
    """Makes an image; see `copy_image`."""
    return copy_image


@pytest.fixture
def blob_bytes():
    """Makes the bytes of a blob; see `copy_image`."""
    return lambda **options: write(copy_image(**options))


@pytest.fixture
def empty_bytes():
    """A blob without tasks, inputs or outputs."""
    return write(
        BlobImage(
            name="empty",
            profile="npu-37xx",
            tile_count=1,
            cmx_bytes=0,
            barrier_count=0,
            inputs=[],
            outputs=[],
            tasks={},
        )
    )


@pytest.fixture
def nobody_else():
    """No thread of host functions takes part: what closed devices of tests before have left to one, it has looked at."""
    end = time.monotonic() + 60  # the thread needs the machine for that, which may have other things to do
    while any(runner.machine is not None for runner in RUNNERS):
        assert time.monotonic() < end, "a device with host functions is open"
        time.sleep(0.001)


@pytest.fixture
def run_team():
    """Runs one thread per function in a team, started in `order`; returns what they returned or raised, by rank."""

    def run(device, *functions, order=None):
        results = [None] * len(functions)
        with device.team(len(functions)) as team:

            def member(rank):
                team.enter(rank)
                try:
                    results[rank] = functions[rank]()
                except libnpu.NpuError as error:
                    results[rank] = error
                finally:
                    team.leave()

            threads = [threading.Thread(target=member, args=(rank,)) for rank in order or range(len(functions))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return results

    return run


@pytest.fixture
def context(device):
    """The device's primary context."""
    return device.primary


@pytest.fixture
def add(context):
    """The built-in kernel "add"."""
    return context.kernel("add")


@pytest.fixture
def floats(context):
    """Makes memory with 256 floats of a value."""

    def make(value=0.0):
        buffer = context.alloc(1024)
        buffer.write(np.full(256, value, np.float32))
        return buffer

    return make


@pytest.fixture
def memory(context):
    """64 KiB of floats 1.0."""
    buffer = context.alloc(1 << 16)
    buffer.write(np.ones(1 << 14, np.float32))
    return buffer


@pytest.fixture
def refused():
    """Makes a call that must raise NpuError with a result, and returns the error."""

    def refuse(result, call, *arguments, **options):
        with pytest.raises(libnpu.NpuError) as caught:
            call(*arguments, **options)
        assert caught.value.result == result, caught.value
        return caught.value

    return refuse


@pytest.fixture
def alloc_again():
    """Frees memory, and allocates as much at the same address: others are freed meanwhile, until it leaves quarantine."""

    def alloc_again(device, memory):
        memory.free()
        for _ in range(65):
            again = device.alloc(memory.size)
            if again.device_address == memory.device_address:
                return again
            again.free()
        raise AssertionError(f"{memory.device_address:#x} does not come again")

    return alloc_again
