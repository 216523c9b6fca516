"""Each rule: a wrong program of a few lines and the right one, the two places that the report must name, and silence."""

import inspect
import mmap

import numpy as np
import pytest

import libnpu
from libnpu.checker import rules
from libnpu.checker.allocations import Allocation
from libnpu.checker.findings import Findings
from libnpu.checker.shadow import Shadow
from libnpu.checker.steps import Act


def found(program, **options):
    """Return what is found in `program(device)`: [(rule, lines of the acts, counted from the first of the program)]."""
    with libnpu.check() as checker, libnpu.open("npu-37xx", **options) as device:
        program(device)
    first = inspect.getsourcelines(program)[1]
    return [
        (record["rule"], [int(act["site"].rpartition(":")[2]) - first for act in record["acts"] if act["site"]])
        for record in checker.records()
    ]


def read_before_synchronise(device, fixed=False):
    stream, memory, pinned = device.create_stream(), device.alloc(4096), device.alloc_host(4096)
    stream.fill(memory, 1)
    stream.copy(pinned, memory)
    if fixed:
        stream.synchronize()
    pinned.array.sum()


def source_overwritten(device, fixed=False):
    stream, memory, pinned = device.create_stream(), device.alloc(4096), device.alloc_host(4096)
    pinned.array[:] = 1
    stream.copy(memory, pinned)
    if fixed:
        stream.synchronize()
    pinned.array[:] = 2


def filled_in_a_race(device, fixed=False):
    stream, pinned = device.create_stream(), device.alloc_host(4096)
    stream.fill(pinned, 0xA5)
    if fixed:
        stream.synchronize()
    pinned.array[:] = 1


def other_stream_reads(device, fixed=False):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    memory, result = device.alloc(4096), device.alloc(4096)
    one.fill(memory, 1)
    event.record(one)
    if fixed:
        two.wait_event(event)
    two.copy(result, memory)


def other_stream_overwrites(device, fixed=False):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    memory, result = device.to_device(np.ones(4096, np.uint8)), device.alloc(4096)
    one.copy(result, memory)
    event.record(one)
    if fixed:
        two.wait_event(event)
    two.fill(memory, 2)


def kernels_of_two_streams(device, fixed=False):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    x, y, z = device.to_device(np.ones(1024, np.float32)), device.alloc(4096), device.alloc(4096)
    device.kernel("relu").launch(one, x, y, 1024)
    event.record(one)
    if fixed:
        two.wait_event(event)
    device.kernel("relu").launch(two, y, z, 1024)


def freed_in_use(device, fixed=False):
    stream, memory = device.create_stream(), device.alloc(1 << 20)
    stream.fill(memory, 1)
    if fixed:
        stream.synchronize()
    memory.free()


def freed_in_the_order_of_another_stream(device, fixed=False):
    one, two, memory = device.create_stream(), device.create_stream(), device.alloc(1 << 20)
    one.fill(memory, 1)
    memory.free_async(one if fixed else two)


def used_beside_the_stream_that_allocates(device, fixed=False):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    memory = device.primary.alloc_async(4096, one)
    event.record(one)
    if fixed:
        two.wait_event(event)
    two.fill(memory, 1)
    memory.free_async(two)


def filled_in_its_stream_and_read_in_another(device, fixed=False):
    one, two, event, result = device.create_stream(), device.create_stream(), device.create_event(), device.alloc(4096)
    memory = device.primary.alloc_async(4096, one)
    one.fill(memory, 1)
    event.record(one)
    if fixed:
        two.wait_event(event)
    two.copy(result, memory)
    two.synchronize()
    one.synchronize()
    memory.free()


def written_by_the_host_at_once(device, fixed=False):
    stream = device.create_stream()
    with device.primary.alloc_async(4096, stream) as memory:
        if fixed:
            stream.synchronize()
        memory.write(bytes(4096))


def freed_beside_the_stream_that_allocates(device, fixed=False):
    one, two = device.create_stream(), device.create_stream()
    memory = device.primary.alloc_async(4096, one)
    memory.free_async(one if fixed else two)


