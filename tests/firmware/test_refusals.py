"""Everything that a command buffer or an inference can have wrong is answered with a status, and the device works on."""

import numpy as np
import pytest
from npu_abi import C, new, sizeof, view
from npu_model.shave_isa import assemble

from tests.device.rig import CMX, SSID, Blob, Rig, infer

TEXT = assemble("nop\nhalt\n")


@pytest.fixture(scope="module")
def rig():
    rig = Rig()
    rig.data = rig.alloc(8192)
    rig.text = rig.alloc(TEXT)
    yield rig
    check_alive(rig)


def good(rig):
    """Return a blob with every kind of task: two copies in, a matmul, a program, a copy out."""
    blob = Blob()
    loaded, done, last = blob.barrier(producers=2), blob.barrier(), blob.barrier()
    blob.add_dma(rig.data, CMX, 1024, posts=[loaded])
    blob.add_dma(rig.data, CMX + 0x1000, 1024, posts=[loaded], port=1)
    blob.add_matmul(CMX, CMX + 0x1000, CMX + 0x2000, 16, 16, 16, waits=[loaded], posts=[done])
    program = blob.add_range(rig.text, len(TEXT))
    blob.add_shave(program, waits=[done], posts=[last])
    blob.add_dma(CMX + 0x2000, rig.data + 4096, 512, waits=[last])
    return blob


def check_alive(rig):
    done = rig.execute(rig.inference(good(rig)))
    assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, done.error_detail, hex(done.error_info))


def refused(rig, buffer_va, error, info=None):
    done = rig.execute(buffer_va)
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, error)
    if info is not None:
        assert done.error_info == info


def test_the_good_blob_is_accepted(rig):
    check_alive(rig)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("api_version", 0x00020000, C.NPU_PARSE_BAD_API_VERSION),
        ("tile_count", 0, C.NPU_PARSE_BAD_COUNT),
        ("tile_count", 9, C.NPU_PARSE_BAD_COUNT),
        ("tile_count", 2, C.NPU_PARSE_BAD_RESOURCES),  # the device has one
        ("barrier_count", 65, C.NPU_PARSE_BAD_COUNT),
        ("barrier_count", 33, C.NPU_PARSE_BAD_RESOURCES),
        ("barrier_count", 2, C.NPU_PARSE_BAD_BARRIER),  # three are used
        ("reserved0", 1, C.NPU_PARSE_RESERVED_NOT_ZERO),
    ],
)
def test_a_wrong_field_of_the_entry_is_refused(rig, field, value, error):
    refused(rig, rig.command_buffer([infer(good(rig).place(rig, **{field: value}))]), error)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda ref: setattr(ref, "va", 0), C.NPU_PARSE_BAD_MAPPED_INFERENCE),
        (lambda ref: setattr(ref, "count", C.NPU_MAX_TASKS + 1), C.NPU_PARSE_BAD_COUNT),
        (lambda ref: setattr(ref, "count", 100_000), C.NPU_PARSE_BAD_ADDRESS),  # runs out of the mapping
        (lambda ref: setattr(ref, "va", 0x12345678), C.NPU_PARSE_BAD_ADDRESS),
        (lambda ref: setattr(ref, "va", ref.va + 4), C.NPU_PARSE_BAD_ADDRESS),
        (lambda ref: setattr(ref, "va", (1 << 64) - 8), C.NPU_PARSE_BAD_ADDRESS),
    ],
)
def test_a_wrong_reference_is_refused_with_its_list(rig, change, error):
    va = good(rig).place(rig)
    entry = view("npu_mapped_inference", rig.memory(va)[:256])
    change(entry.invariants)
    del entry
    refused(rig, rig.command_buffer([infer(va)]), error, info=2 << 32)


