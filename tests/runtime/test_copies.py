"""Copies in stream order: when the bytes are read and written, by the kind of memory, and what it costs.

Times are of the teaching device: a DMA port moves 1024 bytes in 1 us, there are two, and DDR is no limit. A command
begins at a whole microsecond of the DMA clock.
"""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

import libnpu

MIB = 1 << 20
US = 1_000_000  # picoseconds


@pytest.fixture(params=["ascend", "cuda", "strict"])
def semantics(request):
    return request.param


@pytest.fixture
def any_device(semantics):
    with libnpu.open("unit", semantics=semantics) as opened:
        yield opened


@pytest.fixture
def unit():
    with libnpu.open("unit") as opened:
        yield opened


@pytest.fixture
def cuda():
    with libnpu.open("unit", semantics="cuda") as opened:
        yield opened


def ramp(nbytes, start=0):
    return (np.arange(nbytes) + start).astype(np.uint8)


def refused(result):
    return pytest.raises(libnpu.NpuError, match=result)


# ---- pinned and device memory -----------------------------------------------------------------------------------


def test_a_copy_from_pinned_over_device_to_pinned_memory_brings_every_byte(any_device):
    stream = any_device.create_stream()
    source, target = any_device.alloc_host(10_007), any_device.alloc_host(10_007)
    first, second = any_device.alloc(10_007), any_device.alloc(10_007)
    source.array[:] = ramp(10_007, 3)
    for dst, src in ((first, source), (second, first), (target, second)):
        assert stream.copy(dst, src) is not None
    stream.synchronize()
    assert target.array.tolist() == ramp(10_007, 3).tolist()


def test_pinned_memory_has_old_bytes_until_the_stream_was_waited_for(any_device):
    stream, memory = any_device.create_stream(), any_device.alloc(64)
    memory.write(ramp(64))
    pinned = any_device.alloc_host(64)
    stream.copy(any_device.alloc(MIB), any_device.alloc(MIB))
    stream.copy(pinned, memory)
    assert pinned.array.tolist() == [0xFF] * 64
    stream.synchronize()
    assert pinned.array.tolist() == list(range(64))


def test_what_the_host_writes_before_the_dma_starts_is_copied(any_device):
    stream, memory, pinned = any_device.create_stream(), any_device.alloc(64), any_device.alloc_host(64)
    stream.copy(any_device.alloc(MIB), any_device.alloc(MIB))  # 512 us
    pinned.array[:] = 1
    stream.copy(memory, pinned)
    any_device.host_delay(400_000)
    pinned.array[:] = 2
    stream.synchronize()
    assert memory.read().tolist() == [2] * 64


def test_what_the_host_writes_after_the_dma_has_started_is_not_copied(any_device):
    stream, memory, pinned = any_device.create_stream(), any_device.alloc(MIB), any_device.alloc_host(MIB)
    pinned.array[:] = 1
    stream.copy(memory, pinned)  # 512 us
    any_device.host_delay(100_000)
    pinned.array[:] = 2
    assert set(memory.read().tolist()) == {0xFF}  # published at the end
    stream.synchronize()
    assert set(memory.read().tolist()) == {1}


