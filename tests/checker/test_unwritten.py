"""Reads of pinned and mapped memory that nobody has written, by what is in it: poison."""

import numpy as np
import pytest


def looked_at(device):
    device.alloc_host(64).array.sum()


def copied(device):
    stream, pinned, memory = device.create_stream(), device.alloc_host(64), device.alloc(64)
    pinned.array[:16] = 1
    stream.copy(memory, pinned)
    stream.synchronize()


def mapped(device):
    memory = device.alloc(64)
    memory.map().array.sum()


@pytest.mark.parametrize(("program", "line", "start"), [(looked_at, 1, 0), (copied, 3, 16), (mapped, 2, 0)])
def test_what_has_the_bytes_of_fresh_memory_and_was_not_seen_to_be_written_is_a_warning(
    records_of, program, line, start
):
    (record,) = records_of(program)
    assert (record["rule"], record["certain"], record["bytes"]) == ("UNINIT", False, [start, 64])
    assert [act["site"] for act in record["acts"]] == [line]


def test_what_may_have_been_written_unseen_or_is_written_by_work_is_not_reported(found):
    def program(device):
        stream, memory = device.create_stream(), device.to_device(bytes(64))
        past, poison, copied, mapped = (device.alloc_host(64) for _ in range(4))
        memoryview(past.array)[:4] = b"abcd"
        poison.array[:] = 255
        for source in (past, poison):
            stream.copy(memory, source)
        stream.copy(copied, memory)
        stream.synchronize()
        assert int(copied.array[0]) == 255
        mapped = memory.map()
        mapped.array.sum()
        mapped.array[:] = np.uint8(1)

    assert found(program) == []
