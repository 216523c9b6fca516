"""Static verification: a good blob has no problems; each broken rule is found and named with its entry."""

import pytest
from npu_abi import C
from npu_model.profile import load_profile

from libnpu.blob import Relocation, verify

CMX = C.NPU_CMX_BASE


def found(image):
    return [(p.rule, p.where) for p in verify(image)]


def test_a_good_blob_has_no_problems(image):
    assert verify(image) == []


@pytest.mark.parametrize(
    ("section", "entry", "field", "value", "problem"),
    [
        (".npu.barriers", 0, "real_id", 2, ("barrier-id", ".npu.barriers[0]")),
        (".npu.barriers", 0, "next_same_id", C.NPU_BARRIER_NONE, ("barrier-chain", ".npu.barriers[0]")),
        (".npu.barriers", 2, "next_same_id", 3, ("barrier-chain", ".npu.barriers[2]")),
        (".npu.barriers", 3, "producer_count", 0, ("barrier-count", ".npu.barriers[3]")),
        (".npu.barriers", 0, "producer_count", 3, ("barrier-count", ".npu.barriers id 0")),
        (".npu.barriers", 1, "consumer_count", 2, ("barrier-count", ".npu.barriers id 1")),
        (".npu.tasks.dma0", 0, "barriers_post_mask", 4, ("barrier-id", ".npu.tasks.dma0[0]")),
        (".npu.tasks.dma0", 0, "barriers_post_mask", 0, ("barrier-count", ".npu.barriers id 0")),
        (".npu.tasks.dma0", 1, "sched_start_after", 4, ("barrier-id", ".npu.tasks.dma0[1]")),
        (".npu.tasks.dma0", 0, "transaction_src_width", 48, ("dma-shape", ".npu.tasks.dma0[0]")),
        (".npu.tasks.dma0", 0, "transaction_length", 0, ("dma-shape", ".npu.tasks.dma0[0]")),
        (".npu.tasks.dma0", 0, "transaction_dst", CMX + 1000, ("range", ".npu.tasks.dma0[0]")),
        (".npu.tasks.dma0", 0, "transaction_dst", CMX - 1, ("range", ".npu.tasks.dma0[0]")),
        (".npu.tasks.dma0", 0, "transaction_dst", CMX + C.NPU_CMX_TILE_STRIDE, ("range", ".npu.tasks.dma0[0]")),
        (".npu.tasks.dma0", 0, "transaction_num_planes", 2, None),
        (".npu.tasks.dma0", 0, "transaction_src", 1, ("relocation", ".npu.tasks.dma0[0]")),
        (".npu.tasks.dpu_invariant", 0, "variant_count", 2, ("variants", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.dpu_invariant", 0, "variant_first", 1, ("variants", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.dpu_invariant", 0, "tile", 1, ("tile", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.dpu_invariant", 0, "out_addr", CMX + 1000, ("range", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.dpu_invariant", 0, "out_tiles", 1 << 7, ("range", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.dpu_invariant", 0, "op", 99, ("dpu-shape", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.dpu_invariant", 0, "out_x", 1 << 31, ("dpu-shape", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.dpu_invariant", 0, "act_stride_x", 0, ("dpu-shape", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.dpu_variant", 0, "invariant_index", 1, ("variants", ".npu.tasks.dpu_invariant[0]")),
        (".npu.tasks.shave_range", 0, "code_bytes", 48, ("range", ".npu.tasks.shave_range[0]")),
        (".npu.tasks.shave_range", 0, "code_bytes", 0, ("range", ".npu.tasks.shave_range[0]")),
        (".npu.tasks.shave_invocation", 0, "range_index", 1, ("shave-range", ".npu.tasks.shave_invocation[0]")),
        (".npu.tasks.shave_invocation", 0, "shave", 2, ("tile", ".npu.tasks.shave_invocation[0]")),
        (".npu.tasks.shave_invocation", 0, "args_bytes", 17, ("range", ".npu.tasks.shave_invocation[0]")),
    ],
)  # fmt: skip
def test_a_broken_field_is_found(image, section, entry, field, value, problem):
    image.tasks[section][field][entry] = value
    problems = found(image)
    assert problem in problems if problem else problems == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"profile": "no-such"}, ("profile", ".npu.platform")),
        ({"tile_count": 9}, ("resources", ".npu.platform")),
        ({"cmx_bytes": 1 << 24}, ("resources", ".npu.platform")),
        ({"cmx_bytes": 512}, ("range", ".npu.tasks.dma0[1]")),
        ({"barrier_count": 65}, ("resources", ".npu.platform")),
        ({"text": b"\xff" * 32}, ("shave-code", ".npu.tasks.shave_range[0]")),
    ],
)
def test_a_broken_header_is_found(image, change, problem):
    for field, value in change.items():
        setattr(image, field, value)
    assert problem in found(image)


