"""Cooperative launches: blocks that run at the same time and meet at `bar`."""

import numpy as np
import pytest
from npu_abi import C, new, pack
from npu_model.shave_isa import ShaveFaultCode

from tests.device.rig import CMX, Blob, Rig
from tests.firmware.launches import Program, busy, enqueue_all

COOPERATIVE = {"flags": C.NPU_KERNEL_COOPERATIVE}
PER_BLOCK = 1024
REDUCE = """
    ld.i64 r10, r1, 0       # fp32 numbers
    ld.i64 r11, r1, 8       # partial sums, one for each block
    ld.i64 r12, r1, 16      # the sum
    li r13, 1
    li r14, 1024
    li r15, 4
    muli r16, r2, 4096
    add r10, r10, r16
    setvl r13, r14
    vld.f32 v0, r10, r0, r15, 0
    vrsum.f32.col v1, v0
    muli r16, r2, 4
    add r16, r16, r11
    setvl r13, r13
    vst.f32 v1, r16, r0, r15, 0
    {bar}
    bne r2, r0, done
    setvl r13, r3
    vld.f32 v2, r11, r0, r15, 0
    vrsum.f32.col v3, v2
    setvl r13, r13
    vst.f32 v3, r12, r0, r15, 0
done:
    halt
"""


def reduction(bar, grid=2, **rig_options):
    """Sum `grid` * 1024 numbers, a part in each block; return (found, expected, partial sums)."""
    rig = Rig("npu-37xx", **rig_options)
    numbers = np.arange(grid * PER_BLOCK, dtype=np.float32)
    data, partial, out = rig.alloc(numbers.tobytes()), rig.alloc(4096), rig.alloc(4096)
    Program(rig, REDUCE.format(bar=bar), data, partial, out).launch(grid, **COOPERATIVE)
    found = rig.memory(out)[:4].view(np.float32)[0]
    return found, np.float32(numbers.astype(np.float64).sum()), rig.memory(partial)[: 4 * grid].view(np.float32)


@pytest.mark.parametrize("grid", [2, 4])
def test_a_reduction_over_several_shaves_is_right_with_bar(grid):
    found, expected, partial = reduction("bar", grid)
    assert found == expected
    assert partial.sum(dtype=np.float64) == expected


def test_a_reduction_over_two_shaves_is_wrong_without_bar():
    found, expected, _ = reduction("nop")
    assert np.isnan(found)  # poison: the other block had not stored its sum, or was about to
    assert found != expected


@pytest.mark.parametrize("seed", range(5))
def test_bar_orders_under_every_schedule(seed):
    rig = Rig("npu-37xx")
    rig.device.set_schedule(C.NPU_SCHEDULE_SEED, seed)
    numbers = np.arange(4 * PER_BLOCK, dtype=np.float32)
    data, partial, out = rig.alloc(numbers.tobytes()), rig.alloc(4096), rig.alloc(4096)
    Program(rig, REDUCE.format(bar="bar"), data, partial, out).launch(4, **COOPERATIVE)
    assert rig.memory(out)[:4].view(np.float32)[0] == np.float32(numbers.astype(np.float64).sum())


@pytest.mark.parametrize("compute", [True, False])
def test_all_blocks_start_together_each_on_its_shave(compute):
    rig = Rig("npu-37xx", compute=compute)
    program = Program(rig, busy(8) + "halt")
    program.launch()  # one SHAVE has the program already
    records = program.launch(4, **COOPERATIVE)
    assert records["unit"].tolist() == [0, 1, 16, 17]
    assert records["loaded_bytes"].tolist() == [0, 128, 128, 128]
    for name in ("picked_ps", "load_ps", "start_ps"):
        assert len(set(records[name].tolist())) == 1, name
    assert records["start_ps"][0] - records["load_ps"][0] > 956_000


