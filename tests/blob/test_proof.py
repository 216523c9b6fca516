"""The proof of a blob: every kind of order counts, what is not ordered is named with the edge that is missing, and so is what else is wrong."""

from types import SimpleNamespace

import pytest
from npu_abi import C
from npu_model import shave_isa
from npu_model.footprint import box

from libnpu.blob import Relocation, prove, verify
from libnpu.blob.order import Order
from libnpu.blob.shadow import Entry, Shadow

CMX = C.NPU_CMX_BASE
NONE = C.NPU_BARRIER_NONE
ADD = f"""
    li r2, {CMX + 256}
    li r3, {CMX + 512}
    li r4, 1
    li r5, 32
    li r6, 2
    setvl r4, r5
    vld.f16 v0, r2, r0, r6, 0
    li r7, {CMX + 64}
    vld.f16 v1, r7, r0, r6, 0
    vadd.f16 v0, v0, v1
    vst.f16 v0, r3, r0, r6, 0
    halt
"""


@pytest.fixture
def image(make):
    """The complete image, whose SHAVE task adds what DMA 1 has loaded to what the DPU writes, for the store."""
    made = make()
    made.text = shave_isa.assemble(ADD)
    made.tasks[".npu.tasks.shave_range"]["code_bytes"] = len(made.text)
    return made


def found(image):
    return [(p.rule, p.where, p.other) for p in prove(image)]


def races(image):
    return [(p.where, p.other) for p in prove(image) if p.rule == "missing-barrier"]


def test_a_blob_with_all_its_waits_is_proved(image):
    assert prove(image) == []


def test_read_after_write_without_the_wait(image):
    """The DPU reads what both ports load; without its wait nothing orders them."""
    image.tasks[".npu.tasks.dpu_invariant"]["barriers_wait_mask"] = 0
    image.tasks[".npu.barriers"]["consumer_count"][0] = 0
    assert verify(image) == []
    problems = [p for p in prove(image) if p.rule == "missing-barrier"]
    assert [(p.where, p.other, p.place, p.first, p.past) for p in problems] == [
        (".npu.tasks.dpu_invariant[0]", ".npu.tasks.dma0[0]", "CMX of tile 0", CMX, CMX + 64)
    ]
    assert problems[0].kind == "missing barrier"
    assert str(problems[0]) == (
        ".npu.tasks.dpu_invariant[0]: nothing orders it after .npu.tasks.dma0[0] (load é); it reads and the other writes "
        "0x2e000000 to 0x2e000040 of CMX of tile 0; let it wait for virtual barrier 0 (id 0), which the other posts (missing-barrier)"
    )


def test_write_after_write_on_two_ports(image):
    image.tasks[".npu.tasks.dma1"]["transaction_dst"] = CMX + 63
    assert races(image) == [(".npu.tasks.dma1[0]", ".npu.tasks.dma0[0]")]
    (problem,) = (p for p in prove(image) if p.rule == "missing-barrier")
    assert (problem.first, problem.past) == (CMX + 63, CMX + 64)
    assert "both write 0x2e00003f to 0x2e000040" in problem.message
    image.tasks[".npu.tasks.dma1"]["transaction_dst"] = CMX + 64
    assert races(image) == []


def test_barriers_order_in_several_steps(image):
    """The store waits for the SHAVE, which waits for the DPU: it may overwrite what the DPU read."""
    image.relocations[1] = Relocation(".npu.tasks.dma0", 128, ".data.weights", 0)
    store = image.tasks[".npu.tasks.dma0"]
    store["transaction_src"][1], store["transaction_dst"][1] = 0, CMX
    assert races(image) == []