def freed_in_its_stream_while_another_uses_it(device, fixed=False):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    memory = device.primary.alloc_async(4096, one)
    one.fill(memory, 1)
    event.record(one)
    two.wait_event(event)
    two.fill(memory, 2)
    event.record(two)
    if fixed:
        one.wait_event(event)
    memory.free_async(one)


def tail_never_written(device, fixed=False):
    stream, memory, pinned = device.create_stream(), device.alloc(4096), device.alloc_host(4096)
    stream.fill(memory if fixed else memory[:2048], 1)
    stream.copy(pinned, memory)
    stream.synchronize()


def waits_for_nothing(device, fixed=False):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    if fixed:
        event.record(one)
    two.wait_event(event)


def reset_before_the_wait(device, fixed=False):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    event.record(one)
    if not fixed:
        event.reset()
    two.wait_event(event)
    event.reset()


def reset_before_the_query(device, fixed=False):
    stream, event = device.create_stream(), device.create_event()
    event.record(stream)
    if fixed:
        stream.synchronize()
    event.reset()
    assert event.query()


def waits_behind_a_reset_in_time(device, fixed=False):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    event.record(one)
    event.synchronize()
    event.reset()
    if fixed:
        event.record(one)
    two.wait_event(event)


def nobody_asks(device, fixed=False):
    stream = device.create_stream()
    stream.add_host_function(int, "no number")
    try:
        stream.synchronize()
    except libnpu.NpuError:
        if not fixed:
            stream.add_host_function(int, "none either")


CASES = [
    (read_before_synchronise, "HD-RAW", [3, 6]),
    (source_overwritten, "HD-WAR", [3, 6]),
    (filled_in_a_race, "HD-WAW", [2, 5]),
    (other_stream_reads, "XS-RAW", [3, 7]),
    (other_stream_overwrites, "XS-WAR", [3, 7]),
    (kernels_of_two_streams, "XS-RAW", [3, 7]),
    (freed_in_use, "FREE-IN-USE", [2, 5]),
    (freed_in_the_order_of_another_stream, "FREE-IN-USE", [2, 3]),
    (used_beside_the_stream_that_allocates, "XS-WAW", [2, 6]),
    (filled_in_its_stream_and_read_in_another, "XS-RAW", [3, 7]),
    (written_by_the_host_at_once, "HD-WAW", [2, 5]),
    (freed_beside_the_stream_that_allocates, "FREE-IN-USE", [2, 3]),
    (freed_in_its_stream_while_another_uses_it, "FREE-IN-USE", [6, 10]),
    (tail_never_written, "UNINIT", [3]),
    (waits_for_nothing, "WAIT-UNRECORDED", [4]),
    (waits_behind_a_reset_in_time, "WAIT-UNRECORDED", [4, 7]),
    (reset_before_the_wait, "EVENT-EARLY-RESET", [2, 4, 5]),
    (reset_before_the_query, "EVENT-EARLY-RESET", [2, 5, 6]),
    (nobody_asks, "LOST-ASYNC-ERROR", [7]),
]


@pytest.mark.parametrize(("program", "rule", "lines"), CASES)
def test_the_wrong_program_is_reported_at_its_lines_and_the_right_one_is_not(program, rule, lines):
    assert found(program) == [(rule, lines)]
    assert found(lambda device: program(device, fixed=True)) == []


def test_a_record_that_another_one_took_the_place_of():
    def program(device):
        one, two, three, event = *(device.create_stream() for _ in range(3)), device.create_event()
        x, y, result = (device.alloc(256) for _ in range(3))
        one.fill(x, 1)
        event.record(one)
        two.fill(y, 2)
        event.record(two)
        three.wait_event(event)
        three.copy(result, x)
        three.copy(result, y)

    assert found(program) == [("XS-RAW", [3, 8]), ("EVENT-OVERWRITTEN", [4, 6])]


