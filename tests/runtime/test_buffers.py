"""Device memory: slices, arrays, DLPack, and what a free does by the semantics and in stream order."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.runtime import buffer as buffer_module
from libnpu.runtime import memory as memory_module

MIB = 1 << 20


@pytest.fixture
def unit():
    with libnpu.open("unit") as opened:
        yield opened


@pytest.fixture
def opened(request):
    with libnpu.open("unit", semantics=request.param) as device:
        yield device


def refused(result):
    return pytest.raises(libnpu.NpuError, match=f"NPU_ERROR_{result}:")


def busy(device):
    """Work of 512 us on memory that is returned with its stream."""
    stream, memory = device.create_stream(), device.alloc(MIB)
    stream.copy(memory, device.alloc(MIB))
    return stream, memory


# ---- parts and arrays -------------------------------------------------------------------------------------------


def test_slices_are_parts_as_of_a_sequence(unit):
    memory = unit.alloc(10)
    memory.write(bytes(range(10)))
    for part in (slice(2, 5), slice(-3, None), slice(None), slice(8, 100), slice(5, 2)):
        assert memory[part].read().tolist() == list(range(10))[part]
        assert len(memory[part]) == len(range(10)[part])
    inner = memory[2:8][1:3]
    assert inner.device_address == memory.device_address + 3
    inner.write(b"ab")
    assert memory.read_bytes(2, 4) == b"\x02ab\x05"
    with refused("INVALID_VALUE"):
        memory[::2]
    with pytest.raises(TypeError, match="slices"):
        memory[0]
    with refused("OUT_OF_RANGE"):
        inner.write(b"abc")
    with refused("OUT_OF_RANGE"):
        memory.at(9, 2)


def test_arrays_in_and_out(unit):
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    memory = unit.to_device(numbers)
    assert memory.size == 24
    assert np.array_equal(memory.read(np.float32, (2, 3)), numbers)
    assert np.asarray(memory).tobytes() == numbers.tobytes()
    assert np.asarray(memory[4:8]).view(np.float32).tolist() == [1.0]
    assert np.asarray(unit.to_device(np.uint8([1, 2])), np.int32).tolist() == [1, 2]
    with pytest.raises(ValueError, match="without a copy"):
        memory.__array__(copy=False)


def test_dlpack_of_device_memory_is_a_copy(unit):
    memory = unit.to_device(np.uint8([1, 2, 3]))
    assert memory.__dlpack_device__() == (12, 0)
    copied = np.from_dlpack(memory, device="cpu", copy=True)
    memory.write(b"\x09")
    assert copied.tolist() == [1, 2, 3]
    with pytest.raises(BufferError):
        np.from_dlpack(memory)


def test_dlpack_tensors_become_device_memory(unit):
    class Elsewhere:
        def __dlpack_device__(self):
            return 2, 0

    memory = unit.primary.from_dlpack(np.arange(3, dtype=np.int64))
    assert memory.read(np.int64).tolist() == [0, 1, 2]
    with refused("NOT_SUPPORTED"):
        unit.primary.from_dlpack(Elsewhere())


def test_with_frees(unit):
    with unit.alloc(8) as memory:
        assert memory.is_live
    with refused("STALE_HANDLE"):
        memory.read()
    with refused("STALE_HANDLE"):
        memory[2:3].read()


@pytest.mark.parametrize("module", [buffer_module, memory_module], ids=lambda module: module.__name__)
def test_examples_in_the_documentation(module, unit):
    results = doctest.testmod(module, extraglobs={"device": unit})
    assert results.attempted > 0
    assert results.failed == 0


# ---- free -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["ascend"], indirect=True)
def test_ascend_frees_at_once_and_the_memory_goes_when_the_work_has_ended(opened):
    stream, memory = busy(opened)
    free, before_ps = opened.memory_info()[0], opened.now_ps
    memory.free()
    assert opened.now_ps - before_ps < 1_000_000
    assert opened.memory_info()[0] == free
    with refused("STALE_HANDLE"):
        memory.read()
    stream.synchronize()
    assert opened.memory_info()[0] == free + MIB


@pytest.mark.parametrize("opened", ["cuda"], indirect=True)
def test_cuda_waits_for_all_work_and_then_frees(opened):
    _, used = busy(opened)
    unused, free = opened.alloc(4096), opened.memory_info()[0]
    before_ps = opened.now_ps
    unused.free()
    assert opened.now_ps - before_ps > 511_000_000
    used.free()
    assert opened.memory_info()[0] == free + MIB + 4096


@pytest.mark.parametrize("opened", ["strict"], indirect=True)
def test_strict_refuses_to_free_memory_in_use(opened):
    stream, used = busy(opened)
    opened.alloc(8).free()
    with refused("IN_USE"):
        used.free()
    assert used.is_live
    stream.synchronize()
    used.free()


@pytest.mark.parametrize("opened", ["strict"], indirect=True)
def test_strict_frees_memory_whose_work_has_ended_by_itself(opened):
    _, used = busy(opened)
    opened.host_delay(1_000_000)
    used.free()


@pytest.mark.parametrize("opened", ["ascend", "cuda", "strict"], indirect=True)
def test_free_async_is_in_stream_order(opened):
    stream, memory = busy(opened)
    before_ps = opened.now_ps
    memory.free_async(stream)
    assert opened.now_ps - before_ps < 1_000_000
    with refused("STALE_HANDLE"):
        memory.read()
    with refused("STALE_HANDLE"):
        memory.free_async(stream)
    memory.free()  # twice is allowed
    free = opened.memory_info()[0]
    stream.synchronize()
    assert opened.memory_info()[0] == free + MIB


def test_alloc_async_waits_for_what_its_stream_is_about_to_free():
    with libnpu.open("unit", compute=False) as device:
        context, stream, free = device.primary, device.create_stream(), device.memory_info()[0]
        large = context.alloc_async(free // 2 + MIB, stream)
        stream.fill(large[:MIB], 1)  # 512 us
        with refused("OUT_OF_DEVICE_MEMORY"):
            context.alloc_async(free // 2 + MIB)
        large.free_async(stream)
        before_ps = device.now_ps
        again = context.alloc_async(free // 2 + MIB, stream)
        assert device.now_ps - before_ps > 511_000_000
        stream.fill(again[:64], 2)
        stream.synchronize()


def test_asynchronous_memory_of_another_contexts_stream_is_refused(unit):
    with unit.create_context() as other:
        stream = other.create_stream()
        with refused("WRONG_CONTEXT"):
            unit.primary.alloc_async(8, stream)
        with refused("WRONG_CONTEXT"):
            unit.alloc(8).free_async(stream)
        stream.close()
        with refused("STALE_HANDLE"):
            other.alloc_async(8, stream)


def test_freed_memory_is_poison_for_its_next_owner(unit):
    memory = unit.alloc(4096)
    memory.write(bytes(4096))
    free = unit.memory_info()[0]
    memory.free()
    again = unit.alloc(4096)
    assert unit.memory_info()[0] == free  # it is the same memory
    assert set(again.read().tolist()) == {0xFF}


def test_a_use_after_free_does_not_meet_the_next_owner(unit):
    context, stream = unit.primary, unit.create_stream()
    old = unit.alloc(4096)
    part, address = old[1024:2048], old.device_address + 1024
    old.free()
    owners = [unit.to_device(np.full(4096, i, np.uint8)) for i in range(64)]
    for use in (
        lambda: context.find(address),
        lambda: context.buffer_at(address, 4),
        lambda: stream.fill(part, 9),
        lambda: stream.copy(owners[0], part),
        lambda: part.read(),
        lambda: old.free_async(stream),
    ):
        with refused("STALE_HANDLE"):
            use()
    old.free()  # twice is allowed, and frees nobody's
    assert [owner.read().tolist() == [i] * 4096 for i, owner in enumerate(owners)] == [True] * 64


@pytest.mark.parametrize("asynchronous", [False, True])
def test_addresses_are_used_again_in_the_order_of_the_frees(unit, asynchronous):
    stream = unit.create_stream()
    addresses = []
    for _ in range(130):
        memory = unit.primary.alloc_async(4096, stream) if asynchronous else unit.alloc(4096)
        stream.fill(memory, 1)
        addresses.append(memory.device_address)
        if asynchronous:
            memory.free_async(stream)
            stream.synchronize()
        else:
            stream.synchronize()
            memory.free()
    assert len(set(addresses[:65])) == 65
    assert addresses[65:] == addresses[:65]


def test_a_launch_after_memory_was_freed_and_allocated_at_the_same_place(device, blob_bytes, alloc_again):
    model, stream = device.load(blob_bytes()), device.create_stream()
    x, y = device.alloc(1024), device.alloc(1024)
    x.write(bytes(1024))
    stream.launch(model, {"x": x}, {"y": y}).wait()
    x = alloc_again(device, x)
    x.write(bytes([3]) * 1024)
    stream.launch(model, {"x": x}, {"y": y}).wait()
    assert set(y.read().tolist()) == {3}
    assert C.NPU_OP_FREE == 11