def test_the_time_of_a_copy_grows_with_its_size_and_both_ports_share_it(unit):
    stream, target, source = unit.create_stream(), unit.alloc(4 * MIB), unit.alloc(4 * MIB)
    times = []
    for size in (1024, 2048, 64 << 10, MIB, 4 * MIB):
        job = stream.copy(target, source, size)
        stream.synchronize()
        times.append(job.latency_ps // US)
    # Below 4 KiB one port does it all; above, each port does half. One more for the way to a whole microsecond.
    assert [time - 1 for time in times] == [0, 1, 31, 511, 2047]


def test_two_copies_in_two_streams_share_the_ports(unit):
    one, two = unit.create_stream(), unit.create_stream()
    memory = [unit.alloc(MIB) for _ in range(4)]
    first, second = one.copy(memory[0], memory[1]), two.copy(memory[2], memory[3])
    unit.synchronize()
    # each is 8 grants of 64 KiB a port, 64 us each: the ports serve them in turn, and the first one's last is the 15th of 16
    assert (first.end_ps - first.start_ps) // US == 15 * 64
    assert second.start_ps < first.end_ps
    assert second.end_ps - first.end_ps == 64 * US


def test_two_copies_on_a_real_profile_share_the_memory_bandwidth():
    with libnpu.open("npu-37xx") as device:
        one, two = device.create_stream(), device.create_stream()
        memory = [device.alloc(8 * MIB) for _ in range(4)]
        alone = one.copy(memory[0], memory[1])
        one.synchronize()
        first, second = one.copy(memory[0], memory[1]), two.copy(memory[2], memory[3])
        device.synchronize()
        both_ps = max(first.end_ps, second.end_ps) - first.start_ps
        # 8 MiB are read and written: 16.8 MB at the 27 GB/s of a read are 621 us, and written data needs no request besides; two copies
        # need twice that.
        assert 605 * US < alone.latency_ps < 640 * US
        assert both_ps == pytest.approx(2 * alone.latency_ps, rel=0.02)


def test_a_fill_sets_head_middle_and_tail_and_nothing_else(unit):
    stream, memory = unit.create_stream(), unit.alloc(100_000)
    stream.fill(memory, 0)
    for first, size, value in ((1, 1, 1), (5, 3, 2), (11, 1023, 3), (2000, 1024, 4), (5003, 70_001, 0x1FF)):
        stream.fill(memory[first : first + size], value)
    stream.synchronize()
    expected = np.zeros(100_000, np.uint8)
    expected[1], expected[5:8], expected[11:1034], expected[2000:3024], expected[5003:75_004] = 1, 2, 3, 4, 0xFF
    assert np.array_equal(memory.read(), expected)


def test_a_fill_is_as_fast_as_a_copy(unit):
    stream, memory = unit.create_stream(), unit.alloc(MIB)
    job = stream.fill(memory, 7)
    stream.synchronize()
    assert job.latency_ps // US == 512
    assert set(memory.read().tolist()) == {7}


def test_copies_of_more_than_a_piece_are_cut_and_whole():
    with libnpu.open("npu-37xx") as device:
        stream = device.create_stream()
        size = (17 << 20) + 13
        source, target = device.alloc_host(size), device.alloc_host(size)
        source.array[:] = np.resize(np.arange(251, dtype=np.uint8), size)
        stream.copy(target, source)
        stream.synchronize()
        assert np.array_equal(target.array, source.array)


def test_an_array_in_pinned_memory_is_pinned_memory(unit):
    stream, memory, pinned = unit.create_stream(), unit.alloc(16), unit.alloc_host(64)
    stream.copy(unit.alloc(MIB), unit.alloc(MIB))
    numbers = pinned.array.view(np.uint32)
    numbers[:] = range(16)
    assert stream.copy(memory, numbers[4:8]) is not None  # a job: not complete on return
    numbers[4] = 99
    stream.synchronize()
    assert memory.read(np.uint32).tolist() == [99, 5, 6, 7]


# ---- pageable memory --------------------------------------------------------------------------------------------


def test_ascend_pageable_copies_wait_for_their_stream_and_are_complete_on_return(unit):
    stream, first, second = unit.create_stream(), unit.alloc(MIB), unit.alloc(MIB)
    first.write(np.full(MIB, 5, np.uint8))
    stream.copy(second, first)  # 512 us
    host = np.zeros(MIB, np.uint8)
    before_ps = unit.now_ps
    assert stream.copy(host, second) is None
    assert unit.now_ps - before_ps > 511 * US
    assert set(host.tolist()) == {5}
    assert stream.copy(first, np.full(MIB, 6, np.uint8)) is None
    assert set(first.read().tolist()) == {6}


def test_cuda_pageable_copies_to_the_device_are_staged(cuda):
    stream, first, second = cuda.create_stream(), cuda.alloc(MIB), cuda.alloc(8192)
    first.write(np.full(MIB, 5, np.uint8))
    stream.copy(cuda.alloc(MIB), first)  # 512 us
    host = ramp(8192)
    before_ps = cuda.now_ps
    job = stream.copy(second, host)
    assert cuda.now_ps - before_ps < US
    host[:] = 0  # it was read already
    assert not job.done
    assert set(second.read().tolist()) == {0xFF}
    stream.synchronize()
    assert second.read().tolist() == ramp(8192).tolist()


def test_cuda_pageable_copies_from_the_device_are_complete_on_return(cuda):
    stream, first, second = cuda.create_stream(), cuda.alloc(MIB), cuda.alloc(MIB)
    first.write(np.full(MIB, 5, np.uint8))
    stream.copy(second, first)
    host = np.zeros(MIB, np.uint8)
    assert stream.copy(host, second) is None
    assert set(host.tolist()) == {5}


def test_strict_refuses_asynchronous_copies_of_pageable_memory():
    with libnpu.open("unit", semantics="strict") as device:
        stream, memory = device.create_stream(), device.alloc(4)
        memory.write(b"abcd")
        with refused("NOT_PERMITTED"):
            stream.copy(memory, bytes(4))
        with refused("NOT_PERMITTED"):
            stream.copy(bytearray(4), memory)
        assert memory.read_bytes(0, 4) == b"abcd"
        device.copy(memory, b"1234")
        assert memory.read_bytes(0, 4) == b"1234"


def test_pageable_to_pageable_memory_is_copied_synchronously_only(any_device):
    source, target = ramp(100), np.zeros(100, np.uint8)
    with refused("NOT_SUPPORTED"):
        any_device.create_stream().copy(target, source)
    any_device.copy(target, source)
    assert target.tolist() == source.tolist()


# ---- complete on return -----------------------------------------------------------------------------------------


def test_a_synchronous_copy_is_behind_the_default_stream_and_complete_on_return(any_device):
    first, second, third = (any_device.alloc(MIB) for _ in range(3))
    first.write(np.full(MIB, 5, np.uint8))
    any_device.default_stream.copy(second, first)
    any_device.copy(third, second)
    assert set(third.read().tolist()) == {5}


def test_a_synchronous_pageable_copy_waits_for_the_default_stream(any_device):
    first, second, host = any_device.alloc(MIB), any_device.alloc(MIB), np.zeros(MIB, np.uint8)
    first.write(np.full(MIB, 5, np.uint8))
    any_device.default_stream.copy(second, first)
    any_device.copy(host, second)
    assert set(host.tolist()) == {5}


@pytest.mark.parametrize(
    ("semantics", "seen"), [("ascend", 0xFF), ("cuda", 5), ("strict", 0xFF)], indirect=["semantics"]
)
def test_only_a_legacy_default_stream_waits_for_other_streams(any_device, seen):
    first, second, host = any_device.alloc(MIB), any_device.alloc(MIB), np.zeros(MIB, np.uint8)
    first.write(np.full(MIB, 5, np.uint8))
    any_device.create_stream().copy(second, first)
    any_device.copy(host, second)
    assert set(host.tolist()) == {seen}


def test_write_and_read_wait_for_no_stream(any_device):
    first, second = any_device.alloc(MIB), any_device.alloc(MIB)
    first.write(np.full(MIB, 5, np.uint8))
    any_device.default_stream.copy(second, first)
    assert set(second.read().tolist()) == {0xFF}
    assert set(np.asarray(second).tolist()) == {5}  # an array of it is a synchronous copy


def test_context_fill_is_complete_on_return(any_device):
    memory = any_device.alloc(100)
    any_device.primary.fill(memory[10:20], 3)
    assert memory.read_bytes(8, 4) == b"\xff\xff\x03\x03"


# ---- rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize(
    ("width", "height", "dst_pitch", "src_pitch"), [(3, 5, 8, 4), (300, 70, 512, 300), (7, 1, 0, 0)]
)
def test_rows_go_where_the_pitches_say(unit, pinned, width, height, dst_pitch, src_pitch):
    stream = unit.create_stream()
    source = unit.alloc_host(src_pitch * (height - 1) + width) if pinned else None
    content = ramp(src_pitch * (height - 1) + width)
    if source is not None:
        source.array[:] = content
    target = unit.alloc(dst_pitch * (height - 1) + width)
    stream.copy_2d(target, dst_pitch, content if source is None else source, src_pitch, width, height)
    stream.synchronize()
    expected = np.full(target.size, 0xFF, np.uint8)
    for row in range(height):
        expected[row * dst_pitch : row * dst_pitch + width] = content[row * src_pitch : row * src_pitch + width]
    assert target.read().tolist() == expected.tolist()


