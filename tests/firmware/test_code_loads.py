"""Step 4 of a launch: a SHAVE fills its instruction cache. What is fetched, how long it takes, what the cache forgets."""

import numpy as np
import pytest
from npu_abi import C, dtype, new, pack
from npu_model.shave_isa import assemble

from tests.device.rig import SSID, Blob, Rig
from tests.firmware.launches import Program, busy, kernel, queues

KIB = 1024
LATENCY_PS, CYCLE_PS = 956_000, 10**12 / 975_000_000
LINK = 27e9  # bytes a second, one way or the other; requests have wires of their own
HELD_PS = 32 * 64 / 8 * CYCLE_PS  # as long as 32 lines last, which are asked for at a time
REFRESHED = 1 / (1 - (316_000 - HELD_PS + 118_917) / 3_900_000)  # a refresh lets data stop: longer by that on average


def load_ps(record):
    return int(record["start_ps"] - record["load_ps"])


def counters(rig):
    found = rig.device.counters()
    return found[C.NPU_PMU_CODE_LOAD], found[C.NPU_PMU_CODE_LOAD_CYCLES]


@pytest.mark.parametrize("compute", [True, False])
def test_the_second_launch_of_a_kernel_finds_its_program_in_the_cache(compute):
    rig = Rig("npu-37xx", compute=compute)
    program = Program(rig, busy(4) + "halt", pad_to=4 * KIB)
    (first,) = program.launch()
    assert (first["loaded_bytes"], first["cached_bytes"]) == (4096, 0)
    assert 0 <= load_ps(first) - LATENCY_PS - 512 * REFRESHED * CYCLE_PS < 2 * CYCLE_PS  # 8 bytes per cycle
    nbytes, cycles = counters(rig)
    assert nbytes == 4096
    assert abs(cycles - load_ps(first) * 1.3e-3) <= 1  # at 1300 MHz
    (second,) = program.launch()
    assert (second["loaded_bytes"], second["cached_bytes"], load_ps(second)) == (0, 4096, 0)
    assert counters(rig) == (nbytes, cycles)


@pytest.mark.parametrize("compute", [True, False])
def test_four_shaves_that_load_at_once_share_the_memory(compute):
    """Alone 64 KiB take 8192 cycles; four times 64 KiB take as long as a link needs for them."""
    rig = Rig("npu-37xx", compute=compute)
    program = Program(rig, "halt", pad_to=64 * KIB)
    (alone,) = program.launch()
    assert load_ps(alone) - LATENCY_PS == pytest.approx(8192 * REFRESHED * CYCLE_PS, rel=0.001)
    together = program.launch(4, flags=C.NPU_KERNEL_COOPERATIVE)
    assert len(set(together["load_ps"].tolist())) == 1
    assert set(together["loaded_bytes"].tolist()) == {64 * KIB}
    for record in together:
        assert load_ps(record) - LATENCY_PS == pytest.approx(4 * 65536 / LINK * 1e12, rel=0.05)


def test_a_copy_takes_longer_by_the_bytes_of_a_load_beside_it():
    """The copy alone has the whole memory; a load takes its share of a link from it, less at most what the link is idle meanwhile, as the copy turns from reads to writes."""
    rig = Rig("npu-37xx", trace=True)
    source, target = rig.alloc(1 << 20), rig.alloc(1 << 20)
    program = Program(rig, "halt", pad_to=64 * KIB)
    blob = Blob()
    blob.add_dma(source, target, 1 << 20)
    copy = rig.inference(blob)

    def duration():
        records = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
        start, end = records[(records["engine"] == C.NPU_ENGINE_DMA) & np.isin(records["kind"], (2, 3))]["time_ps"]
        return int(end - start)

    rig.execute(copy)
    alone = duration()
    (first, _), (second, _) = queues(rig, 2)
    rig.enqueue(copy, jobq=first)
    rig.device.run_until(rig.device.now_ps + 20_000_000)
    rig.enqueue(rig.command_buffer([program.command()]), jobq=second, doorbell=2)
    rig.run()
    (record,) = program.records()
    loaded_ps = 65536 / LINK * 1e12
    idle = 1 - 2 * (1 << 20) / LINK * 1e12 / (alone - LATENCY_PS)  # of the link, while the copy is alone
    assert loaded_ps - idle * (load_ps(record) - LATENCY_PS) <= duration() - alone < loaded_ps
    assert load_ps(record) - LATENCY_PS == pytest.approx(8192 * REFRESHED * CYCLE_PS, rel=0.05)


def test_a_program_larger_than_the_cache_is_fetched_at_every_launch():
    rig = Rig("npu-37xx")
    program = Program(rig, "halt", pad_to=64 * KIB)
    for _ in range(3):
        (record,) = program.launch()
        assert (record["loaded_bytes"], record["cached_bytes"]) == (64 * KIB, 0)


def test_small_data_load_longer_than_they_execute_and_much_data_the_reverse():
    """A program of 64 KiB that reads n rows of 16 KiB: its load takes 9.4 us, a row 1 us and more."""
    rig = Rig("npu-37xx")
    data = rig.alloc(bytes(1 << 16))
    text = """
        ld.i64 r10, r1, 0
        ld.i64 r11, r1, 8
        li r12, 1
        li r13, 4096
        li r14, 4
        li r15, 16384
        setvl r12, r13
    next:
        vld.f32 v0, r10, r15, r14, 0
        vadd.f32 v1, v0, v0
        addi r11, r11, -1
        bne r11, r0, next
        halt
    """
    times = {}
    for rows in (1, 64):
        (record,) = Program(rig, text, data, rows, pad_to=64 * KIB).launch()
        times[rows] = load_ps(record), int(record["end_ps"] - record["start_ps"])
    assert times[1][0] > 4 * times[1][1]
    assert times[64][1] > 4 * times[64][0]


