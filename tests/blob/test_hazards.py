"""Hazards: conflicting tasks that nothing orders are found; every kind of order counts."""

import pytest
from npu_abi import C
from npu_model import shave_isa

from libnpu.blob import Relocation, hazards

CMX = C.NPU_CMX_BASE
NONE = C.NPU_BARRIER_NONE


def found(image):
    return [(p.where, p.message.split(";")[0]) for p in hazards(image)]


def test_a_blob_with_all_its_waits_has_none(image):
    assert hazards(image) == []


def test_read_after_write_without_the_wait(image):
    """The DPU reads what DMA 0 loads; without its wait nothing orders them."""
    image.tasks[".npu.tasks.dpu_invariant"]["barriers_wait_mask"] = 0
    image.tasks[".npu.barriers"]["consumer_count"][0] = 0
    assert found(image) == [(".npu.tasks.dpu_invariant[0]", "not ordered after .npu.tasks.dma0[0]")]


def test_write_after_write_on_two_ports(image):
    image.tasks[".npu.tasks.dma1"]["transaction_dst"] = CMX + 63
    assert [str(p) for p in hazards(image)] == [
        ".npu.tasks.dma1[0]: not ordered after .npu.tasks.dma0[0]; both write bytes from 0x2e00003f (hazard)"
    ]
    image.tasks[".npu.tasks.dma1"]["transaction_dst"] = CMX + 64
    assert hazards(image) == []


def test_barriers_order_in_several_steps(image):
    """The store waits for the SHAVE, which waits for the DPU: it may overwrite what the DPU read."""
    image.relocations[1] = Relocation(".npu.tasks.dma0", 128, ".data.weights", 0)
    store = image.tasks[".npu.tasks.dma0"]
    store["transaction_src"][1], store["transaction_dst"][1] = 0, CMX
    assert hazards(image) == []


def test_the_queue_of_an_engine_orders(image, build_records, build_dma):
    """Two stores to one place on one port are ordered; on two ports they are not."""
    one = [build_dma(src=CMX, dst=CMX + 64), build_dma(src=CMX + 256, dst=CMX + 64)]
    image.relocations = []
    image.tasks = {".npu.tasks.dma0": build_records(".npu.tasks.dma0", *one)}
    assert hazards(image) == []
    image.tasks = {f".npu.tasks.dma{i}": build_records(f".npu.tasks.dma{i}", one[i]) for i in (0, 1)}
    assert found(image) == [(".npu.tasks.dma1[0]", "not ordered after .npu.tasks.dma0[0]")]


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
    assert len(hazards(image)) == count


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
    assert len(hazards(image)) == count
    image.relocations[1] = Relocation(".npu.tasks.dma1", 0, ".data.weights", 0)
    assert hazards(image) == []


@pytest.mark.parametrize(("source", "count"), [(0, 1), (64, 0)])
def test_a_shave_program_is_run_for_its_accesses(image, build_records, build_dma, source, count):
    """The program loads 4 bytes at `source` from the address in its arguments: what DMA 1 writes, or what nobody writes."""
    image.text = shave_isa.assemble(f"ld.i64 r2, r1, 8\nvld.f32 v0, r2, r0, r0, {source}\nhalt\n")
    image.shave_args = bytes(8) + CMX.to_bytes(8, "little")
    image.tasks = {
        ".npu.tasks.dma1": build_records(".npu.tasks.dma1", build_dma(dst=CMX)),
        ".npu.tasks.shave_range": build_records(".npu.tasks.shave_range", {"code_bytes": len(image.text)}),
        ".npu.tasks.shave_invocation": build_records(
            ".npu.tasks.shave_invocation", {"args_bytes": 16, "sched_start_after": NONE}
        ),
    }
    image.relocations = [
        Relocation(".npu.tasks.dma1", 0, ".data.weights", 0),
        Relocation(".npu.tasks.shave_range", 0, ".text.shave", 0),
        Relocation(".npu.tasks.shave_invocation", 4, ".data.shave_args", 0, 4),
    ]
    expected = [(".npu.tasks.shave_invocation[0]", "not ordered after .npu.tasks.dma1[0]")]
    assert found(image) == expected * count


def test_a_program_whose_accesses_cannot_be_told_is_a_problem(image):
    image.text = shave_isa.assemble("ld.i64 r2, r1, 4096\nhalt\n")
    assert [str(p) for p in hazards(image)] == [
        ".npu.tasks.shave_invocation[0]: its accesses cannot be told: "
        "a SHAVE program reads 8 bytes at 0x80001000, outside its arguments (hazard)"
    ]


def test_hazards_of_a_blob_with_broken_rules_are_not_defined(image):
    image.tasks[".npu.barriers"]["producer_count"][0] = 3
    with pytest.raises(ValueError, match="verify finds no problem"):
        hazards(image)