@pytest.mark.parametrize("compute", [True, False])
def test_behind_bar_all_blocks_go_on_when_the_last_one_has_come(compute):
    """Block b spins for b * 10,000 instructions before the `bar`."""
    rig = Rig("npu-37xx", compute=compute)
    text = "li r10, 0\nmuli r11, r2, 10000\nbeq r11, r0, meet\nspin:\naddi r10, r10, 2\nblt r10, r11, spin\nmeet:\nbar\nhalt"
    records = Program(rig, text).launch(4, **COOPERATIVE)
    (end,) = set(records["end_ps"].tolist())
    cycles = (3 + 30_000 + 2) / 975_000_000 * 1e12
    assert abs(int(end - records["start_ps"][0]) - cycles) < 5 * 1026


def test_a_loop_of_bars_makes_blocks_alternate():
    """Round i: block i % 2 adds 1 to a counter in memory that the other one added to before."""
    rig = Rig("npu-37xx")
    out = rig.alloc(bytes(4096))
    text = """
        ld.i64 r10, r1, 0
        li r11, 0
        li r12, 10
    round:
        li r13, 2
        rem r14, r11, r13
        bne r14, r2, skip
        ld.i64 r15, r10, 0
        addi r15, r15, 1
        st.i64 r15, r10, 0
    skip:
        bar
        addi r11, r11, 1
        blt r11, r12, round
        halt
    """
    Program(rig, text, out).launch(2, **COOPERATIVE)
    assert int(rig.memory(out)[:8].view(np.int64)[0]) == 10


@pytest.mark.parametrize("early", [0, 1, 2])
@pytest.mark.parametrize("compute", [True, False])
def test_a_block_that_ends_without_the_bar_of_the_others_is_a_deadlock(early, compute):
    rig = Rig("npu-37xx", compute=compute)
    text = f"li r10, {early}\nbeq r2, r10, done\n{busy(6)}\nbar\ndone:\nhalt"
    done = Program(rig, text).run(3, **COOPERATIVE)
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_DEADLOCK, C.NPU_BARRIER_NONE)
    assert done.error_info in {0, 1, 2} - {early}
    assert Program(rig, "bar\nhalt").run(4, **COOPERATIVE).job_status == C.NPU_JOB_SUCCESS


def test_a_block_that_ends_late_while_the_others_wait_is_a_deadlock():
    rig = Rig("npu-37xx")
    text = f"li r10, 2\nbne r2, r10, meet\n{busy(10)}\nhalt\nmeet:\nbar\nhalt"
    done = Program(rig, text).run(3, **COOPERATIVE)
    assert (done.job_status, done.error_info) == (C.NPU_JOB_DEADLOCK, 0)


def test_a_fault_of_one_block_while_the_others_wait_is_its_fault():
    rig = Rig("npu-37xx")
    text = f"li r10, 2\nbne r2, r10, meet\n{busy(10)}\ntrap 0\nmeet:\nbar\nhalt"
    done = Program(rig, text).run(3, **COOPERATIVE)
    assert (done.job_status, done.error_info) == (C.NPU_JOB_SHAVE_FAULT, 2)
    assert done.error_detail >> 32 == ShaveFaultCode.TRAP
    assert Program(rig, "bar\nhalt").run(4, **COOPERATIVE).job_status == C.NPU_JOB_SUCCESS


def test_bar_without_the_flag_is_a_fault():
    rig = Rig("npu-37xx")
    done = Program(rig, "nop\nbar\nhalt").run(2)
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_SHAVE_FAULT, ShaveFaultCode.NOT_COOPERATIVE << 32 | 16)


def test_bar_in_an_inference_is_a_fault():
    rig = Rig("npu-37xx")
    program = Program(rig, "bar\nhalt")
    blob = Blob()
    blob.add_shave(blob.add_range(program.fields["text_va"], program.fields["code_bytes"]))
    done = rig.execute(rig.inference(blob))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_SHAVE_FAULT, ShaveFaultCode.NOT_COOPERATIVE << 32)