def test_right_programs_that_look_wrong():
    """Query loops, streams for chunks, events as snapshots, the null stream, disjoint parts, memory that is used again."""

    def program(device):
        streams = [device.create_stream() for _ in range(3)]
        memory, pinned = device.alloc(3 * 4096), device.alloc_host(3 * 4096)
        pinned.array[:] = np.arange(3 * 4096) % 251
        for number, stream in enumerate(streams):
            part = slice(4096 * number, 4096 * number + 4096)
            stream.copy(memory[part], pinned[part])
            stream.copy(pinned[part], memory[part])
        while not all(stream.query() for stream in streams):
            device.host_delay(100)
        assert int(pinned.array[250]) == 250
        event = device.create_event()
        streams[0].fill(memory, 1)
        event.record(streams[0])
        streams[0].copy(pinned[:64], memory[:64])  # behind the snapshot
        event.synchronize()
        assert memory.read()[0] == 1
        device.synchronize()
        for number in range(4):
            with device.alloc(4096) as scratch:
                streams[number % 3].fill(scratch, number)
                streams[number % 3].synchronize()
        columns = device.alloc(4096)
        device.primary.fill(columns, 0)
        for half in (0, 1):
            streams[half].copy_2d(columns[half * 32 :], 64, memory[: 32 * 64], 32, 32, 64)
        for stream in streams:
            stream.synchronize()
        columns.read()

    assert found(program) == []


def test_an_abort_is_the_end_of_the_work_and_no_error_that_was_missed():
    def program(device):
        stream, pinned = device.create_stream(), device.alloc_host(64)
        stream.fill(pinned, 1)
        stream.abort()
        pinned.array[:] = 2

    assert found(program) == []


def test_what_a_host_function_tells_another_thread():
    """A flag of the program's own says that a result is there; work of other streams is in no order with it."""

    def program(device, behind=True):
        stream, other, memory = device.create_stream(), device.create_stream(), device.to_device(bytes(64))
        pinned, sums, told = device.alloc_host(64), device.alloc_host(64), []
        result, own = pinned.array, sums.array

        def tell():
            own[0] = 1
            told.append(True)

        stream.copy(pinned, memory)
        (stream if behind else other).add_host_function(tell)
        while not told:
            device.host_delay(1000)
        result.sum()
        own[0] += 1

    assert found(program) == []
    assert [rule for rule, _ in found(lambda device: program(device, behind=False))] == ["HD-RAW"]


@pytest.mark.parametrize("waits", [False, True])
def test_what_is_right_only_if_a_host_function_has_told_the_host_is_known(waits):
    with libnpu.check() as checker, libnpu.open("unit") as device:
        pinned, stream, other = device.alloc_host(4), device.create_stream(), device.create_stream()
        stream.add_host_function(pinned.array.fill, 1)
        other.fill(device.alloc(4), 1)
        (stream if waits else other).synchronize()
        pinned.array.sum()
    assert (checker.records(), checker.relies_on_telling) == ([], not waits)


def test_host_functions_of_two_streams_are_in_no_order(found):
    def program(device):
        pinned = device.alloc_host(4)
        first, second = device.create_stream(), device.create_stream()
        first.add_host_function(pinned.array.fill, 1)
        second.add_host_function(pinned.array.fill, 2)
        device.synchronize()

    assert found(program) == [("XS-WAW", [3, 4])]


@pytest.mark.parametrize("schedule", ["timed", "eager", "lazy", "newest-first", "seed:1"])
def test_a_host_function_and_the_host_are_in_the_order_of_the_program(records_of, monkeypatch, schedule):
    monkeypatch.setenv("NPU_SCHEDULE", schedule)

    def program(device, writes):
        stream, pinned = device.create_stream(), device.alloc_host(64)
        array = pinned.array

        def function():
            if writes:
                array[:] = 1
            else:
                array.sum()

        stream.add_host_function(function)
        if writes:
            array.sum()
        else:
            array[:] = 2
        stream.synchronize()

    for writes, rule, act in ((True, "HD-RAW", "look at an array"), (False, "HD-WAR", "store to an array")):
        (record,) = records_of(program, writes)
        assert record["rule"] == rule
        fix = f"wait for the host function in stream 1 before the {act}: synchronise stream 1, or an event recorded behind it"
        assert record["fix"] == fix


def test_a_later_write_hides_no_pair():
    def by_host(device):
        stream, pinned = device.create_stream(), device.alloc_host(64)
        stream.fill(pinned, 7)
        pinned.array.sum()
        pinned.array[:] = 1
        stream.synchronize()

    def by_streams(device):
        one, two, three = (device.create_stream() for _ in range(3))
        memory, result = device.to_device(bytes(64)), device.alloc(64)
        one.copy(result, memory)
        two.fill(memory, 1)
        three.fill(memory, 2)

    assert found(by_host) == [("HD-RAW", [2, 3]), ("HD-WAW", [2, 4])]
    assert found(by_streams) == [("XS-WAR", [3, 4]), ("XS-WAR", [3, 5]), ("XS-WAW", [4, 5])]


