"""Values through all three engines, and what a missing edge does to them."""

import numpy as np
import pytest
from npu_abi import C
from npu_model.shave_isa import assemble

from tests.device.rig import CMX, Blob, Rig

ACT, WEIGHTS, OUT, DOUBLED = CMX, CMX + 0x1000, CMX + 0x2000, CMX + 0x3000
M, K, N = 16, 32, 16


def chain(rig, **removed):
    """Return (blob, output va, expected values): out = 2 * (a @ w.T). `removed` drops waits by the name of the task."""
    rng = np.random.default_rng(1)
    a = rng.integers(-4, 5, (M, K)).astype(np.float16)
    w = rng.integers(-4, 5, (N, K)).astype(np.float16)
    expected = (2 * (a.astype(np.float32) @ w.astype(np.float32).T)).astype(np.float16)
    a_va, w_va, out_va = rig.alloc(a.tobytes()), rig.alloc(w.tobytes()), rig.alloc(4096)
    text = assemble(
        f"""
        li r2, {M}
        li r3, {N}
        setvl r2, r3
        li r4, {OUT}
        li r5, {2 * N}
        li r6, 2
        vld.f16 v0, r4, r5, r6, 0
        vadd.f32 v1, v0, v0
        li r4, {DOUBLED}
        vst.f16 v1, r4, r5, r6, 0
        halt
        """
    )
    blob = Blob()
    program = blob.add_range(rig.alloc(text), len(text))
    loaded = blob.barrier(producers=2, consumers=0 if "matmul" in removed else 1)
    multiplied = blob.barrier(consumers=0 if "shave" in removed else 1)
    doubled = blob.barrier(consumers=0 if "store" in removed else 1)
    blob.add_dma(a_va, ACT, a.nbytes, posts=[loaded], task_id=1)
    blob.add_dma(w_va, WEIGHTS, w.nbytes, posts=[loaded], port=1, task_id=2)
    waits = [] if "matmul" in removed else [loaded]
    blob.add_matmul(ACT, WEIGHTS, OUT, M, K, N, waits=waits, posts=[multiplied], task_id=3)
    blob.add_shave(program, waits=[] if "shave" in removed else [multiplied], posts=[doubled], task_id=4)
    blob.add_dma(DOUBLED, out_va, expected.nbytes, waits=[] if "store" in removed else [doubled], task_id=5)
    return blob, out_va, expected


def test_copy_matmul_vector_copy_gives_the_right_numbers():
    rig = Rig()
    blob, out_va, expected = chain(rig)
    done = rig.execute(rig.inference(blob))
    assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, done.error_detail, hex(done.error_info))
    out = rig.memory(out_va)[: expected.nbytes].view(np.float16).reshape(M, N)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("edge", ["matmul", "shave", "store"])
def test_a_missing_edge_shows_as_poison(edge):
    rig = Rig()
    blob, out_va, expected = chain(rig, **{edge: True})
    done = rig.execute(rig.inference(blob))
    assert done.job_status == C.NPU_JOB_SUCCESS
    out = rig.memory(out_va)[: expected.nbytes].view(np.float16)
    assert np.isnan(out).any()


def outcome(rig, blob, va, nbytes):
    assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS
    return rig.memory(va)[:nbytes].view(np.float16)


@pytest.mark.parametrize(("victim", "poisoned"), [(ACT, True), (WEIGHTS, True), (OUT + 4096, False)])
def test_an_operand_that_is_written_while_it_is_read_gives_poison(victim, poisoned):
    """The bytes written are the bytes that were there: only the race shows."""
    rig = Rig()
    ones, out = rig.alloc(np.ones(2048, np.float16).tobytes()), rig.alloc(4096)
    blob = Blob()
    loaded, done = blob.barrier(producers=1, consumers=2), blob.barrier(producers=2)
    blob.add_dma(ones, CMX, 0x2000 - 4096, num_planes=2, src_plane_stride=0, dst_plane_stride=4096, posts=[loaded])
    blob.add_matmul(ACT, WEIGHTS, OUT, M, K, N, waits=[loaded], posts=[done])  # 8 units
    blob.add_dma(ones, victim, 64, waits=[loaded], posts=[done], port=1)  # 1 unit, meanwhile
    blob.add_dma(OUT, out, 2 * M * N, waits=[done])
    values = outcome(rig, blob, out, 2 * M * N)
    assert np.isnan(values).all() if poisoned else (values == K).all()


