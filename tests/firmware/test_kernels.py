"""Kernel launches: blocks, registers, records, the choice of SHAVEs, and what a command can have wrong."""

import numpy as np
import pytest
from npu_abi import C, dtype, new, pack
from npu_model.shave_isa import ShaveFaultCode, assemble

from tests.device.rig import CMX, SSID, Blob, Rig
from tests.firmware.launches import Program, busy, enqueue_all, kernel, queues

SLICE = 991232  # bytes: 1982464 of a tile of npu-37xx over two SHAVEs
STORE_REGISTERS = """
    ld.i64 r10, r1, 0       # the output: four words for each block
    muli r11, r2, 32
    add r10, r10, r11
    st.i64 r2, r10, 0
    st.i64 r3, r10, 8
    st.i64 r4, r10, 16
    st.i64 r5, r10, 24
    halt
"""


def trace_of(rig, *kinds):
    records = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    return records[np.isin(records["kind"], kinds)]


def trap_in(block):
    return f"{busy(8)}\nli r6, {block}\nbne r2, r6, done\ntrap 0\ndone:\n{busy(14).replace('spin', 'more')}\nhalt"


def two_tiles(rig):
    """Return a command buffer of an inference that owns both tiles."""
    blob = Blob(2)
    blob.add_dma(rig.alloc(4096), CMX, 4096)
    return rig.inference(blob)


def check_alive(rig):
    """Kernels and inferences work, and get every SHAVE and tile."""
    assert sorted(Program(rig, busy(14) + "halt").launch(4)["unit"].tolist()) == [0, 1, 16, 17]
    assert rig.execute(two_tiles(rig)).job_status == C.NPU_JOB_SUCCESS


# ---- blocks, registers, records ----


def test_every_block_runs_with_its_registers():
    rig = Rig("npu-37xx")
    out = rig.alloc(bytes(4096))
    Program(rig, STORE_REGISTERS, out).launch(6)
    words = rig.memory(out)[: 6 * 32].view(np.int64).reshape(6, 4)
    assert words.tolist() == [[block, 6, CMX, SLICE] for block in range(6)]


def test_without_arguments_r1_is_0():
    rig = Rig("npu-37xx")
    text = "bne r1, r0, wrong\nhalt\nwrong:\ntrap 0"
    Program(rig, text).launch()


@pytest.mark.parametrize("profile", ["unit", "npu-37xx", "npu-40xx"])
def test_a_grid_of_1024_blocks_runs_on_all_shaves(profile):
    rig = Rig(profile)
    out = rig.alloc(bytes(1024 * 32))
    records = Program(rig, STORE_REGISTERS.replace("halt", busy(13) + "halt"), out).launch(1024)
    assert rig.memory(out).view(np.int64)[::4].tolist() == list(range(1024))
    profile = rig.device.profile
    assert len(set(records["unit"].tolist())) == profile.tiles * profile.shaves_per_tile


@pytest.mark.parametrize("compute", [True, False])
def test_the_times_of_a_block(compute):
    """At 400 MHz a command costs the core 100 cycles and the choice of a SHAVE 60; the fetch of 128 bytes takes 956 ns and 16
    cycles at 975 MHz; eight scalar instructions take eight of those."""
    rig = Rig("npu-37xx", compute=compute)
    first, *_, last = Program(rig, STORE_REGISTERS, rig.alloc(bytes(4096))).launch(5)
    assert first["picked_ps"] - first["taken_ps"] == 250_000 + 150_000
    assert first["load_ps"] == first["picked_ps"]
    assert 0 <= int(first["start_ps"] - first["load_ps"]) - 956_000 - 16 * 10**6 // 975 < 2 * 1026
    assert int(first["end_ps"] - first["start_ps"]) in range(8205, 8206 + 1026)  # 8 cycles from the next edge on
    assert last["picked_ps"] - first["picked_ps"] == 4 * 150_000
    assert (last["unit"], first["unit"]) == (0, 0)
    assert (
        last["load_ps"] == last["start_ps"] == first["end_ps"]
    )  # it waited for the SHAVE, whose cache has the program
    assert (first["loaded_bytes"], first["cached_bytes"], last["loaded_bytes"], last["cached_bytes"]) == (
        128,
        0,
        0,
        128,
    )


