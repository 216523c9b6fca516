"""Memory that the device does not snoop: what a program forgets to flush and to invalidate, and lines that are shared."""

import json

import numpy as np
import pytest
from npu_abi import C

NON_COHERENT = int(C.NPU_HOST_NON_COHERENT)


def made(device):
    return device.create_stream(), device.alloc(4096), device.alloc_host(4096, NON_COHERENT)


def not_flushed(device, fixed=False):
    stream, memory, pinned = made(device)
    pinned.array[:] = 1
    if fixed:
        pinned.flush()
    stream.copy(memory, pinned)
    stream.synchronize()


def flushed_too_late(device, fixed=False):
    stream, memory, pinned = made(device)
    pinned.array[:] = 1
    if fixed:
        pinned.flush()
    stream.copy(memory, pinned)
    pinned.flush()
    stream.synchronize()


def flushed_in_part(device, fixed=False):
    stream, memory, pinned = made(device)
    pinned.array[:] = 1
    pinned.flush(0, 4033 if fixed else 4032)  # lines of 64 bytes, whole
    stream.copy(memory, pinned)
    stream.synchronize()


def not_invalidated(device, fixed=False):
    stream, memory, pinned = made(device)
    stream.fill(memory, 1)
    stream.copy(pinned, memory)
    stream.synchronize()
    if fixed:
        pinned.invalidate()
    pinned.array.sum()


def invalidated_before(device, fixed=False):
    stream, memory, pinned = made(device)
    stream.fill(memory, 1)
    pinned.invalidate()
    stream.copy(pinned, memory)
    stream.synchronize()
    if fixed:
        pinned.invalidate()
    pinned.array.sum()


def invalidated_while_the_device_writes(device, fixed=False):
    stream, memory, pinned = made(device)
    stream.fill(memory, 1)
    stream.copy(pinned, memory)
    if fixed:
        stream.synchronize()
    pinned.invalidate()
    stream.synchronize()
    pinned.array.sum()


def cleared_before(device, fixed=False):
    stream, memory, pinned = made(device)
    stream.fill(memory, 1)
    pinned.array[:] = 0
    if fixed:
        pinned.flush()
    stream.copy(pinned, memory)
    stream.synchronize()
    pinned.invalidate()
    pinned.array.sum()


def beside_it_in_a_line(device, fixed=False):
    stream, memory, pinned = made(device)
    stream.fill(memory, 1)
    stream.copy(pinned[:32], memory[:32])
    pinned.array[64 if fixed else 32] = 7
    stream.synchronize()


def beside_it_in_a_stale_line(device, fixed=False):
    stream, memory, pinned = made(device)
    stream.fill(memory, 1)
    stream.copy(pinned[:32], memory[:32])
    stream.synchronize()
    if fixed:
        pinned.invalidate(0, 32)
    pinned.array[32] = 7
    pinned.flush()
    pinned.invalidate()
    pinned.array[:32].sum()


def in_the_other_direction(device, fixed=False):
    memory = device.to_device(bytes(4096))
    with memory.map(int(C.NPU_BIDIRECTIONAL if fixed else C.NPU_TO_DEVICE)) as mapping:
        mapping.invalidate()


def unmapped_in_flight(device, fixed=False):
    stream, memory = device.create_stream(), device.alloc(1 << 20)
    mapping = memory.map()
    stream.fill(memory, 1)
    if fixed:
        stream.synchronize()
    try:
        mapping.unmap()
    finally:
        stream.synchronize()


def read_by_a_kernel(device, fixed=False):
    stream, memory, pinned = made(device)
    pinned.array.view(np.float32)[:] = 1
    if fixed:
        pinned.flush()
    device.kernel("relu").launch(stream, pinned, memory, 1024)
    stream.synchronize()