CASES = [
    # list, index, field, value, error
    (0, 0, "transaction_length", 0, C.NPU_PARSE_BAD_DMA),
    (0, 0, "transaction_length", 1000, C.NPU_PARSE_BAD_DMA),  # not a multiple of the widths
    (0, 1, "transaction_src_width", 0, C.NPU_PARSE_BAD_DMA),
    (0, 0, "transaction_num_planes", 0, C.NPU_PARSE_BAD_DMA),
    (0, 0, "transaction_cfg", 6, C.NPU_PARSE_BAD_DMA),
    (0, 0, "transaction_dst", CMX + 65536 - 1023, C.NPU_PARSE_BAD_DMA),  # one byte past the workspace
    (0, 0, "transaction_dst", CMX + C.NPU_CMX_TILE_STRIDE, C.NPU_PARSE_BAD_DMA),  # a tile that the job has not
    (0, 0, "transaction_dst", CMX - 512, C.NPU_PARSE_BAD_DMA),  # runs into the window
    (0, 0, "transaction_src", 1 << 63, C.NPU_PARSE_BAD_DMA),
    (1, 0, "barriers_post_mask", 1 << 40, C.NPU_PARSE_BAD_BARRIER),
    (1, 0, "barriers_post_mask", 0, C.NPU_PARSE_BAD_BARRIER),  # a producer is missing
    (1, 0, "sched_start_after", 3, C.NPU_PARSE_BAD_BARRIER),
    (2, 0, "op", 7, C.NPU_PARSE_BAD_DPU),
    (2, 0, "act_dtype", C.NPU_DT_F64, C.NPU_PARSE_BAD_DPU),
    (2, 0, "out_dtype", 200, C.NPU_PARSE_BAD_DPU),
    (2, 0, "ppe_fn", 9, C.NPU_PARSE_BAD_DPU),
    (2, 0, "flags", 4, C.NPU_PARSE_BAD_DPU),
    (2, 0, "flags", C.NPU_DPU_FLAG_WEIGHTS_4BIT, C.NPU_PARSE_BAD_DPU),  # of floating point
    (2, 0, "in_z", 0, C.NPU_PARSE_BAD_DPU),
    (2, 0, "tile", 1, C.NPU_PARSE_BAD_DPU),
    (2, 0, "mpe_grid", 3, C.NPU_PARSE_BAD_DPU),
    (2, 0, "out_tiles", 2, C.NPU_PARSE_BAD_DPU),  # a tile that the job has not
    (2, 0, "out_tiles", 1 << 31, C.NPU_PARSE_BAD_DPU),
    (2, 0, "groups", 3, C.NPU_PARSE_BAD_DPU),
    (2, 0, "act_addr", 0, C.NPU_PARSE_BAD_DPU),
    (2, 0, "out_addr", CMX + 65536 - 511, C.NPU_PARSE_BAD_DPU),
    (2, 0, "act_stride_x", 31, C.NPU_PARSE_BAD_DPU),  # pixels of 32 bytes would overlap
    (2, 0, "out_stride_x", 8, C.NPU_PARSE_BAD_DPU),
    (2, 0, "variant_count", 0, C.NPU_PARSE_BAD_DPU),
    (2, 0, "variant_count", 2, C.NPU_PARSE_BAD_DPU),
    (2, 0, "variant_first", 0xFFFFFFFF, C.NPU_PARSE_BAD_DPU),
    (3, 0, "size_x", 17, C.NPU_PARSE_BAD_DPU),
    (3, 0, "size_z", 0, C.NPU_PARSE_BAD_DPU),
    (3, 0, "start_z", 0xFFFFFFFF, C.NPU_PARSE_BAD_DPU),
    (3, 0, "invariant_index", 1, C.NPU_PARSE_BAD_DPU),
    (4, 0, "code_bytes", 24, C.NPU_PARSE_BAD_SHAVE),
    (4, 0, "text_va", 0x80000008, C.NPU_PARSE_BAD_SHAVE),
    (4, 0, "text_va", 1 << 32, C.NPU_PARSE_BAD_SHAVE),
    (5, 0, "range_index", 1, C.NPU_PARSE_BAD_SHAVE),
    (5, 0, "tile", 1, C.NPU_PARSE_BAD_SHAVE),
    (5, 0, "shave", 2, C.NPU_PARSE_BAD_SHAVE),
    (6, 1, "producer_count", 0, C.NPU_PARSE_BAD_BARRIER),
    (6, 1, "producer_count", 2, C.NPU_PARSE_BAD_BARRIER),
    (6, 1, "consumer_count", 256, C.NPU_PARSE_BAD_BARRIER),
    (6, 1, "consumer_count", 2, C.NPU_PARSE_BAD_BARRIER),
    (6, 1, "real_id", 3, C.NPU_PARSE_BAD_BARRIER),
    (6, 1, "real_id", 0, C.NPU_PARSE_BAD_BARRIER),  # id 0 then has two virtual barriers and no chain
    (6, 0, "next_same_id", 0, C.NPU_PARSE_BAD_BARRIER),
    (6, 0, "next_same_id", 7, C.NPU_PARSE_BAD_BARRIER),
]