def test_a_launch_without_records_and_the_traces_of_its_blocks():
    rig = Rig("npu-37xx", trace=True)
    program = Program(rig, busy(12) + "halt")
    rig.device.drain_trace()
    job = rig.enqueue(rig.command_buffer([program.command(3, record=False)]))
    rig.run()
    kinds = (C.NPU_TRACE_KERNEL_PICK, C.NPU_TRACE_CODE_LOAD, C.NPU_TRACE_START, C.NPU_TRACE_END)
    records = trace_of(rig, *kinds)
    assert (records["job_id"] == job).all()
    by_kind = {kind: records[records["kind"] == kind] for kind in kinds}
    for found in by_kind.values():
        assert found["task_id"].tolist() == [0, 1, 2]
    assert by_kind[C.NPU_TRACE_KERNEL_PICK]["value"].tolist() == [0, 1, 16]
    assert by_kind[C.NPU_TRACE_KERNEL_PICK]["engine"].tolist() == [C.NPU_ENGINE_CORE] * 3
    for kind in kinds[1:]:
        assert by_kind[kind]["unit"].tolist() == [0, 1, 16]
        assert by_kind[kind]["engine"].tolist() == [C.NPU_ENGINE_SHAVE] * 3
    assert by_kind[C.NPU_TRACE_CODE_LOAD]["value"].tolist() == [128] * 3  # five instructions: two lines


def test_kernels_of_one_buffer_run_one_after_the_other():
    rig = Rig("npu-37xx")
    first, second = Program(rig, busy(14) + "halt"), Program(rig, busy(14) + "halt")
    assert rig.execute(rig.command_buffer([first.command(2), second.command(2)])).job_status == C.NPU_JOB_SUCCESS
    assert second.records(2)["taken_ps"].min() >= first.records(2)["end_ps"].max()


def test_the_same_run_twice_has_the_same_trace():
    def run():
        rig = Rig("npu-37xx", trace=True)
        text = STORE_REGISTERS.replace("halt", busy(10) + "halt")
        enqueue_all(rig, [rig.command_buffer([Program(rig, text, rig.alloc(4096)).command(9)]) for _ in range(3)])
        rig.run()
        return rig.device.drain_trace()

    assert run() == run()


# ---- the choice of a SHAVE ----


def test_eight_launches_in_eight_queues_get_two_blocks_for_each_of_four_shaves():
    rig = Rig("npu-37xx")
    programs = [Program(rig, busy(16) + "halt") for _ in range(8)]
    enqueue_all(rig, [rig.command_buffer([program.command()]) for program in programs])
    rig.run()
    units = [int(program.records()["unit"][0]) for program in programs]
    assert units == [0, 1, 16, 17, 0, 1, 16, 17]


def test_the_least_loaded_shave_is_the_one_whose_block_has_ended():
    rig = Rig("npu-37xx")
    out = rig.alloc(bytes(4096))
    text = "li r6, 2\nbeq r2, r6, done\n" + busy(18) + "done:\nhalt"  # block 2 is short
    long, short = Program(rig, text), Program(rig, STORE_REGISTERS, out)
    (first, _), (second, _) = queues(rig, 2)
    rig.enqueue(rig.command_buffer([long.command(4)]), jobq=first)
    rig.device.run_until(rig.device.now_ps + 20_000_000)
    rig.enqueue(rig.command_buffer([short.command()]), jobq=second, doorbell=2)
    rig.run()
    assert long.records(4)["unit"].tolist() == [0, 1, 16, 17]
    assert short.records()["unit"].tolist() == [16]


def test_of_idle_shaves_the_one_that_has_the_program_is_chosen_then_the_least_used():
    rig = Rig("npu-37xx")
    one, other = Program(rig, busy(4) + "halt"), Program(rig, busy(5) + "halt")
    units = [int(program.launch()["unit"][0]) for program in (one, other, other, one)]
    assert units == [0, 1, 1, 0]


# ---- refusals ----