@pytest.mark.parametrize(
    ("program", "rule", "lines"),
    [
        (not_flushed, "MISSING-FLUSH", [2, 5]),
        (flushed_too_late, "MISSING-FLUSH", [2, 5]),
        (flushed_in_part, "MISSING-FLUSH", [2, 4]),
        (read_by_a_kernel, "MISSING-FLUSH", [2, 5]),
        (not_invalidated, "MISSING-INVALIDATE", [3, 7]),
        (invalidated_before, "INVALIDATE-TOO-EARLY", [3, 4, 8]),
        (invalidated_while_the_device_writes, "INVALIDATE-TOO-EARLY", [3, 6, 8]),
        (cleared_before, "DIRTY-OVER-DMA", [3, 6]),
        (beside_it_in_a_line, "LINE-SHARED", [3, 4]),
        (beside_it_in_a_stale_line, "LINE-SHARED", [3, 7]),
        (in_the_other_direction, "DIR-MISMATCH", [3]),
        (unmapped_in_flight, "UNMAP-IN-FLIGHT", [3, 7]),
    ],
)
def test_the_wrong_program_is_reported_at_its_lines_and_the_right_one_is_not(found, program, rule, lines):
    def tolerant(device, fixed=False):
        try:
            program(device, fixed)
        except Exception:  # an unmap that is refused
            assert program is unmapped_in_flight

    tolerant.__wrapped__ = program
    assert found(tolerant) == [(rule, lines)]
    assert found(tolerant, True) == []


def test_right_programs(found):
    """Rounds over the same memory, bytes that are stored one by one, discarded stores, and kinds of memory that need nothing."""

    def program(device):
        stream, memory, pinned = made(device)
        for number in range(3):
            array = pinned.array
            for byte in range(4096 - 3, 4096):
                array[byte] = number
            array[:4093] = number
            pinned.flush()
            stream.copy(memory, pinned)
            stream.fill(memory[:64], 9)
            stream.copy(pinned[:2048], memory[:2048])
            stream.synchronize()
            pinned.invalidate(0, 2048)
            assert (int(array[0]), int(array[64]), int(array[4095])) == (9, number, number)
        pinned.array[:] = 5
        pinned.invalidate()  # discards it
        stream.copy(pinned, memory)
        stream.synchronize()
        pinned.invalidate()
        pinned.read()
        for flags in (C.NPU_HOST_WRITE_COMBINED, C.NPU_HOST_CACHED):
            other = device.alloc_host(4096, int(flags))
            other.array[:] = 1
            stream.copy(memory, other)
            stream.copy(other, memory)
            stream.synchronize()
            other.array.sum()

    assert found(program) == []


def test_mappings_of_a_board_without_snooping(found):
    def program(device, fixed=False):
        stream, memory = device.create_stream(), device.alloc(4096)
        with memory.map() as mapping:
            mapping.array[:] = 1
            if fixed:
                mapping.flush()
            stream.fill(memory[2048:], 2)
            stream.synchronize()
            if fixed:
                mapping.invalidate()
            mapping.array.sum()

    params = {"module_params": "coherent=0"}
    assert found(program, **params) == [("DIRTY-OVER-DMA", [3, 6]), ("MISSING-INVALIDATE", [6, 10])]
    assert found(program, True, **params) == []
    assert found(program) == []


IN_C = """
#include <npu.h>
#include <string.h>
int main(int argc, char **argv)
{
    void *pinned, *memory;
    npu_init(0);
    npu_malloc_host(&pinned, 4096, NPU_HOST_NON_COHERENT);
    npu_malloc(&memory, 4096, 0);
    memset(pinned, 1, 4096);
    if (argc > 1)
        npu_flush(pinned, 0, 4096);
    npu_memcpy_async(memory, 4096, pinned, 4096, NPU_MEMCPY_DEFAULT, 0);
    npu_synchronize_device();
    return 0;
}
"""


def test_stores_of_c_are_found_by_what_memory_does_not_have(npu, compiled, tmp_path):
    program = compiled("stores", IN_C)
    npu("check", "--json", "-o", tmp_path / "found", "--", program)
    (record,) = json.loads((tmp_path / "found").read_text())
    assert (record["rule"], [act["site"].rpartition(":")[2] for act in record["acts"]]) == ("MISSING-FLUSH", ["13"])
    assert npu("check", "--", program, "fixed")[0] == 0