def test_a_synchronous_2d_copy_takes_a_column_out_of_a_matrix(any_device):
    memory, column = any_device.to_device(np.arange(12, dtype=np.uint8)), np.zeros(3, np.uint8)
    any_device.primary.copy_2d(column, 1, memory[2:], 4, 1, 3)
    assert column.tolist() == [2, 6, 10]


# ---- misuse -----------------------------------------------------------------------------------------------------


def test_misuse_is_refused_and_changes_nothing(unit):
    stream, memory, other = unit.create_stream(), unit.alloc(64), unit.alloc(64)
    memory.write(ramp(64))
    gone, pinned = unit.alloc(64), unit.alloc_host(64)
    gone.free()
    stale = pinned.array
    pinned.free()
    frozen = ramp(64)
    frozen.flags.writeable = False
    foreign = unit.create_context().alloc(64)
    jobs = stream.fence
    for result, dst, src, size in (
        ("OUT_OF_RANGE", memory, other, 65),
        ("OUT_OF_RANGE", memory[60:], other, 5),
        ("OUT_OF_RANGE", memory, ramp(65), None),
        ("OUT_OF_RANGE", ramp(8), memory, 9),
        ("INVALID_SIZE", memory, other, -1),
        ("OVERLAP", memory[1:33], memory[:32], None),
        ("OVERLAP", memory, memory, None),
        ("STALE_HANDLE", memory, gone, None),
        ("STALE_HANDLE", gone, memory, None),
        ("STALE_HANDLE", memory, stale, None),
        ("WRONG_CONTEXT", memory, foreign, None),
        ("WRONG_CONTEXT", foreign, memory, None),
        ("INVALID_VALUE", frozen, memory, None),
        ("INVALID_VALUE", bytes(64), memory, None),
        ("INVALID_VALUE", memory, 17, None),
        ("INVALID_VALUE", memory, [1, 2], None),
        ("INVALID_VALUE", memory, ramp(64)[::2], None),
        ("INVALID_VALUE", memory, np.array([object()]), None),
        ("INVALID_VALUE", memory, memoryview(bytes(64))[::2], None),
    ):
        with refused(f"NPU_ERROR_{result}"):
            stream.copy(dst, src, size)
    assert stream.fence == jobs
    assert memory.read().tolist() == list(range(64))