BAD = [
    {"text_va": 8}, {"text_va": -0x100000}, {"code_bytes": 0}, {"code_bytes": 8}, {"code_bytes": 1 << 13}, {"code_bytes": (1 << 20) + 16},
    {"text_va": 1 << 32}, {"args_va": 4}, {"args_bytes": 0}, {"args_bytes": 4097}, {"args_va": 0x2000_0000},
    {"args_va": None}, {"record_va": 4}, {"record_va": 0x2000_0000}, {"grid": 0}, {"grid": 1025}, {"grid": 200}, {"flags": 2},
    {"flags": 1, "grid": 5},
]  # fmt: skip


@pytest.mark.parametrize("wrong", BAD)
def test_a_wrong_command_is_refused_and_the_device_works_on(wrong):
    """Values are added to what is right, sizes replace it; the records have room for 73 blocks."""
    rig = Rig("npu-37xx")
    program = Program(rig, STORE_REGISTERS, rig.alloc(bytes(8192)))
    fields = program.fields | {"grid": 1, "record_va": rig.alloc(bytes(4096))}
    for name, value in wrong.items():
        fields[name] = 0 if value is None else fields[name] + value if name.endswith("_va") else value
    done = rig.execute(rig.command_buffer([program.command(), kernel(**fields)]))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_KERNEL)
    assert done.error_info == 1  # the command
    check_alive(rig)


def test_records_in_read_only_memory_are_refused():
    rig = Rig("npu-37xx")
    done = Program(rig, "halt").run(record_va=rig.alloc(4096, flags=C.NPU_PTE_RO))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_KERNEL)


def test_records_whose_memory_goes_away_fail_the_job():
    rig = Rig("npu-37xx")
    program = Program(rig, busy(16) + "halt")
    rig.enqueue(rig.command_buffer([program.command(3)]))
    rig.device.run_until(rig.device.now_ps + 10_000_000)
    rig.unmap(SSID, program.record_va)
    rig.run()
    (done,) = rig.done()
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_ADDRESS)
    check_alive(rig)


# ---- isolation ----


def test_a_block_sees_its_own_poisoned_slice_of_cmx_and_no_other():
    """Every block counts the words of its slice that are not poison, at both ends, then writes there."""
    rig = Rig("npu-37xx")
    out = rig.alloc(bytes(4096))
    text = """
        ld.i64 r10, r1, 0
        muli r11, r2, 16
        add r10, r10, r11
        ld.i64 r12, r4, 0
        add r13, r4, r5
        ld.i64 r14, r13, -8
        st.i64 r2, r4, 0
        st.i64 r2, r13, -8
        st.i64 r12, r10, 0
        st.i64 r14, r10, 8
        halt
    """
    Program(rig, text, out).launch(12)
    assert (rig.memory(out)[: 12 * 16] == 0xFF).all()
    assert (rig.memory(out)[12 * 16 :] == 0).all()


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("offset", [SLICE, SLICE - 4, -8, 0x200000])
def test_a_store_outside_the_slice_fails_the_job_with_the_block(offset, compute):
    rig = Rig("npu-37xx", compute=compute)
    text = f"li r6, 2\nbne r2, r6, done\nli r7, {offset}\nadd r7, r7, r4\nst.i64 r2, r7, 0\ndone:\nhalt"
    done = Program(rig, text).run(4)
    assert done.job_status == C.NPU_JOB_CTX_VIOLATION
    assert done.error_detail == CMX + (offset if offset != SLICE - 4 else SLICE)
    assert done.error_info == 2
    check_alive(rig)


def descriptor(src, dst, nbytes):
    fields = {"src": src, "dst": dst, "length": nbytes, "num_planes": 1, "src_width": nbytes, "dst_width": nbytes}
    return pack(new("npu_dma_descriptor", **fields))