def test_the_queue_of_an_engine_orders(image, build_records, build_dma):
    """Two stores to one place on one port are ordered; on two ports they are not."""
    one = [build_dma(src=CMX, dst=CMX + 64), build_dma(src=CMX + 256, dst=CMX + 64)]
    image.relocations = []
    image.tasks = {".npu.tasks.dma0": build_records(".npu.tasks.dma0", *one)}
    assert races(image) == []
    image.tasks = {f".npu.tasks.dma{i}": build_records(f".npu.tasks.dma{i}", one[i]) for i in (0, 1)}
    assert races(image) == [(".npu.tasks.dma1[0]", ".npu.tasks.dma0[0]")]


@pytest.mark.parametrize(("start_after", "count"), [(NONE, 1), (0, 0)])
def test_start_after_orders_after_the_producers(image, build_records, build_dma, start_after, count):
    image.relocations = []
    image.tasks = {
        ".npu.tasks.dma0": build_records(".npu.tasks.dma0", build_dma(src=CMX, dst=CMX + 64, post=1)),
        ".npu.tasks.dma1": build_records(
            ".npu.tasks.dma1", build_dma(src=CMX + 64, dst=CMX + 128, start_after=start_after)
        ),
        ".npu.barriers": build_records(
            ".npu.barriers", {"next_same_id": NONE, "producer_count": 1, "consumer_count": 0}
        ),
    }
    assert len(races(image)) == count


@pytest.mark.parametrize(("rest", "count"), [(0, 1), (1, 0)])
def test_a_barrier_that_has_retired_tells_that_its_consumers_have_started(image, build_records, build_dma, rest, count):
    """Port 1 starts a task after barrier 0 has retired: the DPU, which waits for it, has begun, so what came before on the DPU is over."""
    invariant = image.tasks[".npu.tasks.dpu_invariant"]
    both = build_records(
        ".npu.tasks.dpu_invariant", *[dict(zip(invariant.dtype.names, invariant[0].tolist(), strict=True))] * 2
    )
    both["barriers_wait_mask"], both["barriers_post_mask"], both["variant_first"] = (1 - rest, rest), 0, (0, 1)
    both["act_addr"], both["out_addr"] = (CMX, CMX + 256), (CMX + 128, CMX + 320)
    variants = build_records(".npu.tasks.dpu_variant", *[{"size_x": 2, "size_y": 1, "size_z": 16}] * 2)
    variants["invariant_index"] = 0, 1
    image.relocations = [Relocation(".npu.tasks.dma0", 0, ".data.weights", 0)]
    image.tasks = {
        ".npu.tasks.dma0": build_records(".npu.tasks.dma0", build_dma(dst=CMX + 512, post=1)),
        ".npu.tasks.dma1": build_records(".npu.tasks.dma1", build_dma(src=CMX + 512, dst=CMX, start_after=0)),
        ".npu.tasks.dpu_invariant": both,
        ".npu.tasks.dpu_variant": variants,
        ".npu.barriers": build_records(
            ".npu.barriers", {"next_same_id": NONE, "producer_count": 1, "consumer_count": 1}
        ),
    }
    assert races(image) == [(".npu.tasks.dma1[0]", ".npu.tasks.dpu_invariant[0]")] * count


@pytest.mark.parametrize(("address", "count"), [(0, 1), (64, 0)])
def test_ddr_conflicts_are_within_one_symbol(image, build_records, build_dma, address, count):
    image.tasks = {
        ".npu.tasks.dma0": build_records(".npu.tasks.dma0", build_dma(src=CMX)),
        ".npu.tasks.dma1": build_records(".npu.tasks.dma1", build_dma(dst=CMX + 64)),
    }
    image.relocations = [
        Relocation(".npu.tasks.dma0", 8, ".bss.scratch", 0),
        Relocation(".npu.tasks.dma1", 0, ".bss.scratch", address),
    ]
    assert len(races(image)) == count
    image.relocations[1] = Relocation(".npu.tasks.dma1", 0, ".data.weights", 0)
    assert races(image) == []