def test_misuse_of_2d_copies_is_refused(unit):
    stream, memory, other = unit.create_stream(), unit.alloc(64), unit.alloc(64)
    for result, dst, dst_pitch, src, src_pitch, width, height in (
        ("INVALID_SIZE", memory, 3, other, 4, 4, 2),
        ("INVALID_SIZE", memory, 4, other, 3, 4, 2),
        ("INVALID_SIZE", memory, 4, other, 4, -1, 2),
        ("OUT_OF_RANGE", memory, 16, other, 4, 17, 4),
        ("OUT_OF_RANGE", memory, 4, other, 20, 5, 4),
        ("OVERLAP", memory, 8, memory[4:], 8, 5, 4),
    ):
        if result == "OUT_OF_RANGE":
            dst_pitch, src_pitch = max(dst_pitch, width), max(src_pitch, width)
        with refused(f"NPU_ERROR_{result}"):
            stream.copy_2d(dst, dst_pitch, src, src_pitch, width, height)
    stream.copy_2d(memory, 8, memory[4:], 8, 4, 8)  # rows between rows do not overlap
    stream.synchronize()


def test_nothing_is_copied_for_size_0(any_device):
    memory = any_device.alloc(4)
    stream = any_device.create_stream()
    assert stream.copy(memory, memory, 0) is None
    assert stream.copy(memory, b"") is None
    assert stream.copy_2d(memory, 0, memory, 0, 0, 5) is None
    assert stream.fill(memory[2:2], 1) is None
    any_device.copy(memory, memory, 0)
    assert stream.fence == 0