def test_pairs_of_calls_are_found_however_often_they_are_made():
    """What the checker keeps of some bytes is bounded by the calls of the program that touch them."""

    def program(device):
        one, two, three = (device.create_stream() for _ in range(3))
        memory, result = device.to_device(bytes(64)), device.alloc(64)
        for _ in range(40):
            one.copy(result, memory)
        for _ in range(40):
            one.copy_2d(result, 8, memory, 8, 8, 8)
        two.fill(memory, 1)
        three.synchronize()

    assert found(program) == [("XS-WAR", [4, 7]), ("XS-WAR", [6, 7])]


def test_two_interleaved_halves_are_disjoint_and_overlapping_ones_are_not():
    def program(device, shift=0):
        one, two = device.create_stream(), device.create_stream()
        source, target = device.to_device(np.zeros(4096, np.uint8)), device.alloc(4096)
        one.copy_2d(target, 64, source, 32, 32, 64)
        two.copy_2d(target[32 - shift :], 64, source, 32, 32, 64)

    assert found(program) == []
    assert [rule for rule, _ in found(lambda device: program(device, 1))] == ["XS-WAW"]


def test_a_device_without_values_cannot_be_checked():
    with (
        libnpu.check(),
        libnpu.open("unit", compute=False) as device,
        pytest.raises(libnpu.NpuError, match="no values"),
    ):
        device.alloc(64)


def test_a_kernel_that_leaves_its_memory(monkeypatch):
    """Built-in kernels are asked for the bytes that they touch; here nobody asks, as for a program of one's own."""
    unchecked = lambda kernel, arguments, _: kernel.packed_launch(*kernel.pack(arguments), 1)  # noqa: E731
    monkeypatch.setattr("libnpu.runtime.builtin.BuiltinKernel.operation", unchecked)

    def program(device, size=4000):
        stream, x, y = device.create_stream(), device.to_device(np.ones(1024, np.float32)), device.alloc(size)
        device.kernel("relu").launch(stream, x, y, 1024)
        stream.synchronize()

    assert found(program) == [("OOB", [2])]
    assert found(lambda device: program(device, 4096)) == []


def test_a_kernel_whose_parts_leave_its_memory_one_by_one():
    """The report is of all that they touch, and so is the fix."""
    act = Act("kernel", "stream 1", "kernel.py:1", 1, 0)
    memory, found = Allocation(0, act, Shadow(64), 1), Findings()
    for start in range(64, 128, 8):
        found.add(rules.out_of_bounds(memory, start, start + 8, act))
    (finding,) = found
    assert finding.message == "kernel in stream 1 touches bytes 64 to 128 of an allocation of 64 bytes"
    assert finding.fix == "make the allocation 64 bytes larger, or the access smaller"


def test_what_a_function_of_a_library_touches_is_where_it_was_enqueued():
    def program(device):
        stream, other, pinned = device.create_stream(), device.create_stream(), device.alloc_host(256)
        stream.fill(pinned, 1)
        other.add_host_function(np.copyto, pinned.array, 2)
        device.synchronize()

    assert found(program) == [("XS-WAW", [2, 3])]


def test_what_goes_past_numpy_can_be_annotated():
    def program(device):
        stream, memory, pinned = device.create_stream(), device.alloc(256), device.alloc_host(256)
        stream.fill(pinned, 1)
        pinned.annotate_read(64)
        stream.fill(memory, 1)
        with memory.map() as mapping:
            mapping.annotate_write(8, 8)
            stream.synchronize()

    assert found(program) == [("HD-RAW", [2, 3]), ("HD-WAW", [4, 6])]


def test_an_array_of_memory_that_was_registered():
    def program(device):
        stream, memory = device.create_stream(), mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        registered = device.primary.register(memory)
        stream.fill(registered, 1)
        registered.array[5000:] = 1
        stream.synchronize()

    assert found(program) == [("HD-WAW", [3, 4])]
