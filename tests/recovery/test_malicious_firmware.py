"""A firmware that lies: nothing that it writes makes the driver read or write outside of its rings, end another's job, or fail."""

from __future__ import annotations

import random

import npu_abi
import pytest
from npu_abi import C

from tests.recovery.conftest import WANTED

SLOT = 192
KINDS = [int(kind) for kind in npu_abi.enum("npu_jsm_type")]


class Liar:
    """Writes into the message area as the firmware may, and posts addresses."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.area = kernel.ipc._rx
        self.interrupts = kernel.device.fabric.interrupts

    def post(self, data, slot=9):
        """Put the bytes of a message in a slot and announce it."""
        at = slot * SLOT
        self.area.memory[at : at + len(data)] = data
        self.interrupts.push_host(self.area.va + at)

    def job_done(self, **fields):
        """Report the end of a job."""
        body = {"job_status": C.NPU_JOB_SUCCESS} | fields
        message = npu_abi.new("npu_jsm_msg", type=C.NPU_JSM_JOB_DONE)
        npu_abi.ffi.memmove(message.payload, npu_abi.pack(npu_abi.new("npu_jsm_job_done", **body)), 48)
        header = npu_abi.new("npu_ipc_hdr", data_size=128, channel=C.NPU_IPC_CHAN_JOB_RET, status=C.NPU_IPC_ALLOCATED)
        self.post(npu_abi.pack(header) + npu_abi.pack(message))


@pytest.fixture
def liar(rig):
    """A lying firmware on the rig's device."""
    return Liar(rig.kernel)


def outside(rig):
    """What is in the driver's memory, but for the message areas: page tables, contexts, rings, and the boot parameters."""
    dram, memory, ipc = rig.kernel.device.dram, rig.kernel.memory, rig.kernel.ipc
    areas = {ipc._rx.pa, ipc._tx.pa}
    return {pa: bytes(dram.view(pa, size)) for pa, size in memory._sizes.items() if pa not in areas and size <= 1 << 20}


def context_memory(context):
    """Physical addresses of a context's objects, which the process itself writes."""
    return {bo.pa for bo in context.objects.values()}


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_garbage_messages(rig, liar, seed):
    prng = random.Random(seed)
    device = rig.device
    with device.create_context() as victim:
        victim.alloc(4096)
        before, contexts = outside(rig), dict(rig.kernel.contexts)
        for _ in range(1500):
            data = bytearray(prng.randbytes(SLOT))
            if prng.random() < 0.7:
                data[6] = C.NPU_IPC_ALLOCATED
            if prng.random() < 0.7:
                data[64:68] = prng.choice(KINDS).to_bytes(4, "little")
            if prng.random() < 0.1:
                rig.kernel.device.fabric.interrupts.push_host(prng.getrandbits(32) | 1)
            liar.post(data, prng.randrange(liar.area.count))
        assert outside(rig) == before
        assert rig.kernel.contexts == contexts
        assert all(context.lost is None for context in contexts.values())
    rig.kernel.ipc.reclaim()
    assert rig.run() == WANTED


def test_foreign_and_repeated_completions_change_nothing(rig, liar):
    device, kernel = rig.device, rig.kernel
    stream = device.create_stream()
    stream.fill(device.alloc(1 << 20), 7)
    jobs = [(context, job) for context in kernel.contexts.values() for job in context.jobs.values()]
    assert jobs
    context, job = jobs[0]
    right = {"db_idx": job.queue.doorbell, "job_id": job.job_id, "host_ssid": context.ssid}
    for wrong in (
        {"db_idx": 0},
        {"db_idx": 255},
        {"host_ssid": 0},
        {"host_ssid": 3},
        {"job_status": 77},
        {"job_id": job.job_id ^ 0x80},
    ):
        liar.job_done(**(right | wrong))
        assert not job.finished
    liar.job_done(**right, start_ps=1 << 63, end_ps=1 << 63)
    assert job.finished
    assert job.end_ps <= kernel.device.now_ps
    for _ in range(100):
        liar.job_done(**right)
    assert "is not in flight" in kernel.log[-1]


def test_indices_in_a_ring_are_not_followed(rig):
    kernel = rig.kernel
    rig.run()
    (context,) = kernel.contexts.values()
    stream = rig.device.create_stream()
    buffer = rig.device.alloc(4096)
    for _ in range(2):
        stream.fill(buffer, 7)
    stream.synchronize()
    before = outside(rig)
    for queue in context.queues.values():
        for head, tail in ((0xFFFFFFFF, 0xFFFFFFFF), (63, 63), (0, 0x7FFFFFFF), (1 << 31, 5)):
            queue._memory[:8] = head.to_bytes(4, "little") + tail.to_bytes(4, "little")
            assert not queue.is_untouched()
        queue._memory[:8] = bytes(8)
    queue = list(context.queues.values())[-1]
    queue._memory[4:8] = (1 << 20).to_bytes(4, "little")
    tail = queue._tail
    stream.fill(buffer, 7)
    assert queue._tail == tail + 1
    after = outside(rig)
    rings = {queue.pa for queue in context.queues.values()}
    assert queue.pa in {pa for pa in before if before[pa] != after[pa]} <= rings | context_memory(context)
    stream.synchronize()


@pytest.mark.parametrize(
    ("count", "ssids", "flags"),
    [
        (9, [2] * 8, 1),
        (0xFFFFFFFF, [2] * 8, 1),
        (1, [0], 1),
        (1, [65], 1),
        (2, [2, 2], 1),
        (1, [2], 2),
    ],
)
def test_nonsense_in_an_engine_reset_reply_is_a_full_reset(rig, monkeypatch, count, ssids, flags):
    reply = npu_abi.new("npu_jsm_engine_reset_done", impacted_count=count)
    for index, ssid in enumerate(ssids):
        reply.impacted[index].host_ssid, reply.impacted[index].flags = ssid, flags
    real = rig.kernel.firmware.request

    def lie(kind, struct, **payload):
        return (
            npu_abi.pack(reply).ljust(112, b"\0") if kind == C.NPU_JSM_ENGINE_RESET else real(kind, struct, **payload)
        )

    rig.device.primary  # noqa: B018  # it is there
    monkeypatch.setattr(rig.kernel.firmware, "request", lie)
    rig.device.recover(engine=True)
    assert rig.kernel.recovery.full_resets == 1
    assert all(context.lost is None for context in rig.kernel.contexts.values())
    assert rig.run() == WANTED


def test_counts_in_a_state_dump_are_clamped(rig):
    memory = rig.kernel.firmware._dump.memory
    memory[:] = b"\xff" * len(memory)
    assert len(rig.kernel.firmware.last_state()) == 1 + (len(memory) - 32) // 48
