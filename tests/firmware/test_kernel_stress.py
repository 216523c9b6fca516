"""Random launches, good and bad, cooperative or not, beside inferences, with aborts: everything ends and nothing is left over."""

import random

import pytest
from npu_abi import C

from tests.device.rig import CMX, Blob, Rig
from tests.firmware.launches import Program, busy, queues

COOPERATIVE = {"flags": C.NPU_KERNEL_COOPERATIVE}
QUEUES = 5


def programs(rig):
    """Return (text, padding, the status that a launch of several blocks may end with)."""
    ok, fault = {C.NPU_JOB_SUCCESS}, {C.NPU_JOB_SHAVE_FAULT}
    out = rig.alloc(4096)
    load = f"li r10, {out}\nld.i64 r11, r10, 0\nst.i64 r11, r4, 0\n"
    return [
        (busy(6) + "halt", 0, ok, False),
        (busy(13) + load + "halt", 1 << 12, ok, False),
        (load + "halt", 1 << 16, ok, False),
        (busy(5) + "bar\n" + load + "bar\nhalt", 1 << 10, ok, True),
        ("li r10, 1\nblt r2, r10, out\nbar\nout:\nhalt", 0, {C.NPU_JOB_DEADLOCK}, True),
        ("bar\nhalt", 0, fault, False),
        (busy(8) + "trap 1", 1 << 11, fault, False),
        (
            "li r10, 1\nbne r2, r10, out\nadd r4, r4, r5\nst.i64 r0, r4, 0\nout:\nhalt",
            0,
            {C.NPU_JOB_CTX_VIOLATION},
            False,
        ),
    ]


def inference(rig, tiles):
    program = Program(rig, busy(12) + "halt", pad_to=1 << 10)
    blob = Blob(tiles)
    index = blob.add_range(program.fields["text_va"], program.fields["code_bytes"])
    for tile in range(tiles):
        blob.add_shave(index, tile=tile)
    blob.add_dma(rig.alloc(1 << 16), CMX, 1 << 16)
    return rig.inference(blob)


def check_nothing_is_left(rig):
    fabric = rig.device.fabric
    assert rig.device.idle
    assert not fabric.slots
    assert fabric.ddr.idle
    assert all(engine.task is None and not engine.wanting for engine in fabric.engines)
    records = Program(rig, busy(14) + "halt").launch(4)
    assert sorted(records["unit"].tolist()) == [0, 1, 16, 17]
    assert rig.execute(inference(rig, 2)).job_status == C.NPU_JOB_SUCCESS


def seeds(quick, count):
    """Return parameters: some seeds always, the rest in CI."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, count))]


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_random_launches_end_as_they_must(seed, compute):
    def run():
        draw = random.Random(seed)
        rig = Rig("npu-37xx", compute=compute, trace=True)
        places = queues(rig, QUEUES)
        kinds = programs(rig)
        expected = {}
        for _ in range(40):
            va, doorbell = places[draw.randrange(QUEUES)]
            if draw.random() < 0.25:
                job = rig.enqueue(inference(rig, draw.randint(1, 2)), jobq=va, doorbell=doorbell)
                expected[job] = {C.NPU_JOB_SUCCESS}
            else:
                text, padding, status, cooperative = kinds[draw.randrange(len(kinds))]
                grid = draw.randint(2, 4) if cooperative else draw.randint(2, 20)
                fields = COOPERATIVE if cooperative else {}
                buffer = rig.command_buffer([Program(rig, text, pad_to=padding).command(grid, **fields)])
                expected[rig.enqueue(buffer, jobq=va, doorbell=doorbell)] = status
            rig.device.run_until(rig.device.now_ps + draw.randrange(20_000_000))
            if draw.random() < 0.1:
                rig.bus.write32(C.NPU_REG_MMU_TLBI_SSID, 2)
        rig.run()
        done = {one.job_id: one.job_status for one in rig.done()}
        assert done.keys() == expected.keys()
        for job, status in done.items():
            assert status in expected[job], (job, status, expected[job])
        check_nothing_is_left(rig)
        return rig.device.drain_trace()

    assert run() == run()


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_random_aborts_leave_nothing_behind(seed):
    draw = random.Random(seed)
    rig = Rig("npu-37xx")
    places = queues(rig, QUEUES)
    kinds = programs(rig)
    for _ in range(5):
        for va, doorbell in places:
            text, padding, _, cooperative = kinds[draw.randrange(len(kinds))]
            grid = draw.randint(1, 4) if cooperative else draw.randint(1, 20)
            fields = COOPERATIVE if cooperative else {}
            kernel = rig.command_buffer([Program(rig, text, pad_to=padding).command(grid, **fields)])
            buffer = kernel if draw.random() < 0.8 else inference(rig, draw.randint(1, 2))
            rig.enqueue(buffer, jobq=va, doorbell=doorbell)
        rig.device.run_until(rig.device.now_ps + draw.randrange(40_000_000))
        rig.abort()
    check_nothing_is_left(rig)
