"""Kernels of a library: arguments, the five steps of a launch, and the choice of SHAVEs."""

from __future__ import annotations

import struct
from collections import Counter

import numpy as np
import pytest
from npu_abi import C

from libnpu.blob import KernelParam, KernelSource, kernel_library

OUT = KernelParam("out", C.NPU_ARG_BUFFER, C.NPU_ARG_OUT, C.NPU_DT_I64)
LOOPS = KernelParam("loops", C.NPU_ARG_INT, C.NPU_ARG_IN, C.NPU_DT_I64)
SCALE = KernelParam("scale", C.NPU_ARG_FLOAT, C.NPU_ARG_IN, C.NPU_DT_F32)
SPIN = """
    ldm r6, r1, 0, 2        # r6 = out, r7 = loops
again:
    addi r7, r7, -1
    blt r0, r7, again
    muli r8, r2, 8
    add r8, r8, r6
    addi r9, r2, 100
    st.i64 r9, r8, 0        # out[block] = 100 + block
    halt
"""
STORE = "ldm r6, r1, 0, 2\nfld.f32 f1, r1, 16\nst.i64 r7, r6, 0\nfst.f32 f1, r6, 8\nhalt"
FAULT = "trap 7"
CODE_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def library_bytes():
    """A library of four kernels: spin, store, fault, and large, which is spin in 64 KiB of code."""
    padding = "nop\n" * (CODE_BYTES // 16 - 8)
    sources = {
        "spin": KernelSource(SPIN, (OUT, LOOPS)),
        "store": KernelSource(STORE, (OUT, LOOPS, SCALE), max_grid=1),
        "fault": KernelSource(FAULT, ()),
        "large": KernelSource(SPIN + padding, (OUT, LOOPS)),
    }
    return kernel_library("mine", sources)


@pytest.fixture
def library(device, library_bytes):
    """The library on the device."""
    return device.load(library_bytes)


def test_a_module_names_its_kernels(library, device, blob_bytes, refused):
    assert list(library.kernels) == ["spin", "store", "fault", "large"]
    assert library["store"].name == "store"
    assert [(p.name, p.kind) for p in library["store"].params] == [("out", 1), ("loops", 2), ("scale", 3)]
    error = refused(C.NPU_ERROR_INVALID_VALUE, lambda: library["stare"])
    assert "module 'mine' has no kernel 'stare'; it has 'spin', 'store', 'fault', 'large'" in error.message
    model = device.load(blob_bytes(name="net"))
    assert list(model.kernels) == ["net"]
    assert [(p.name, p.direction, p.size_bytes) for p in model["net"].params] == [("x", 1, 1024), ("y", 2, 1024)]


def test_arguments_arrive_as_the_kernel_declares_them(library, device):
    out = device.alloc(64)
    library["store"].launch(None, out, -5, 1.5).wait()
    assert struct.unpack("<qf", out.read_bytes(0, 12)) == (-5, 1.5)
    library["store"].launch(None, out.at(16), np.int64(1 << 40), 2).wait()
    assert struct.unpack("<qf", out.read_bytes(16, 12)) == (1 << 40, 2.0)


def test_arguments_are_copied_and_each_launch_has_its_own(library, device):
    out, stream = device.alloc(4096), device.create_stream()
    for i in range(20):
        library["store"].launch(stream, out.at(16 * i), i, i / 4)
    stream.synchronize()
    values = [struct.unpack_from("<qf", out.read_bytes(16 * i, 16)) for i in range(20)]
    assert values == [(i, i / 4) for i in range(20)]


def test_every_block_of_a_grid_runs(library, device):
    out = device.alloc(4096)
    library["spin"].launch(None, out, 1, grid=37).wait()
    assert out.read(np.int64, (38,)).tolist() == [*range(100, 137), -1]


def test_without_a_grid_every_shave_gets_a_block(library, device):
    out = device.alloc(4096)
    job = library["spin"].launch(None, out, 1)
    job.wait()
    assert sorted(block.unit for block in job.blocks) == [0x00, 0x01, 0x10, 0x11]
    job = library["store"].launch(None, out, 1, 1.0)  # one block is the most that makes sense
    job.wait()
    assert len(job.blocks) == 1


def test_wrong_arguments_are_refused_and_nothing_is_enqueued(library, device, refused):
    out, other = device.alloc(64), device.create_context().alloc(64)
    gone = device.alloc(64)
    gone.free()
    kernel, stream = library["store"], device.create_stream()
    for result, arguments in (
        (C.NPU_ERROR_ARG_COUNT, (out, 1)),
        (C.NPU_ERROR_ARG_COUNT, (out, 1, 1.0, 1)),
        (C.NPU_ERROR_ARG_KIND, (1, 1, 1.0)),
        (C.NPU_ERROR_ARG_KIND, (np.zeros(8), 1, 1.0)),
        (C.NPU_ERROR_ARG_KIND, (out, 1.0, 1.0)),
        (C.NPU_ERROR_ARG_KIND, (out, out, 1.0)),
        (C.NPU_ERROR_ARG_KIND, (out, 1, "1.0")),
        (C.NPU_ERROR_ARG_KIND, (out, 1, out)),
        (C.NPU_ERROR_INVALID_VALUE, (out, 1 << 63, 1.0)),
        (C.NPU_ERROR_INVALID_VALUE, (out, 1, 1e300)),
        (C.NPU_ERROR_MISALIGNED, (out.at(2), 1, 1.0)),
        (C.NPU_ERROR_STALE_HANDLE, (gone, 1, 1.0)),
        (C.NPU_ERROR_WRONG_CONTEXT, (other, 1, 1.0)),
    ):
        refused(result, lambda a=arguments: kernel.launch(stream, *a))
    for kernel_name, grid in (("store", 2), ("spin", 0), ("spin", -1), ("spin", 1025)):
        arguments = (out, 1, 1.0) if kernel_name == "store" else (out, 1)
        error = refused(
            C.NPU_ERROR_INVALID_VALUE, lambda k=kernel_name, a=arguments, g=grid: library[k].launch(stream, *a, grid=g)
        )
        assert f"grid {grid} for '{kernel_name}'; 1 to " in error.message
    assert stream.query()
    assert device.counters()["DOORBELLS"] == 0


def test_a_model_is_launched_as_a_kernel_too(device, blob_bytes, refused):
    model = device.load(blob_bytes())
    x, y = device.alloc(1024), device.alloc(1024)
    x.write(np.full(1024, 3, np.uint8))
    job = model["copy"].launch(None, x, y)
    job.wait()
    assert y.read()[0] == 3
    refused(C.NPU_ERROR_INVALID_VALUE, lambda: model["copy"].launch(None, x, y, grid=2))
    refused(C.NPU_ERROR_ARG_SIZE, lambda: model["copy"].launch(None, x, y.at(64)))
    refused(C.NPU_ERROR_MISALIGNED, lambda: model["copy"].launch(None, device.alloc(4096).at(4), y))
    refused(C.NPU_ERROR_BAD_STATE, lambda: job.steps)


def test_a_library_is_no_model(library, device, refused):
    stream = device.create_stream()
    refused(C.NPU_ERROR_BAD_STATE, lambda: stream.launch(library, {}, {}))
    refused(C.NPU_ERROR_BAD_STATE, lambda: library.run({}))


def test_a_library_stays_loaded_while_a_launch_is_in_flight(library, device, refused):
    out = device.alloc(64)
    job = library["spin"].launch(None, out, 10**4)
    refused(C.NPU_ERROR_IN_USE, library.unload)
    job.wait()
    kernel = library["spin"]
    library.unload()
    refused(C.NPU_ERROR_STALE_HANDLE, lambda: kernel.launch(None, out, 1))


def test_a_fault_names_kernel_block_and_line(library, device, refused):
    job = library["fault"].launch(None, grid=1)
    error = refused(C.NPU_ERROR_KERNEL_FAULT, job.wait)
    assert error.operation == "fault"
    assert "of 'fault' ended with NPU_JOB_SHAVE_FAULT, NPU_SHAVE_FAULT_TRAP at pc 0x0, block 0" in error.message
    assert error.enqueue_site.endswith(str(test_a_fault_names_kernel_block_and_line.__code__.co_firstlineno + 1))
    assert job.blocks == ()


# ---- the five steps: rows P010 to P015 ----


def test_packing_costs_the_call_and_the_copy_of_the_arguments(library, device, refused):
    out, stream = device.alloc(64), device.create_stream()
    library["store"].launch(stream, out, 1, 1.0).wait()  # makes the command buffer and registers the queue
    job = library["store"].launch(stream, out, 1, 1.0)
    refused(C.NPU_NOT_READY, lambda: job.steps)
    job.wait()
    # npu-37xx: 100 ns for a call, 24 bytes at 10 bytes per ns; 400 ns for an ioctl and 250 for the doorbell.
    assert job.steps.pack_ps == 100_000 + 2_400
    assert job.steps.submit_ps == 400_000 + 250_000


def test_eight_launches_share_four_shaves_two_each(library, device):
    """P012."""
    out = device.alloc(4096)
    streams = [device.create_stream() for _ in range(8)]
    jobs = [library["spin"].launch(s, out.at(8 * i), 10**4, grid=1) for i, s in enumerate(streams)]
    device.synchronize()
    assert Counter(job.blocks[0].unit for job in jobs) == {0x00: 2, 0x01: 2, 0x10: 2, 0x11: 2}
    picks = device.trace()
    picks = picks[picks["kind"] == C.NPU_TRACE_KERNEL_PICK]
    assert len(picks) == 8
    assert all(job.steps.pick_ps > 0 for job in jobs)


def test_the_second_launch_finds_its_code_in_the_instruction_cache(library, device):
    """P013."""
    out = device.alloc(64)
    first, second = (library["spin"].launch(None, out, 1, grid=1) for _ in range(2))
    device.synchronize()
    code_bytes = library["spin"].code_bytes
    assert code_bytes == 8 * 16
    assert (first.blocks[0].loaded_bytes, first.blocks[0].cached_bytes) == (code_bytes, 0)
    assert (second.blocks[0].loaded_bytes, second.blocks[0].cached_bytes) == (0, code_bytes)
    assert first.steps.load_ps > 0
    assert second.steps.load_ps == 0


def test_large_code_with_little_work_loads_longer_than_it_executes_and_the_other_way_round(library, device):
    """P015."""
    out = device.alloc(64)
    little = library["large"].launch(None, out, 1, grid=1)
    device.synchronize()
    much = library["large"].launch(None, out, 10**5, grid=1)
    device.synchronize()
    assert little.blocks[0].loaded_bytes >= CODE_BYTES - 1024
    assert little.steps.load_ps > little.steps.execute_ps
    assert much.steps.execute_ps > little.steps.load_ps
    # 10^5 times two scalar instructions at one cycle each, 975 MHz
    assert much.steps.execute_ps - little.steps.execute_ps == pytest.approx(2 * 99_999 / 975e6 * 1e12, rel=1e-3)


def test_steps_lie_one_behind_the_other(library, device):
    job = library["spin"].launch(None, device.alloc(4096), 1000)
    job.wait()
    for block in job.blocks:
        assert job.packed_ps < block.taken_ps < block.picked_ps <= block.load_ps
        assert block.load_ps <= block.start_ps < block.end_ps <= job.end_ps


# ---- the built-in library ----


def test_built_in_kernels_are_found_by_name(device, refused):
    x, y, z = (device.alloc(4000) for _ in range(3))
    x.write(np.arange(1000, dtype=np.float32))
    y.write(np.ones(1000, np.float32))
    device.kernel("add").launch(None, x, y, z, 1000).wait()
    assert z.read(np.float32).tolist() == [float(i + 1) for i in range(1000)]
    assert device.kernel("add") is device.kernel("add")
    error = refused(C.NPU_ERROR_INVALID_VALUE, lambda: device.kernel("convolve"))
    assert "there is no built-in kernel 'convolve'; there are 'conv2d'" in error.message


def test_so_few_blocks_that_the_watchdog_would_stop_one_are_refused(device, refused):
    x = device.alloc(80_000_000)
    relu = device.kernel("relu")
    error = refused(C.NPU_ERROR_INVALID_VALUE, lambda: relu.launch(None, x, x, 20_000_000, grid=1))
    excess = "594816897 units of work in a block; the watchdog allows 268435456; 3 blocks are enough"
    assert error.message == f"grid 1 for 'relu': {excess}"


def test_the_longest_row_that_softmax_takes_runs(device):
    cols = 3_145_728
    x, y = device.to_device(np.zeros(cols, np.float32)), device.alloc(4 * cols)
    device.kernel("softmax").launch(None, x, y, 1, cols).wait()
    assert np.allclose(y.read(np.float32), 1 / cols, rtol=1e-6, atol=0)


def test_the_built_in_library_is_nobody_s_child(device):
    context = device.create_context()
    context.kernel("relu")
    context.destroy()


def test_two_streams_run_kernels_at_the_same_time(library, device):
    """P026."""
    out, a, b = device.alloc(4096), device.create_stream(), device.create_stream()
    first = library["spin"].launch(a, out, 10**5, grid=1)
    second = library["spin"].launch(b, out.at(64), 10**5, grid=1)
    device.synchronize()
    one, two = first.blocks[0], second.blocks[0]
    assert one.unit != two.unit
    assert max(one.start_ps, two.start_ps) < min(one.end_ps, two.end_ps)


def test_the_built_in_library_is_not_unloaded(device, refused):
    module = device.kernel("relu").module
    error = refused(C.NPU_ERROR_NOT_PERMITTED, module.unload)
    assert error.message == "'builtin' is the context's own library, and ends with it"
    with pytest.raises(ZeroDivisionError), module:
        raise ZeroDivisionError
    assert device.kernel("add").name == "add"


COOPERATIVE = int(C.NPU_KERNEL_COOPERATIVE)


def test_a_deadlock_at_bar_names_a_block_that_waits(device, refused):
    text = "li r6, 2\nbeq r2, r6, wait\nhalt\nwait:\nbar\nhalt\n"  # block 2 waits, the others end
    kernel = device.load(kernel_library("x", {"dead": KernelSource(text, (), flags=COOPERATIVE)}))["dead"]
    error = refused(C.NPU_ERROR_BARRIER_DEADLOCK, lambda: kernel.launch(None, grid=3).wait())
    assert "'dead' ended with NPU_JOB_DEADLOCK, block 2 waits at `bar` for a block that has ended" in error.message
    assert error.error_info == 2


def test_a_grid_beyond_the_shaves_says_that_the_kernel_is_cooperative(device, refused):
    kernel = device.load(kernel_library("x", {"all": KernelSource("halt\n", (), flags=COOPERATIVE)}))["all"]
    error = refused(C.NPU_ERROR_INVALID_VALUE, lambda: kernel.launch(None, grid=1000))
    assert "are allowed: it is cooperative, each block has a SHAVE of its own" in error.message


def test_a_lost_context_names_the_fault_and_the_kernel(device, refused):
    text = "li r6, 0x7000000000\nst.i64 r6, r6, 0\nhalt\n"
    kernel = device.load(kernel_library("x", {"wild": KernelSource(text, ())}))["wild"]
    memory = device.alloc(64)
    refused(C.NPU_ERROR_DEVICE_PAGE_FAULT, lambda: kernel.launch(None, grid=1).wait())
    for call in (lambda: device.alloc(5), device.create_stream, memory.read):
        message = refused(C.NPU_ERROR_DEVICE_LOST, call).message
        assert message.startswith("context 2 is lost: NPU_MMU_EVT_TRANSLATION: NPU_ENGINE_SHAVE write at 0x7000000000")
        assert "seen when job" in message and "of 'wild' ended with NPU_JOB_CTX_VIOLATION" in message


@pytest.mark.parametrize("size", [126, 160, 224])
def test_global_pooling_in_the_default_grid_runs(device, size):
    x, y = device.to_device(np.full(size * size, 3, np.float32)), device.alloc(4)
    device.kernel("pool2d").launch(None, x, y, 1, 1, size, size, size, size, 1, 1, 0, 0, 1).wait()
    assert y.read(np.float32).tolist() == [3.0]


def test_blocks_that_write_the_same_bytes_leave_poison_unless_a_bar_orders_them(device):
    out = KernelParam("out", C.NPU_ARG_BUFFER, C.NPU_ARG_OUT, C.NPU_DT_I64)
    store = "ld.i64 r6, r1, 0\nst.i64 r2, r6, 0\n"
    spin = "li r7, 1000\nagain:\naddi r7, r7, -1\nblt r0, r7, again\n"  # so that the blocks overlap
    first_then_second = "ld.i64 r6, r1, 0\nbne r2, r0, second\nst.i64 r3, r6, 0\nbar\nhalt\n"
    first_then_second += "second:\nbar\naddi r7, r2, 40\nst.i64 r7, r6, 0\nhalt\n"
    library = device.load(
        kernel_library(
            "x",
            {
                "race": KernelSource(store + spin + "halt\n", (out,)),
                "ordered": KernelSource(first_then_second, (out,), flags=COOPERATIVE),
            },
        )
    )
    for name, grid, expected in (("race", 2, -1), ("race", 1, 0), ("ordered", 2, 41)):
        memory = device.to_device(np.array([-7], np.int64))
        library[name].launch(None, memory, grid=grid).wait()
        assert memory.read(np.int64).tolist() == [expected]