def test_each_tile_has_bytes_of_its_own(image, build_records, build_dma):
    image.tile_count, image.relocations = 2, []
    far = CMX + C.NPU_CMX_TILE_STRIDE
    for other, count in ((far, 0), (CMX, 1)):
        image.tasks = {
            ".npu.tasks.dma0": build_records(".npu.tasks.dma0", build_dma(src=CMX + 512, dst=CMX)),
            ".npu.tasks.dma1": build_records(".npu.tasks.dma1", build_dma(src=far + 512, dst=other)),
        }
        assert len(races(image)) == count


def shave_only(image, build_records, program, arguments, *dma1):
    """Let a program with arguments be all that there is, beside tasks of DMA 1."""
    image.text = shave_isa.assemble(program)
    image.shave_args = bytes(8) + arguments.to_bytes(8, "little")
    image.tasks = {
        ".npu.tasks.dma1": build_records(".npu.tasks.dma1", *dma1),
        ".npu.tasks.shave_range": build_records(".npu.tasks.shave_range", {"code_bytes": len(image.text)}),
        ".npu.tasks.shave_invocation": build_records(
            ".npu.tasks.shave_invocation", {"args_bytes": 16, "sched_start_after": NONE}
        ),
    }
    image.relocations = [
        *(Relocation(".npu.tasks.dma1", 0, ".data.weights", 0) for _ in dma1),
        Relocation(".npu.tasks.shave_range", 0, ".text.shave", 0),
        Relocation(".npu.tasks.shave_invocation", 4, ".data.shave_args", 0, 4),
    ]


@pytest.mark.parametrize(("source", "count"), [(0, 1), (64, 0)])
def test_a_shave_program_is_run_for_its_accesses(image, build_records, build_dma, source, count):
    """The program loads 4 bytes at `source` from the address in its arguments: what DMA 1 writes, or what nobody writes."""
    program = f"ld.i64 r2, r1, 8\nvld.f32 v0, r2, r0, r0, {source}\nhalt\n"
    shave_only(image, build_records, program, CMX, build_dma(dst=CMX))
    assert races(image) == [(".npu.tasks.shave_invocation[0]", ".npu.tasks.dma1[0]")] * count


@pytest.mark.parametrize(
    ("instruction", "address", "message"),
    [
        ("vld.f32 v0, r2, r0, r0, 0", CMX + 1024, "reads 0x2e000400 to 0x2e000404 of memory"),
        ("vld.f32 v0, r2, r0, r0, 0", CMX + C.NPU_CMX_TILE_STRIDE, "reads 0x2e200000 to 0x2e200004 of memory"),
        ("vld.f32 v0, r2, r0, r0, 1022", CMX, "reads 0x2e0003fe to 0x2e000402 of memory"),
    ],
)
def test_a_shave_program_stays_within_the_cmx_of_the_job(image, build_records, instruction, address, message):
    shave_only(image, build_records, f"ld.i64 r2, r1, 8\n{instruction}\nhalt\n", address)
    problems = [p for p in prove(image) if p.rule == "range"]
    assert [(p.where, p.kind) for p in problems] == [(".npu.tasks.shave_invocation[0]", "out-of-tile access")]
    assert problems[0].message.startswith(message)


def test_a_shave_program_does_not_write_constants(image, build_records):
    program = "ld.i64 r2, r1, 8\nvsplat.i32.s v0, r0\nvst.i32 v0, r2, r0, r0, 0\nhalt\n"
    shave_only(image, build_records, program, 0)
    image.relocations.append(Relocation(".data.shave_args", 8, ".data.weights", 64))
    (problem,) = (p for p in prove(image) if p.rule == "range")
    assert (problem.place, problem.first, problem.past) == (".data.weights", 64, 68)


def test_a_program_whose_accesses_cannot_be_told_is_a_problem(image):
    image.text = shave_isa.assemble("ld.i64 r2, r1, 4096\nhalt\n")
    image.tasks[".npu.tasks.shave_range"]["code_bytes"] = len(image.text)
    assert [str(p) for p in prove(image) if p.rule == "unknown-access"] == [
        ".npu.tasks.shave_invocation[0]: its accesses cannot be told: "
        "a SHAVE program reads 8 bytes at 0x80001000, outside its arguments (unknown-access)"
    ]


