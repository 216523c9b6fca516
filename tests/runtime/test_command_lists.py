"""Command lists: many operations, one job."""

import numpy as np
import pytest
from npu_abi import C

from libnpu.errors import Unsupported


def first(buffer):
    return float(buffer.read(np.float32)[0])


def test_a_list_is_one_job_of_its_stream_and_runs_in_order(device, context, add, floats):
    x, y, z = floats(2.0), floats(3.0), floats(0.0)
    commands = context.create_command_list()
    commands.append(add, x, y, z, 256)  # 5
    commands.append(add, z, y, z, 256)  # 8
    commands.append_copy(x, z)  # 8
    commands.append_fill(y.at(0, 4), 0)  # 0, in its first value only
    commands.append(add, x, y, z, 256)  # 8, then 11
    commands.close()
    stream = context.create_stream()
    before = device.counters()["DOORBELLS"]
    commands.submit(stream).wait()
    assert device.counters()["DOORBELLS"] - before == 1
    assert z.read(np.float32)[:2].tolist() == [8.0, 11.0]
    assert stream.fence == 1


def test_it_can_be_submitted_any_number_of_times_and_reads_memory_each_time(context, add, floats):
    x, y, z = floats(1.0), floats(1.0), floats(0.0)
    commands = context.create_command_list()
    commands.append(add, z, x, z, 256)
    commands.close()
    stream = context.create_stream()
    for _ in range(5):
        commands.submit(stream)
    stream.synchronize()
    assert first(z) == 5.0
    x.write(y.read(np.float32) * 10)
    commands.submit(stream).wait()
    assert first(z) == 15.0


def test_a_model_in_a_list_has_task_lists_of_its_own(context, blob_bytes):
    module = context.load(blob_bytes(nbytes=64))
    stream = context.create_stream()
    a, b, c, d = (context.alloc(64) for _ in range(4))
    for buffer, value in ((a, 1), (b, 2), (c, 3), (d, 4)):
        buffer.write(np.full(64, value, np.uint8))
    commands = context.create_command_list()
    commands.append_launch(module, {"x": a}, {"y": b})
    commands.append(module["copy"], b, c)
    commands.close()
    stream.launch(module, {"x": d}, {"y": a}).wait()  # binds another instance
    commands.submit(stream).wait()
    assert [int(buffer.read()[0]) for buffer in (a, b, c, d)] == [4, 4, 4, 4]


def test_states(context, add, floats, refused):
    x = floats(1.0)
    commands = context.create_command_list()
    refused(C.NPU_ERROR_BAD_STATE, commands.submit)
    commands.append(add, x, x, x, 256)
    commands.close()
    refused(C.NPU_ERROR_BAD_STATE, commands.close)
    refused(C.NPU_ERROR_BAD_STATE, commands.append, add, x, x, x, 256)
    commands.submit()
    refused(C.NPU_ERROR_IN_USE, commands.reset)
    context.synchronize()
    commands.reset()
    assert len(commands) == 0
    commands.append(add, x, x, x, 256)
    commands.close()
    commands.submit().wait()
    assert first(x) == 4.0
    commands.destroy()
    commands.destroy()
    refused(C.NPU_ERROR_STALE_HANDLE, commands.submit)


def test_an_empty_list_does_nothing(context):
    commands = context.create_command_list()
    commands.close()
    commands.submit().wait()


def test_a_list_in_flight_is_not_submitted_to_another_stream(context, add, floats, refused):
    x = floats(1.0)
    one, other = context.create_stream(), context.create_stream()
    commands = context.create_command_list()
    commands.append(add, x, x, x, 256)
    commands.close()
    commands.submit(one)
    commands.submit(one)
    refused(C.NPU_ERROR_IN_USE, commands.submit, other)
    one.synchronize()
    commands.submit(other).wait()
    assert first(x) == 8.0