def test_pageable_memory_cannot_be_filled(unit):
    with refused("INVALID_VALUE"):
        unit.create_stream().fill(bytearray(4), 1)


def test_a_failed_operation_before_is_reported_by_the_synchronous_copy(device, blob_bytes):
    model = device.load(blob_bytes(deadlock=True))
    x, y = device.alloc(1024), device.alloc(1024)
    device.default_stream.launch(model, {"x": x}, {"y": y})
    with refused("BARRIER_DEADLOCK"):
        device.copy(bytearray(1024), x)
    device.copy(y, bytes(1024))
    assert y.read_bytes(0, 2) == bytes(2)


def test_a_device_without_values_takes_the_same_time():
    with libnpu.open("unit", compute=False) as device:
        stream, first, second = device.create_stream(), device.alloc(MIB), device.alloc(MIB)
        job = stream.copy(second, first)
        stream.synchronize()
        assert job.latency_ps // US == 512
        device.copy(first, bytes(MIB))
        with refused("BAD_STATE"):
            device.copy(bytearray(MIB), first)


# ---- contexts and devices ---------------------------------------------------------------------------------------


def test_memory_is_copied_between_contexts_and_devices_behind_both_default_streams(unit):
    with libnpu.open("npu-37xx") as other, unit.create_context() as sibling:
        first, source = unit.alloc(MIB), unit.alloc(MIB)
        first.write(np.full(MIB, 5, np.uint8))
        for context in (sibling, other.primary):
            target = context.alloc(MIB)
            context.default_stream.fill(target, 1)
            unit.default_stream.fill(source, 0)
            unit.default_stream.copy(source, first)
            unit.primary.copy_peer(target, source)
            assert set(target.read().tolist()) == {5}


def test_misuse_of_peer_copies(unit):
    with unit.create_context() as sibling:
        source, target = unit.alloc(8), sibling.alloc(4)
        with refused("OUT_OF_RANGE"):
            unit.primary.copy_peer(target, source)
        with refused("OVERLAP"):
            unit.primary.copy_peer(source[2:6], source[:4])
        with refused("INVALID_VALUE"):
            unit.primary.copy_peer(target, bytes(4))
        target.free()
        with refused("STALE_HANDLE"):
            unit.primary.copy_peer(target, source[:4])


def test_a_copy_says_what_it_is(unit):
    stream, memory, pinned = unit.create_stream(), unit.alloc(64), unit.alloc_host(64)
    jobs = [stream.copy(memory, pinned), stream.copy(pinned, memory), stream.fill(memory, 1)]
    assert [job.operation.name for job in jobs] == ["copy host to device", "copy device to host", "fill with 0x01"]
    assert [job.operation.kind for job in jobs] == ["memcpy", "memcpy", "memset"]
    assert [job.operation.size_bytes for job in jobs] == [64, 64, 64]
    assert C.NPU_OP_MEMCPY == 2


def test_ends_may_be_arrays_of_any_type_and_shape(unit):
    memory = unit.alloc(24)
    for source in (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array("2026-01-01", "datetime64[ns]"),
        np.float64(2.5),
        np.zeros((0, 3)),
        memoryview(np.arange(3)),
        bytearray(b"abc"),
    ):
        memory.write(bytes(24))
        unit.copy(memory, source)
        wanted = bytes(source) if isinstance(source, bytearray) else source.tobytes()
        assert memory.read_bytes(0, len(wanted)) == wanted
    target = np.zeros((2, 2), ">i4")
    unit.copy(target, memory[:16])
    assert target.tobytes() == memory.read_bytes(0, 16)


@pytest.mark.parametrize("schedule", ["timed", "eager", "lazy", "newest-first", "seed:3"])
def test_memory_freed_behind_its_last_use_under_every_schedule(schedule):
    with libnpu.open("unit") as device:
        device.set_schedule(schedule)
        one, two, pinned = device.create_stream(), device.create_stream(), device.alloc_host(64)
        source, middle, other = device.to_device(ramp(64)), device.alloc(64), device.alloc(64)
        one.copy(middle, source)
        one.copy(pinned, middle)
        two.copy(other, source)
        source.free()
        middle.free_async(one)
        other.free_async(two)
        with refused("STALE_HANDLE"):
            one.copy(pinned, middle)
        device.synchronize()
        assert pinned.array.tolist() == list(range(64))
        assert len(list(device.primary.device_memory)) == 1
        free, total = device.memory_info()
        assert total - free < MIB