def test_bytes_that_nobody_has_written_are_not_read(image):
    """The store begins 32 bytes late: its second half reads what the SHAVE does not write, and the output is whole."""
    image.tasks[".npu.tasks.dma0"]["transaction_src"][1] = CMX + 544
    (problem,) = prove(image)
    assert str(problem) == (
        ".npu.tasks.dma0[1]: reads 0x2e000240 to 0x2e000260 of CMX of tile 0, which no task before it has written (read-before-write)"
    )


def test_every_output_is_written_as_a_whole(image):
    store = image.tasks[".npu.tasks.dma0"][1:]
    for field in ("length", "src_width", "dst_width"):
        store[f"transaction_{field}"] = 48
    assert [str(p) for p in prove(image)] == ["out:y:0: no task writes 0x30 to 0x40 (output-unwritten)"]


def test_results_that_nobody_reads_are_named(image):
    image.tasks[".npu.tasks.dpu_invariant"]["out_addr"] = CMX + 768
    assert [p[:2] for p in found(image)] == [
        ("lost-write", ".npu.tasks.dpu_invariant[0]"),
        ("read-before-write", ".npu.tasks.shave_invocation[0]"),
    ]


def test_a_load_that_is_given_up_may_be_repeated(image, build_records, build_dma):
    """DMA 1 loads twice before anybody reads: the first load was for nothing, which is slow and not wrong."""
    image.tasks[".npu.tasks.dma1"] = build_records(
        ".npu.tasks.dma1", build_dma(dst=CMX + 128), build_dma(dst=CMX + 64, post=1)
    )
    image.relocations[2:3] = [Relocation(".npu.tasks.dma1", offset, ".data.weights", 32) for offset in (0, 128)]
    assert prove(image) == []
    image.relocations[2] = Relocation(".npu.tasks.dma1", 0, ".data.weights", 0)
    assert found(image) == [("lost-write", ".npu.tasks.dma1[0]", "")]


def map_of(*stays):
    return [[name, CMX + at, size, first, last] for name, at, size, first, last in stays]


STAYS = (("x", 0, 64, 0, 2), ("w", 64, 64, 1, 3), ("a", 256, 64, 2, 3), ("b", 512, 64, 3, 4))


def test_a_map_of_cmx_is_held_against_what_the_tasks_touch(image):
    image.debug["cmx"] = map_of(*STAYS)
    assert prove(image) == []
    image.debug["cmx"] = map_of(STAYS[0], STAYS[1], ("a", 256, 32, 2, 3), STAYS[3])
    assert [p[:2] for p in found(image)][:2] == [
        ("cmx-map", ".npu.tasks.dpu_invariant[0]"),
        ("cmx-map", ".npu.tasks.shave_invocation[0]"),
    ]
    image.debug["cmx"] = map_of(*STAYS[:3], ("b", 512, 64, 3, 5))
    assert found(image) == [("cmx-map", ".npu.debug", "")]