@pytest.mark.parametrize(("number", "index", "field", "value", "error"), CASES)
def test_a_wrong_field_of_a_descriptor_is_refused(rig, number, index, field, value, error):
    blob = good(rig)
    records = blob.records()
    records[number][field][index] = value
    blob.records = lambda: records
    done = rig.execute(rig.inference(blob))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, error), hex(done.error_info)


def test_a_window_with_gaps_that_lists_too_many_inputs_is_refused(rig):
    """60,000 outputs under 101 taps apart from each other: more than 2^22 inputs along one axis."""
    blob = Blob()
    blob.add_matmul(
        CMX, CMX + 0x1000, CMX + 0x2000, 1, 1, 1, op=C.NPU_DPU_DWCONV, kernel_x=101, dilation_x=2, in_x=40_000, out_x=60_000,
        act_stride_x=1, out_stride_x=1, act_dtype=C.NPU_DT_I8, wt_dtype=C.NPU_DT_I8, out_dtype=C.NPU_DT_I8,
    )  # fmt: skip
    blob.invariants[0]["out_addr"] = CMX
    blob.variants[0] |= {"size_x": 60_000, "pad_left": 20_200, "pad_right": 0}
    refused(rig, rig.inference(blob), C.NPU_PARSE_BAD_DPU, info=3 << 32)
    blob.variants[0]["size_x"] = 40_000
    assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS


def test_a_hostile_stride_does_not_wrap_around(rig):
    blob = good(rig)
    blob.dma[0][0] |= {
        "transaction_length": 0xFFFFFFFF, "transaction_src_width": 1, "transaction_dst_width": 1,
        "transaction_num_planes": 0xFFFFFFFF, "transaction_src_stride": 0x7FFFFFFF,
        "transaction_src_plane_stride": 0x7FFFFFFF,
    }  # fmt: skip
    refused(rig, rig.inference(blob), C.NPU_PARSE_BAD_DMA, info=0)


def command(kind, struct="npu_cmd_header", size=None, **fields):
    found = new(struct, **fields)
    head = found if struct == "npu_cmd_header" else found.h
    head.type, head.size = kind, sizeof(struct) if size is None else size
    return found


@pytest.mark.parametrize(
    ("commands", "error", "index"),
    [
        ([command(2)], C.NPU_PARSE_BAD_COMMAND, 0),
        ([command(C.NPU_CMD_NOP), command(C.NPU_CMD_NOP, size=0)], C.NPU_PARSE_BAD_COMMAND, 1),
        ([command(C.NPU_CMD_NOP, size=4)], C.NPU_PARSE_BAD_COMMAND, 0),
        ([command(C.NPU_CMD_NOP, size=16)], C.NPU_PARSE_BAD_COMMAND, 0),
        ([command(C.NPU_CMD_NOP, reserved=1)], C.NPU_PARSE_RESERVED_NOT_ZERO, 0),
        ([command(C.NPU_CMD_FENCE_SIGNAL, "npu_cmd_fence")], C.NPU_PARSE_BAD_COMMAND, 0),  # no heap
        ([command(C.NPU_CMD_TIMESTAMP, "npu_cmd_timestamp", va=64)], C.NPU_PARSE_BAD_ADDRESS, 0),
        ([command(C.NPU_CMD_MEMORY_FILL, "npu_cmd_fill", size=6, start_va=64)], C.NPU_PARSE_BAD_COMMAND, 0),
        ([command(C.NPU_CMD_INFERENCE_EXECUTE, "npu_cmd_inference")], C.NPU_PARSE_BAD_ADDRESS, 0),
    ],
)
def test_a_wrong_command_is_refused_with_its_index(rig, commands, error, index):
    refused(rig, rig.command_buffer(commands), error, index)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cmd_offset": 0}, C.NPU_PARSE_BAD_COMMAND_BUFFER),
        ({"cmd_offset": 68}, C.NPU_PARSE_BAD_COMMAND_BUFFER),
        ({"cmd_buffer_size": 32}, C.NPU_PARSE_BAD_COMMAND_BUFFER),
        ({"cmd_buffer_size": 0xFFFFFFFF}, C.NPU_PARSE_BAD_COMMAND_BUFFER),
        ({"cmd_buffer_size": 8192}, C.NPU_PARSE_BAD_ADDRESS),
        ({"api_version": 1}, C.NPU_PARSE_BAD_API_VERSION),
        ({"reserved0": 1}, C.NPU_PARSE_RESERVED_NOT_ZERO),
    ],
)
def test_a_wrong_header_is_refused(rig, fields, error):
    refused(rig, rig.command_buffer([command(C.NPU_CMD_NOP)], **fields), error)