def test_dma_operations_go_through_the_slice():
    """Block b copies 64 bytes in, each to the same address of its window, waits, and copies them out."""
    rig = Rig("npu-37xx")
    source = rig.alloc(np.arange(1024, dtype=np.uint16).tobytes())
    out = rig.alloc(bytes(4096))
    table = b"".join(
        descriptor(source + 64 * b, CMX + 4096, 64) + descriptor(CMX + 4096, out + 64 * b, 64) for b in range(8)
    )
    text = f"""
        ld.i64 r10, r1, 0
        muli r11, r2, 160
        add r10, r10, r11
        addi r12, r10, 80
        dmastart r10, 0, 0
        dmawait 0
        {busy(12)}
        dmastart r12, 1, 0
        halt
    """
    Program(rig, text, rig.alloc(table)).launch(8)
    assert rig.memory(out)[:512].view(np.uint16).tolist() == list(range(256))


@pytest.mark.parametrize("address", [CMX + SLICE - 32, CMX + 0x200000])
def test_a_dma_operation_outside_the_slice_is_a_bad_descriptor(address):
    rig = Rig("npu-37xx")
    table = rig.alloc(descriptor(rig.alloc(4096), address, 64))
    done = Program(rig, "ld.i64 r10, r1, 0\ndmastart r10, 0, 0\nhalt", table).run()
    assert done.job_status == C.NPU_JOB_SHAVE_FAULT
    assert done.error_detail == ShaveFaultCode.BAD_DESCRIPTOR << 32 | 16


def test_dpu_operations_of_two_blocks_of_a_tile_do_not_meet():
    """Each block multiplies 16 x 16 matrices at the same addresses of its window on the DPU of its tile."""
    rig = Rig("npu-37xx")
    rng = np.random.default_rng(1)
    act = rng.integers(-3, 4, (4, 16, 16)).astype(np.float16)
    weights = rng.integers(-3, 4, (4, 16, 16)).astype(np.float16)
    acts, wts, out = rig.alloc(act.tobytes()), rig.alloc(weights.tobytes()), rig.alloc(bytes(4096))
    blob = Blob()
    blob.add_matmul(CMX, CMX + 0x1000, CMX + 0x2000, 16, 16, 16)
    invariants, variants = blob.records()[2:4]
    matmul = bytearray(256 + 64)
    for at, array, struct in ((0, invariants, "npu_dpu_invariant"), (256, variants, "npu_dpu_variant")):
        raw = np.zeros(1, dtype(struct, reserved=True))
        for name in array.dtype.names:
            raw[name] = array[name]
        matmul[at : at + raw.nbytes] = raw.tobytes()
    tables = b"".join(
        descriptor(acts + 512 * b, CMX, 512)
        + descriptor(wts + 512 * b, CMX + 0x1000, 512)
        + descriptor(CMX + 0x2000, out + 512 * b, 512)
        for b in range(4)
    )
    text = """
        ld.i64 r10, r1, 0
        ld.i64 r9, r1, 8
        muli r11, r2, 240
        add r10, r10, r11
        addi r11, r10, 80
        addi r12, r10, 160
        dmastart r10, 0, 0
        dmastart r11, 1, 0
        dmawait 0
        dpustart r9, 0
        dpuwait 0
        dmastart r12, 0, 0
        halt
    """
    records = Program(rig, text, rig.alloc(tables), rig.alloc(bytes(matmul))).launch(4)
    assert sorted(records["unit"].tolist()) == [0, 1, 16, 17]
    found = rig.memory(out)[:2048].view(np.float16).reshape(4, 16, 16)
    assert np.array_equal(found, act @ weights.transpose(0, 2, 1))


# ---- failures ----


@pytest.mark.parametrize("compute", [True, False])
def test_a_fault_of_a_block_fails_the_job_and_cancels_the_others(compute):
    rig = Rig("npu-37xx", compute=compute)
    program = Program(rig, trap_in(5))
    done = program.run(40)
    assert done.job_status == C.NPU_JOB_SHAVE_FAULT
    assert done.error_detail >> 32 == ShaveFaultCode.TRAP
    assert done.error_info == 5
    ended = program.records(40)["end_ps"] > 0
    assert ended.sum() < 40
    check_alive(rig)