def test_copies_of_pinned_memory_are_nodes_of_a_graph_and_read_what_is_there_at_each_launch(unit):
    stream, memory, pinned = unit.create_stream(), unit.alloc(4), unit.alloc_host(4)
    with stream.capture() as capture:
        stream.copy(memory, pinned)
        stream.fill(memory[2:], 9)
    pinned.array[:] = 0
    run = capture.graph.instantiate()
    for value in (1, 2):
        pinned.array[:] = value
        run.launch(stream)
        stream.synchronize()
        assert memory.read().tolist() == [value, value, 9, 9]


def test_what_waits_or_frees_cannot_be_captured(unit):
    memory, pinned = unit.alloc(4), unit.alloc_host(4)
    for use in (
        lambda stream: stream.copy(memory, bytes(4)),
        lambda stream: stream.copy(bytearray(4), memory),
        lambda stream: unit.copy(memory, pinned),
        lambda stream: unit.copy(memory, bytes(4)),
        lambda stream: unit.primary.fill(memory, 1),
        lambda stream: memory.free(),
        lambda stream: memory.free_async(stream),
    ):
        stream = unit.create_stream()
        stream.capture()
        with refused("CAPTURE_UNSUPPORTED"):
            use(stream)
        with refused("CAPTURE_INVALIDATED"):
            stream.end_capture()
    assert memory.is_live


@pytest.mark.parametrize("schedule", ["timed", "lazy", "seed:5"])
def test_random_copies_and_fills_of_one_stream_do_what_numpy_does(schedule):
    """A NumPy array for each memory goes through the same operations in order."""
    random = np.random.default_rng(7)
    with libnpu.open("npu-37xx") as device:
        device.set_schedule(schedule)
        stream, size = device.create_stream(), 20_000
        memories = [device.alloc(size), device.alloc(size), device.alloc_host(size), device.alloc_host(size)]
        models = [np.full(size, 0xFF, np.uint8) for _ in memories]
        for step in range(120):
            to, of = random.choice(4, 2, replace=False)
            first, second = (int(x) for x in random.integers(0, size // 2, 2))
            length = int(random.integers(1, size // 2))
            match step % 3:
                case 0:
                    stream.fill(memories[to][first : first + length], step)
                    models[to][first : first + length] = step
                case 1:
                    stream.copy(memories[to][first:], memories[of][second:], length)
                    models[to][first : first + length] = models[of][second : second + length]
                case 2:
                    width, height = int(random.integers(1, 300)), int(random.integers(1, 12))
                    pitches = [width + int(gap) for gap in random.integers(0, 400, 2)]
                    stream.copy_2d(memories[to][first:], pitches[0], memories[of][second:], pitches[1], width, height)
                    for row in range(height):
                        target, source = first + row * pitches[0], second + row * pitches[1]
                        models[to][target : target + width] = models[of][source : source + width]
        stream.synchronize()
        for memory, model in zip(memories, models, strict=True):
            assert np.array_equal(memory.read(), model)


@pytest.mark.parametrize("semantics", ["ascend", "cuda"])
def test_what_is_held_can_be_given_back_after_a_fault(semantics, blob_bytes):
    with libnpu.open("npu-37xx", semantics=semantics) as device:
        memory, pinned = device.alloc(1024), device.alloc_host(1024)
        model, output = device.load(blob_bytes(addend=1 << 40)), device.alloc(1024)
        device.default_stream.launch(model, {"x": memory}, {"y": output})
        with refused("PAGE_FAULT"):
            device.synchronize()
        with pytest.raises(libnpu.NpuError):
            device.copy(memory, bytes(4))
        for held in (memory, pinned, output):
            held.free()
        device.reset()
        device.copy(device.alloc(4), b"abcd")