def test_freed_memory_and_foreign_streams_are_refused_at_the_submit(device, context, add, floats, refused):
    x, y = floats(1.0), floats(1.0)
    commands = context.create_command_list()
    commands.append(add, x, y, y, 256)
    commands.close()
    with device.create_context() as other:
        refused(C.NPU_ERROR_WRONG_CONTEXT, commands.submit, other.create_stream())
        refused(C.NPU_ERROR_WRONG_CONTEXT, other.create_command_list().append, add, x, y, y, 256)
    x.free()
    refused(C.NPU_ERROR_STALE_HANDLE, commands.submit)
    context.synchronize()


def test_a_module_in_a_list_stays_loaded(context, blob_bytes, refused):
    module = context.load(blob_bytes(nbytes=64))
    a, b = context.alloc(64), context.alloc(64)
    commands = context.create_command_list()
    commands.append(module["copy"], a, b)
    error = refused(C.NPU_ERROR_IN_USE, module.unload)
    assert "1 command lists or graphs launch 'copy'" in str(error)
    commands.reset()
    module.unload()


def test_a_list_that_is_forgotten_holds_nothing(context, blob_bytes):
    module = context.load(blob_bytes(nbytes=64))
    a, b = context.alloc(64), context.alloc(64)
    commands = context.create_command_list()
    commands.append(module["copy"], a, b)
    del commands
    module.unload()


def test_wrong_arguments_append_nothing(context, add, floats, refused):
    x = floats(1.0)
    commands = context.create_command_list()
    refused(C.NPU_ERROR_ARG_COUNT, commands.append, add, x, x, x)
    refused(C.NPU_ERROR_ARG_KIND, commands.append, add, 1, x, x, 256)
    with pytest.raises(Unsupported):
        commands.append_copy(x, np.zeros(4, np.float32))
    refused(C.NPU_ERROR_OUT_OF_RANGE, commands.append_copy, x.at(512), floats(0.0))
    assert len(commands) == 0


def test_a_list_holds_one_mebibyte_of_commands(context, floats, refused):
    """A KERNEL_LAUNCH has 48 bytes, a COPY 24: the limit is set down to what a test can reach."""
    from libnpu.runtime import command_list

    x, y = floats(1.0), floats(2.0)
    room = command_list.HEADER.size + command_list.SUBMIT_FENCES * 24
    assert command_list.MAX_BUFFER_BYTES == 1 << 20
    before = command_list.MAX_BUFFER_BYTES
    command_list.MAX_BUFFER_BYTES = room + 3 * 24
    try:
        commands = context.create_command_list()
        for _ in range(3):
            commands.append_copy(x, y)
        error = refused(C.NPU_ERROR_OUT_OF_RESOURCES, commands.append_copy, x, y)
        assert "96 bytes of commands in one job; 72 are allowed" in str(error)
        assert len(commands) == 3
    finally:
        command_list.MAX_BUFFER_BYTES = before


def test_a_large_list_fits_the_firmware(context, floats):
    x, y = floats(1.0), floats(2.0)
    commands = context.create_command_list()
    for _ in range(100):
        commands.append_copy(x.at(0, 64), y.at(64, 64))
    commands.close()
    commands.submit().wait()
    assert first(x) == 2.0


def test_a_failure_ends_the_list_and_names_the_site(context, blob_bytes, refused):
    good, bad = context.load(blob_bytes(nbytes=64)), context.load(blob_bytes(nbytes=64, deadlock=True, name="stuck"))
    a, b, c = (context.alloc(64) for _ in range(3))
    c.write(np.full(64, 7, np.uint8))
    commands = context.create_command_list()
    commands.append(bad["stuck"], a, b)
    commands.append(good["copy"], a, c)
    commands.close()
    job = commands.submit()
    error = refused(C.NPU_ERROR_BARRIER_DEADLOCK, job.wait)
    assert error.operation == "command list"
    assert "test_command_lists.py" in error.enqueue_site
    assert int(c.read()[0]) == 7