def test_a_failed_launch_leaves_other_launches_alone():
    rig = Rig("npu-37xx")
    good, bad = Program(rig, busy(14) + "halt"), Program(rig, trap_in(1))
    enqueue_all(rig, [rig.command_buffer([good.command(12)]), rig.command_buffer([bad.command(12)])])
    rig.run()
    assert sorted(done.job_status for done in rig.done()) == [C.NPU_JOB_SUCCESS, C.NPU_JOB_SHAVE_FAULT]
    assert (good.records(12)["end_ps"] > 0).all()
    check_alive(rig)


@pytest.mark.parametrize("after_us", [3, 4, 6, 30, 60])
@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (C.NPU_JSM_UNREGISTER_DB, ("npu_jsm_unregister_db", {"db_idx": 2})),
    ],
)
def test_a_launch_can_be_aborted_at_any_time(after_us, type_, payload):
    """While its command is read, its program is loaded, its blocks run, or wait for SHAVEs that others have."""
    rig = Rig("npu-37xx")
    other = Program(rig, busy(14) + "halt")
    victim = Program(rig, busy(14) + "halt", pad_to=1 << 15)
    (first, _), (second, _) = queues(rig, 2)
    rig.enqueue(rig.command_buffer([other.command(6)]), jobq=first)
    rig.enqueue(rig.command_buffer([victim.command(30)]), jobq=second, doorbell=2)
    rig.device.run_until(rig.device.now_ps + after_us * 1_000_000)
    struct, fields = payload
    assert rig.request(type_, new(struct, **fields)).result == C.NPU_JSM_OK
    status = [done.job_status for done in rig.done()]
    survives = type_ == C.NPU_JSM_UNREGISTER_DB or after_us == 60  # it has ended before
    assert sorted(status) == ([C.NPU_JOB_SUCCESS, C.NPU_JOB_ABORTED] if survives else [C.NPU_JOB_ABORTED] * 2)
    check_alive(rig)


def test_a_reset_in_the_middle_of_a_launch_leaves_a_device_that_boots():
    rig = Rig("npu-37xx", register=False)
    rig.register_db(1, 0x80008000)
    program = Program(rig, busy(14) + "halt", pad_to=1 << 15)
    rig.enqueue(rig.command_buffer([program.command(30)]))
    rig.device.run_until(rig.device.now_ps + 8_000_000)
    rig.bus.write32(C.NPU_REG_IP_RESET, C.NPU_IP_RESET_TRIGGER)
    assert rig.device.next_event_ps() is None
    assert rig.device.idle


def test_a_state_dump_tells_that_a_job_waits_for_its_blocks():
    rig = Rig("npu-37xx")
    dump = rig.alloc(4096, 0, 0x80030000)
    rig.enqueue(rig.command_buffer([Program(rig, busy(18) + "halt").command(2)]))
    rig.device.run_until(rig.device.now_ps + 10_000_000)
    slot = new("npu_ipc_slot")
    slot.hdr.data_size, slot.hdr.channel, slot.hdr.status = 128, C.NPU_IPC_CHAN_GEN_CMD, C.NPU_IPC_ALLOCATED
    slot.msg.type = C.NPU_JSM_STATE_DUMP
    body = pack(new("npu_jsm_state_dump", buffer_va=dump, buffer_bytes=80))
    slot.msg.payload[0 : len(body)] = list(body)
    rig.memory(0x80000000, 0)[:192] = np.frombuffer(pack(slot), np.uint8)
    rig.bus.write32(C.NPU_REG_CPU_IPC_FIFO, 0x80000000)
    rig.run()
    data = rig.memory(dump, 0)
    queue = data[32:80].view(dtype("npu_fw_queue_state"))[0]
    assert (queue["stage"], queue["outstanding_tasks"]) == (C.NPU_STAGE_UNITS, 2)
    assert data[:32].view(dtype("npu_fw_state"))[0]["free_tiles"] == 0b10  # two blocks: both SHAVEs of tile 0


def test_a_program_without_halt_ends_with_bad_pc():
    rig = Rig("npu-37xx")
    done = Program(rig, "nop").run()
    assert (done.job_status, done.error_detail) == (
        C.NPU_JOB_SHAVE_FAULT,
        ShaveFaultCode.BAD_PC << 32 | len(assemble("nop")),
    )
