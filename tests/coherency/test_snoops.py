"""Which memory the device looks for in the host's caches, by its counter."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.blob import BlobImage, IoTensor, Relocation, write


def snoops(device: libnpu.Device, work) -> int:
    before = device.counters()["SNOOPS"]
    work()
    return device.counters()["SNOOPS"] - before


def test_a_copy_asks_for_the_lines_of_both_ends(load):
    device = load()
    source, target = device.alloc(4096), device.alloc(4096)
    assert snoops(device, lambda: device.copy(target[:640], source[:640])) == 20
    assert snoops(device, lambda: device.copy(target[:64], source[32:96])) == 1 + 2


@pytest.mark.parametrize("flags", [C.NPU_HOST_NON_COHERENT, C.NPU_HOST_WRITE_COMBINED, C.NPU_HOST_UNCACHED])
def test_memory_that_is_not_snooped_is_not_asked_for(load, flags):
    device = load(allow_uncached=1)
    source, target = device.alloc_host(4096, flags), device.alloc(4096)
    assert snoops(device, lambda: device.copy(target[:640], source[:640])) == 10


def test_a_board_without_snooping_asks_for_nothing(load):
    device = load(coherent=0)
    source, target = device.alloc(4096), device.alloc(4096)
    assert snoops(device, lambda: device.copy(target[:640], source[:640])) == 0


def weights_model() -> bytes:
    """A model that copies 6400 bytes of weights to its output."""
    import npu_abi

    tasks = np.zeros(1, npu_abi.dtype("npu_dma_task"))
    for field in ("length", "src_width", "dst_width"):
        tasks[f"transaction_{field}"] = 6400
    tasks["transaction_num_planes"] = 1
    tasks["sched_start_after"] = C.NPU_BARRIER_NONE
    return write(
        BlobImage(
            name="weights", profile="unit", tile_count=1, cmx_bytes=0, barrier_count=0,
            inputs=[IoTensor("x", C.NPU_DT_U8, (64,), 64)], outputs=[IoTensor("y", C.NPU_DT_U8, (6400,), 6400)],
            tasks={".npu.tasks.dma0": tasks}, weights=bytes(range(200)) * 32,
            relocations=[
                Relocation(".npu.tasks.dma0", 0, ".data.weights", 0), Relocation(".npu.tasks.dma0", 8, "out:y", 0),
            ],
        )
    )  # fmt: skip


@pytest.mark.parametrize(("policy", "lookups"), [("cached", 200), ("uncached", 100), ("wc", 100)])
def test_the_policy_of_weights_is_a_parameter_of_the_module(load, policy, lookups):
    device = load(weight_policy=policy)
    kernel = device.load(weights_model())
    x, y = device.alloc(64), device.alloc(6400)

    def run():
        device.default_stream.launch(kernel, {"x": x}, {"y": y})
        device.synchronize()

    assert snoops(device, run) == lookups  # 100 of them are the output's
    assert y.read(np.uint8).tobytes() == bytes(range(200)) * 32


@pytest.mark.parametrize(
    "parameters",
    [{}, {"coherent": 0}, {"coherent": 0, "evict": "evict"}, {"weight_policy": "wc", "bugs": "skip_wmb"}, {"coherent": 0, "bugs": "skip_wmb,skip_sync"}],
)  # fmt: skip
def test_what_the_runtime_shares_with_the_device_is_right_under_every_policy(load, parameters):
    device = load(**parameters)
    module = device.load(weights_model())
    for _ in range(2):
        outputs = module.run({"x": np.zeros(64, np.uint8)})
        assert outputs["y"].tobytes() == bytes(range(200)) * 32


def test_a_mapping_of_device_memory_is_cached_on_a_board_without_snooping(load):
    device = load(coherent=0)
    memory, other = device.to_device(np.zeros(128, np.uint8)), device.alloc(128)
    with memory.map() as mapping:
        mapping.array[:64] = 7
        device.copy(other, memory)
        assert other.read(np.uint8).tolist() == [0] * 128
        mapping.flush()
        device.copy(other, memory)
        assert other.read(np.uint8).tolist() == [7] * 64 + [0] * 64