@pytest.mark.parametrize(
    ("index", "relocation", "problem"),
    [
        (0, Relocation(".npu.tasks.dma0", 0, "in:x", 1), ("range", ".npu.tasks.dma0[0]")),
        (0, Relocation(".npu.tasks.dma0", 0, "in:x", -1), ("range", ".npu.tasks.dma0[0]")),
        (0, Relocation(".npu.tasks.dma0", 0, "in:x", 0, 4), ("relocation", ".npu.tasks.dma0[0]")),
        (0, Relocation(".npu.tasks.dma0", 0, ".text.shave", 0), ("range", ".npu.tasks.dma0[0]")),
        (1, Relocation(".npu.tasks.dma0", 136, ".data.weights", 0), ("range", ".npu.tasks.dma0[1]")),
        (0, Relocation(".npu.tasks.dma0", 16, "in:x", 0, 4), ("relocation", ".npu.tasks.dma0+0x10")),
        (3, Relocation(".npu.tasks.shave_range", 0, ".text.shave", 16), ("range", ".npu.tasks.shave_range[0]")),
        (3, Relocation(".npu.tasks.shave_range", 0, ".data.weights", 0), ("relocation", ".npu.tasks.shave_range[0]")),
        (4, Relocation(".npu.tasks.shave_invocation", 4, ".bss.scratch", 0, 4), ("relocation", ".npu.tasks.shave_invocation[0]")),
    ],
)  # fmt: skip
def test_a_broken_relocation_is_found(image, index, relocation, problem):
    image.relocations[index] = relocation
    assert problem in found(image)


def test_an_unreachable_wait_is_a_deadlock_with_the_barrier(image):
    """The DPU waits for id 1 and posts id 0: counts agree, but nobody can post first."""
    invariant, shave = image.tasks[".npu.tasks.dpu_invariant"], image.tasks[".npu.tasks.shave_invocation"]
    invariant["barriers_wait_mask"], invariant["barriers_post_mask"] = 2, 2
    shave["barriers_wait_mask"], shave["barriers_post_mask"] = 1, 1
    text = [str(p) for p in verify(image)]
    assert (
        ".npu.tasks.dpu_invariant[0]: waits for ever for virtual barrier 1 on id 1: 1 of its producers never run (deadlock)"
        in text
    )


def test_a_start_after_of_its_own_barrier_never_starts(image):
    image.tasks[".npu.tasks.dma0"]["sched_start_after"][1] = 2
    assert [str(p) for p in verify(image)] == [
        ".npu.tasks.dma0[1]: never starts: start_after is 2, but virtual barrier 2 does not retire (deadlock)"
    ]


@pytest.mark.parametrize(
    ("section", "entry", "given", "message"),
    [
        (".npu.tasks.dma0", 1, 0, "start_after is 0; expected at least 1, which is before virtual barrier 3 on id 1"),
        (".npu.tasks.dma0", 1, C.NPU_BARRIER_NONE, "start_after is none; expected at least 0, which is before virtual barrier 2 on id 0"),
        (".npu.tasks.shave_invocation", 0, C.NPU_BARRIER_NONE, "start_after is none; expected at least 0"),
    ],
)  # fmt: skip
def test_start_after_must_imply_that_the_barriers_are_loaded(image, section, entry, given, message):
    image.tasks[section]["sched_start_after"][entry] = given
    assert any(p.rule == "start-after" and message in p.message for p in verify(image))


def test_a_list_whose_head_is_blocked_blocks_what_is_behind_it(image, build_records, build_dma):
    """DMA task 0 may start once barrier 0 has retired, but its only producer comes after it in the same list."""
    blocked = build_dma(src=CMX, wait=0, post=0, start_after=0)
    producer = build_dma(src=CMX, post=1)
    image.tasks = {
        ".npu.tasks.dma0": build_records(
            ".npu.tasks.dma0", {**blocked, "transaction_dst": CMX + 64}, {**producer, "transaction_dst": CMX + 64}
        ),
        ".npu.barriers": build_records(
            ".npu.barriers",
            {"next_same_id": C.NPU_BARRIER_NONE, "producer_count": 1, "consumer_count": 0, "real_id": 0},
        ),
    }
    image.relocations = []
    assert [str(p) for p in verify(image)] == [
        ".npu.tasks.dma0[0]: never starts: start_after is 0, but virtual barrier 0 does not retire (deadlock)"
    ]
    image.tasks[".npu.tasks.dma0"] = image.tasks[".npu.tasks.dma0"][::-1].copy()
    assert verify(image) == []


@pytest.mark.parametrize(("waiting", "problems"), [(4, []), (5, ["deadlock"])])
def test_a_full_fifo_blocks_the_list(image, build_records, build_dma, waiting, problems):
    """One SHAVE list feeds all SHAVEs: when the FIFO of one is full of waiting tasks, the producer behind them never enters."""
    assert load_profile("npu-37xx").core.fifo_depth == 4
    start = {"sched_start_after": C.NPU_BARRIER_NONE}
    rows = [{"shave": 0, "barriers_wait_mask": 1, **start}] * waiting + [{"shave": 1, "barriers_post_mask": 1, **start}]
    image.tasks = {
        ".npu.tasks.shave_range": image.tasks[".npu.tasks.shave_range"],
        ".npu.tasks.shave_invocation": build_records(".npu.tasks.shave_invocation", *rows),
        ".npu.barriers": build_records(
            ".npu.barriers",
            {"next_same_id": C.NPU_BARRIER_NONE, "producer_count": 1, "consumer_count": waiting, "real_id": 0},
        ),
    }
    image.relocations = [Relocation(".npu.tasks.shave_range", 0, ".text.shave", 0)]
    assert [p.rule for p in verify(image)][:1] == problems