def test_a_buffer_does_not_lose_its_bytes_to_another(image, build_records, build_dma):
    """Between DPU and SHAVE port 1 loads over the DPU's result: all is ordered, and the map tells that it is wrong."""
    image.tasks[".npu.tasks.dma1"] = build_records(
        ".npu.tasks.dma1", build_dma(dst=CMX + 64, post=1, task_id=1), build_dma(dst=CMX + 272, length=16, task_id=5)
    )
    load = image.tasks[".npu.tasks.dma1"][1:]
    load["barriers_wait_mask"], load["barriers_post_mask"] = 2, 1
    image.tasks[".npu.barriers"]["consumer_count"][1] = 1
    image.tasks[".npu.tasks.shave_invocation"]["barriers_wait_mask"] = 1
    image.tasks[".npu.tasks.shave_invocation"]["barriers_post_mask"] = 2
    image.tasks[".npu.tasks.shave_invocation"]["sched_start_after"] = 1
    image.tasks[".npu.tasks.dma0"]["barriers_wait_mask"][1] = 2
    image.tasks[".npu.tasks.dma0"]["barriers_post_mask"][1] = 0
    image.tasks[".npu.tasks.dma0"]["sched_start_after"][1] = 1
    load["sched_start_after"] = 0
    image.tasks[".npu.barriers"]["consumer_count"][3] = 1
    image.relocations.append(Relocation(".npu.tasks.dma1", 128, ".data.weights", 0))
    assert verify(image) == []
    assert prove(image) == []
    image.debug["cmx"] = map_of(*STAYS, ("c", 272, 16, 5, 5))
    (problem,) = prove(image)
    assert (problem.rule, problem.where, problem.other) == (
        "cmx-overlap",
        ".npu.tasks.shave_invocation[0]",
        ".npu.tasks.dma1[1]",
    )
    assert (problem.first, problem.past) == (CMX + 272, CMX + 288)


def test_a_blob_with_broken_rules_has_these_alone(image):
    image.tasks[".npu.barriers"]["producer_count"][0] = 3
    assert prove(image) == verify(image) != []


def test_constants_are_not_loaded_for_nobody(image):
    """The buffer is of 128 bytes, and the SHAVE reads the first half."""
    load = image.tasks[".npu.tasks.dma1"]
    for field in ("length", "src_width", "dst_width"):
        load[f"transaction_{field}"] = 128
    image.weights = bytes(200)
    image.debug["cmx"] = map_of(STAYS[0], ("w", 64, 128, 1, 3), *STAYS[2:])
    assert [(p.rule, p.where, p.first, p.past) for p in prove(image)] == [
        ("unread-load", ".npu.tasks.dma1[0]", CMX + 128, CMX + 192)
    ]
    assert prove(image, faults_only=True) == []


def test_a_copy_of_what_nobody_has_written_is_not_written(image, build_records, build_dma):
    """DMA 1 copies within CMX before the SHAVE reads the copy: the SHAVE is named, not the copy."""
    image.tasks[".npu.tasks.dma1"] = build_records(".npu.tasks.dma1", build_dma(src=CMX + 640, dst=CMX + 64, post=1))
    image.relocations.pop(2)
    assert [(p.rule, p.where, p.first, p.past) for p in prove(image)] == [
        ("read-before-write", ".npu.tasks.shave_invocation[0]", CMX + 64, CMX + 128)
    ]


class Counted(list):
    """Counts how often it is asked."""

    def __init__(self, items):
        super().__init__(items)
        self.asked = 0

    def __getitem__(self, index):
        self.asked += 1
        return super().__getitem__(index)


def test_the_work_for_transfers_in_runs_grows_with_their_number():
    """Rows are written one by one, then read column by column, all in order; a last write beside the last read is found."""
    rows = 200
    step = SimpleNamespace(engine=(0, 0), start_after=-1, waits=(), posts=())
    order = Order([step] * (2 * rows) + [SimpleNamespace(engine=(0, 1), start_after=-1, waits=(), posts=())])
    order.position = counted = Counted(order.position)
    shadow = Shadow(0, rows * rows, order, counts_uses=False)
    for row in range(rows):
        assert shadow.write(Entry(row, True, box(row * rows, rows), -1)) == []
    for column in range(rows):
        assert shadow.read(Entry(rows + column, False, box(column, 1, [(rows, rows)]), -1)) == ([], None)
    assert counted.asked < 10 * rows
    last = Entry(2 * rows, True, box(rows - 1, 1), -1)
    assert {conflict.earlier.task for conflict in shadow.write(last)} == {0, 2 * rows - 1}
