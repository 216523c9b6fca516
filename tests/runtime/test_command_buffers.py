"""Command buffers and their submits: the short way of a launch alone writes what the long way writes."""

from __future__ import annotations

import numpy as np

from libnpu.runtime.command_formats import FENCE, SIGNAL
from libnpu.runtime.commands import CommandWriter


def test_a_launch_alone_is_packed_as_a_command_writer_packs_it(device, blob_bytes):
    module, stream = device.load(blob_bytes()), device.create_stream()
    x, y = device.alloc(1024), device.alloc(1024)
    for dynamic in (False, True):
        job = stream.launch(module, {"x": x}, {"y": y}, dynamic=dynamic)
        writer = CommandWriter(stream.context, job, job.bo)
        job.operation.encode(writer)
        writer.command(FENCE.pack(SIGNAL, FENCE.size, stream._cell.offset, job.number))
        content = writer.pack()
        assert bytes(job.bo.view[: len(content)]) == content
        segment = writer.segment(stream.preemption_buffer())
        assert (job.segment, job.preempt_index, job.commands_offset) == (segment, 1, writer.commands_offset)
        stream.synchronize()


def test_memory_that_takes_the_place_of_freed_memory_is_what_a_launch_holds(device, blob_bytes):
    module, stream = device.load(blob_bytes()), device.create_stream()
    y = device.alloc(1024)
    for start in range(3):
        x = device.alloc(1024)  # at the address of the one before
        x.write((np.arange(1024) + start).astype(np.uint8))
        job = stream.launch(module, {"x": x}, {"y": y})
        assert job.touches(x.handle)
        stream.synchronize()
        assert y.read_bytes(0, 3) == bytes([start, start + 1, start + 2])
        x.free()


def test_the_same_copy_again_reads_what_is_there_now_and_memory_that_is_gone_is_not_read(device, alloc_again):
    stream = device.create_stream()
    host, there = device.alloc_host(64), device.alloc(64)
    view = np.asarray(host)
    for value in (1, 2, 3):
        view[:] = value
        stream.copy(there, host)
        stream.synchronize()
        assert there.read_bytes(0, 64) == bytes([value]) * 64
    again = alloc_again(device, there)
    view[:] = 9
    stream.copy(again, host)
    stream.synchronize()
    assert again.read_bytes(0, 64) == b"\x09" * 64


def test_the_enqueue_site_is_the_line_of_the_program(device, blob_bytes):
    module, stream = device.load(blob_bytes()), device.create_stream()
    x, y = device.alloc(1024), device.alloc(1024)
    line = test_the_enqueue_site_is_the_line_of_the_program.__code__.co_firstlineno
    job = stream.launch(
        module,
        {"x": x},
        {"y": y},
    )
    assert job.site == f"{__file__}:{line + 4}"
    event = device.create_event()
    event.record(stream)
    assert stream.last_job.site == f"{__file__}:{line + 11}"
    stream.synchronize()


def test_the_same_text_in_two_files_has_sites_in_both(device):
    names, sites = {"stream": device.create_stream(), "memory": device.alloc(64)}, []
    for file in ("one.py", "two.py"):
        exec(compile("\njob = stream.fill(memory, 1)", file, "exec"), names)
        sites.append(names["job"].site)
    assert sites == ["one.py:2", "two.py:2"]