# ---- what the cache forgets, and what it does not see ----

WRITE = "ld.i64 r10, r1, 0\nli r11, {value}\nst.i64 r11, r10, 0\nhalt"


def test_a_program_that_the_host_rewrote_is_not_seen_before_translations_are_dropped():
    rig = Rig("npu-37xx")
    out = rig.alloc(bytes(4096))
    program = Program(rig, WRITE.format(value=1), out)
    word = rig.memory(out)[:8].view(np.int64)
    program.launch()
    changed = assemble(WRITE.format(value=2))
    rig.memory(program.fields["text_va"])[: len(changed)] = np.frombuffer(changed, np.uint8)
    (record,) = program.launch()
    assert (int(word[0]), record["loaded_bytes"]) == (1, 0)
    rig.bus.write32(C.NPU_REG_MMU_TLBI_SSID, SSID + 1)  # somebody else's
    program.launch()
    assert int(word[0]) == 1
    rig.bus.write32(C.NPU_REG_MMU_TLBI_SSID, SSID)
    (record,) = program.launch()
    assert (int(word[0]), record["loaded_bytes"]) == (2, len(changed))


@pytest.mark.parametrize("way", ["tlbi_all", "release"])
def test_the_cache_forgets_a_context(way):
    rig = Rig("npu-37xx")
    program = Program(rig, busy(2) + "halt")
    program.launch()
    if way == "tlbi_all":
        rig.bus.write32(C.NPU_REG_MMU_TLBI_ALL, 1)
    else:
        rig.request(C.NPU_JSM_SSID_RELEASE, new("npu_jsm_ssid_release", host_ssid=SSID))
        rig.memory(0x80008000, 0)[:] = 0
        rig.register_db(1, 0x80008000)
    assert program.launch()["cached_bytes"].tolist() == [0]


def test_another_context_with_a_program_at_the_same_address_has_its_own():
    rig = Rig("npu-37xx")
    programs = []
    for ssid, value in ((SSID, 1), (SSID + 1, 2)):
        rig.next_va[ssid] = 0xA0000000
        out = rig.alloc(bytes(4096), ssid)
        code = assemble(WRITE.format(value=value))
        args = rig.alloc(np.array([out], np.int64).tobytes(), ssid)
        text = rig.alloc(code, ssid)
        programs.append((ssid, out, args, text, len(code)))
    assert len({program[3] for program in programs}) == 1
    rig.alloc(bytes(4096), 0, 0x80010000)
    rig.register_db(2, 0x80010000, SSID + 1)
    for ssid, _, args, text, nbytes in programs:
        body = pack(kernel(text, nbytes, args_va=args, args_bytes=8))
        header = new("npu_cmd_buffer_header", cmd_offset=64, cmd_buffer_size=64 + len(body))
        header.api_version = C.NPU_CMD_API_VERSION
        where = {"jobq": 0x80008000, "doorbell": 1} if ssid == SSID else {"jobq": 0x80010000, "doorbell": 2}
        rig.enqueue(rig.alloc(pack(header) + body, ssid), ssid=ssid, **where)
        rig.run()
    assert [done.job_status for done in rig.done()] == [C.NPU_JOB_SUCCESS] * 2
    assert [int(rig.memory(out, ssid)[:8].view(np.int64)[0]) for ssid, out, *_ in programs] == [1, 2]


def test_text_that_is_unmapped_while_it_is_loaded_fails_the_job():
    rig = Rig("npu-37xx")
    program = Program(rig, "halt", pad_to=4 * KIB)
    rig.enqueue(rig.command_buffer([program.command()]))
    while rig.device.counters()[C.NPU_PMU_CODE_LOAD] == 0:
        rig.device.run_until(rig.device.next_event_ps())
    rig.unmap(SSID, program.fields["text_va"])
    rig.run()
    (done,) = rig.done()
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_CTX_VIOLATION, program.fields["text_va"])
    again = Program(rig, busy(2) + "halt")
    assert again.launch()["cached_bytes"].tolist() == [0]


def test_a_program_does_not_need_to_begin_with_a_line():
    rig = Rig("npu-37xx")
    out = rig.alloc(bytes(4096))
    code = assemble(WRITE.format(value=7))
    text = rig.alloc(bytes(48) + code)
    program = Program(rig, "halt", out)
    (record,) = program.launch(text_va=text + 48, code_bytes=len(code))
    assert int(rig.memory(out)[:8].view(np.int64)[0]) == 7
    assert record["loaded_bytes"] == len(code) == 64
    assert rig.device.counters()[C.NPU_PMU_CODE_LOAD] == 128  # two lines


def test_programs_of_an_inference_do_not_go_through_the_cache():
    rig = Rig("npu-37xx")
    code = assemble("halt")
    blob = Blob()
    blob.add_shave(blob.add_range(rig.alloc(code), len(code)))
    assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS
    assert counters(rig) == (0, 0)