def test_an_unmapped_command_buffer_is_refused(rig):
    refused(rig, 0x7000000, C.NPU_PARSE_BAD_ADDRESS)


def test_an_unmapped_operand_is_a_context_violation_with_its_address_and_an_mmu_event(rig):
    blob = good(rig)
    blob.dma[0][0]["transaction_src"] = 0x1_2345_6000
    done = rig.execute(rig.inference(blob))
    assert (done.job_status, done.error_detail, done.error_info) == (C.NPU_JOB_CTX_VIOLATION, 0x1_2345_6000, 0)
    assert rig.bus.read32(C.NPU_REG_MMU_EVT_COUNT) == 1
    assert rig.bus.read32(C.NPU_REG_MMU_EVT_SSID) == SSID
    assert rig.bus.read32(C.NPU_REG_MMU_EVT_INFO) == C.NPU_ENGINE_DMA << 8
    rig.bus.write32(C.NPU_REG_MMU_EVT_POP, 1)
    check_alive(rig)


def test_an_unreachable_wait_is_a_deadlock_with_the_barriers_id(rig):
    blob = Blob()
    first, second = blob.barrier(), blob.barrier()
    blob.add_dma(rig.data, CMX, 64, waits=[second], posts=[first])
    blob.add_dma(rig.data, CMX, 64, waits=[first], posts=[second], port=1)
    done = rig.execute(rig.inference(blob))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_DEADLOCK, 0)
    check_alive(rig)


def test_a_start_after_that_never_comes_is_a_deadlock(rig):
    blob = Blob()
    first = blob.barrier(producers=1, consumers=0)
    blob.add_dma(rig.data, CMX, 64, posts=[first], start_after=0)
    done = rig.execute(rig.inference(blob))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_DEADLOCK, 0)
    check_alive(rig)


def test_an_illegal_instruction_is_a_shave_fault_with_its_pc(rig):
    text = assemble("nop\nnop\n") + b"\xee" * 16
    blob = Blob()
    blob.add_shave(blob.add_range(rig.alloc(text), len(text)))
    done = rig.execute(rig.inference(blob))
    assert done.job_status == C.NPU_JOB_SHAVE_FAULT
    check_alive(rig)


def flip(data, rng, count):
    data = bytearray(data)
    for _ in range(count):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


@pytest.mark.parametrize("seed", range(6))
def test_flipped_bits_never_crash_hang_or_leave_the_mappings(rig, seed):
    rng = np.random.default_rng(seed)
    blob = good(rig)
    va = blob.place(rig)
    entry = view("npu_mapped_inference", rig.memory(va)[:256].copy())
    places = [(va, 256)] + [
        (ref.va, size)
        for ref, size in (
            (entry.dma_tasks[0], 256), (entry.dma_tasks[1], 128), (entry.invariants, 256), (entry.variants, 64),
            (entry.shave_ranges, 16), (entry.shave_invocations, 64), (entry.barrier_configs, 36),
        )
    ]  # fmt: skip
    buffer = rig.command_buffer([infer(va)])
    places.append((buffer, 88))
    for _ in range(30):
        at, size = places[int(rng.integers(len(places)))]
        memory = rig.memory(at)
        before = bytes(memory[:size])
        memory[:size] = np.frombuffer(flip(before, rng, int(rng.integers(1, 4))), np.uint8)
        done = rig.execute(buffer)
        assert done.job_status in (
            C.NPU_JOB_SUCCESS, C.NPU_JOB_PARSING_ERR, C.NPU_JOB_CTX_VIOLATION, C.NPU_JOB_DEADLOCK, C.NPU_JOB_SHAVE_FAULT,
            C.NPU_JOB_BARRIER_UNDERFLOW, C.NPU_JOB_PROCESSING_ERR,
        )  # fmt: skip
        memory[:size] = np.frombuffer(before, np.uint8)
        while rig.bus.read32(C.NPU_REG_MMU_EVT_COUNT):
            rig.bus.write32(C.NPU_REG_MMU_EVT_POP, 1)
    assert rig.execute(buffer).job_status == C.NPU_JOB_SUCCESS