def test_reading_ddr_that_another_copy_still_writes_gives_poison():
    rig = Rig()
    ones, middle, out = rig.alloc(np.ones(2048, np.float16).tobytes()), rig.alloc(bytes(8192)), rig.alloc(8192)
    blob = Blob()
    blob.add_dma(ones, middle, 4096)
    blob.add_dma(middle, out, 1024, port=1)
    assert np.isnan(outcome(rig, blob, out, 1024)).all()
    assert (rig.memory(middle)[:4096].view(np.float16) == 1).all()


@pytest.mark.parametrize("after_ps", [0, 100_000, 1_000_000, 3_000_000])
def test_a_job_that_ends_early_leaves_the_memory_channel_to_the_next(after_ps):
    """Aborted before, during and after the latency of its copies (npu-37xx: 956 ns)."""
    rig = Rig("npu-37xx", trace=True)
    ones = rig.alloc(1 << 20)
    blob = Blob()
    for port in (0, 1):
        blob.add_dma(ones, CMX + port * 0x80000, 0x40000, port=port)
    alone = rig.execute(rig.inference(blob))
    rig.enqueue(rig.inference(blob))
    while not rig.device.fabric.engines[0].task:
        rig.device.run_until(rig.device.next_event_ps())
    rig.device.run_until(rig.device.now_ps + after_ps)
    rig.abort()
    again = rig.execute(rig.inference(blob))
    assert [d.job_status for d in rig.done()] == [C.NPU_JOB_SUCCESS, C.NPU_JOB_ABORTED, C.NPU_JOB_SUCCESS]
    difference = (again.end_ps - again.start_ps) - (alone.end_ps - alone.start_ps)
    assert abs(difference) < 10_000  # clock edges only


def test_an_unmapped_copy_fails_its_job_and_frees_the_port():
    rig = Rig("npu-37xx")
    ones = rig.alloc(4096)
    bad, good = Blob(), Blob()
    bad.add_dma(0x1_0000_0000, CMX, 64)
    good.add_dma(ones, CMX, 64)
    assert rig.execute(rig.inference(bad)).job_status == C.NPU_JOB_CTX_VIOLATION
    assert rig.execute(rig.inference(good)).job_status == C.NPU_JOB_SUCCESS


def test_cmx_is_poison_when_a_job_starts():
    rig = Rig()
    ones, out = rig.alloc(np.ones(2048, np.float16).tobytes()), rig.alloc(8192)
    first, second = Blob(), Blob()
    first.add_dma(ones, CMX, 4096)
    second.add_dma(CMX, out, 4096)
    assert rig.execute(rig.inference(first)).job_status == C.NPU_JOB_SUCCESS
    assert np.isnan(outcome(rig, second, out, 4096)).all()


def mirrored(rig, out_tiles, racing=()):
    """Multiply in tile 1, for the tiles of `out_tiles`, and fetch the place of the result from each of two tiles."""
    ones, outs = rig.alloc(np.ones(2048, np.float16).tobytes()), [rig.alloc(4096), rig.alloc(4096)]
    blob, own = Blob(tiles=2), C.NPU_CMX_TILE_STRIDE
    loaded, done = blob.barrier(consumers=1 + len(racing)), blob.barrier(producers=1 + len(racing), consumers=2)
    blob.add_dma(
        ones, own + CMX, 0x2000 - 4096, num_planes=2, src_plane_stride=0, dst_plane_stride=4096, posts=[loaded]
    )
    blob.add_matmul(
        own + ACT, own + WEIGHTS, own + OUT, M, K, N, waits=[loaded], posts=[done], tile=1, out_tiles=out_tiles
    )
    for place in racing:
        blob.add_dma(ones, place, 64, waits=[loaded], posts=[done], port=1)
    for tile in (0, 1):
        blob.add_dma(tile * own + OUT, outs[tile], 2 * M * N, waits=[done])
    assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS
    return [rig.memory(out)[: 2 * M * N].view(np.float16) for out in outs]


@pytest.mark.parametrize("out_tiles", [0, 1, 2, 3])
def test_an_output_goes_to_each_tile_that_is_named(out_tiles):
    other, own = mirrored(Rig("npu-37xx"), out_tiles)
    assert (own == K).all()
    assert (other == K).all() if out_tiles & 1 else np.isnan(other).all()


def test_who_writes_to_a_copy_meanwhile_spoils_all():
    """The claim of a task covers every copy."""
    assert all(np.isnan(values).all() for values in mirrored(Rig("npu-37xx"), 1, [OUT]))