def test_an_endless_loop_of_bars_ends_with_the_watchdog():
    done = Program(Rig("npu-37xx"), "next:\nbar\njmp next").run(2, **COOPERATIVE)
    assert (done.job_status, done.error_detail >> 32) == (C.NPU_JOB_SHAVE_FAULT, ShaveFaultCode.WATCHDOG)


def test_a_launch_of_one_block_passes_its_bars_alone():
    assert len(Program(Rig("npu-37xx"), "bar\nbar\nhalt").launch(1, **COOPERATIVE)) == 1


def test_blocks_exchange_tiles_through_dma_on_both_sides_of_a_bar():
    """Block b writes its number to DDR with DMA, waits, meets, and reads the other's with DMA."""
    rig = Rig("npu-37xx")
    shared, out = rig.alloc(4096), rig.alloc(bytes(4096))

    def descriptor(src, dst):
        fields = {"src": src, "dst": dst, "length": 64, "num_planes": 1, "src_width": 64, "dst_width": 64}
        return pack(new("npu_dma_descriptor", **fields))

    table = b"".join(
        descriptor(CMX, shared + 64 * b)
        + descriptor(shared + 64 * (1 - b), CMX + 64)
        + descriptor(CMX + 64, out + 64 * b)
        for b in range(2)
    )
    text = """
        ld.i64 r10, r1, 0
        muli r11, r2, 240
        add r10, r10, r11
        addi r11, r10, 80
        addi r12, r10, 160
        addi r13, r2, 100
        st.i64 r13, r4, 0
        dmastart r10, 0, 0
        dmawait 0
        bar
        dmastart r11, 0, 0
        dmawait 0
        dmastart r12, 0, 0
        halt
    """
    Program(rig, text, rig.alloc(table)).launch(2, **COOPERATIVE)
    assert [int(rig.memory(out)[at : at + 8].view(np.int64)[0]) for at in (0, 64)] == [101, 100]


def test_a_cooperative_launch_waits_for_shaves_and_later_launches_do_not_overtake_it():
    rig = Rig("npu-37xx")
    busy_text = busy(14) + "halt"
    first, together, later = Program(rig, busy_text), Program(rig, busy_text), Program(rig, busy_text)
    buffers = [
        rig.command_buffer([first.command(6)]),
        rig.command_buffer([together.command(4, **COOPERATIVE)]),
        rig.command_buffer([later.command(40)]),
    ]
    enqueue_all(rig, buffers)
    rig.run()
    assert [done.job_status for done in rig.done()] == [C.NPU_JOB_SUCCESS] * 3
    start = set(together.records(4)["start_ps"].tolist())
    assert len(start) == 1
    assert min(start) >= first.records(6)["end_ps"].max()
    assert later.records(40)["start_ps"].min() >= together.records(4)["end_ps"].min()


def test_two_cooperative_launches_do_not_wait_for_each_other():
    rig = Rig("npu-37xx")
    programs = [Program(rig, busy(10) + "bar\n" + busy(9).replace("spin", "more") + "bar\nhalt") for _ in range(6)]
    enqueue_all(rig, [rig.command_buffer([program.command(3, **COOPERATIVE)]) for program in programs])
    rig.run()
    assert [done.job_status for done in rig.done()] == [C.NPU_JOB_SUCCESS] * 6


@pytest.mark.parametrize("after_us", range(3, 30, 3))
def test_a_cooperative_launch_can_be_aborted_at_any_time(after_us):
    rig = Rig("npu-37xx")
    text = f"li r10, 1\nbeq r2, r10, late\nbar\nhalt\nlate:\n{busy(14)}\nbar\nhalt"
    rig.enqueue(rig.command_buffer([Program(rig, text, pad_to=1 << 15).command(4, **COOPERATIVE)]))
    rig.device.run_until(rig.device.now_ps + after_us * 1_000_000)
    rig.abort()
    assert [done.job_status for done in rig.done()] in ([C.NPU_JOB_ABORTED], [C.NPU_JOB_SUCCESS])
    assert Program(rig, "bar\nhalt").run(4, **COOPERATIVE).job_status == C.NPU_JOB_SUCCESS
