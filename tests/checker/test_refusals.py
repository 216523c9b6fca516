"""Calls that are refused, deadlocks, leaks: what the program ignores, and what it is not blamed for."""

import contextlib
import itertools
import re
import sys

import pytest

import libnpu


def used_after_free(device, fixed=False):
    memory = device.alloc(4096)
    if not fixed:
        memory.free()
    with contextlib.suppress(libnpu.NpuError):
        device.default_stream.fill(memory, 1)
    device.synchronize()


def freed_twice(device, fixed=False):
    stream, memory = device.create_stream(), device.alloc(4096)
    memory.free_async(stream)
    try:
        if not fixed:
            memory.free_async(stream)
    except libnpu.NpuError:
        pass
    stream.synchronize()


def of_another_context(device, fixed=False):
    with device.create_context() as context:
        stream, memory = context.create_stream(), (context if fixed else device).alloc(4096)
        with contextlib.suppress(libnpu.NpuError):
            stream.fill(memory, 1)
        stream.synchronize()


def called_in_a_host_function(device, fixed=False):
    stream, memory = device.create_stream(), device.alloc(4096)

    def function():
        try:
            if not fixed:
                stream.fill(memory, 1)
        except libnpu.NpuError:
            pass

    stream.add_host_function(function)
    stream.synchronize()


def a_call_as_a_host_function(device, fixed=False):
    stream, memory = device.create_stream(), device.alloc(4096)
    stream.add_host_function((lambda: None) if fixed else memory.free)
    with contextlib.suppress(libnpu.NpuError):
        stream.synchronize()
    device.synchronize()


def waits_for_ever(device, fixed=False):
    stream, token = device.create_stream(), device.create_notify()
    token.wait(stream)
    if fixed:
        token.record()
    try:
        stream.synchronize()
    except libnpu.NpuError:
        token.record()


def in_a_circle(device, fixed=False):
    one, two = device.create_stream(), device.create_stream()
    first, second = device.create_notify(), device.create_notify()
    if fixed:
        first.record(one)
    first.wait(two)
    second.wait(one)
    second.record(two)
    if not fixed:
        first.record(one)
    try:
        one.synchronize()
    except libnpu.NpuError:
        device.default_stream.synchronize()


def asks_for_more(device, fixed=False):
    stream, other = device.create_stream(), device.create_context()
    memory, pinned, elsewhere = device.alloc(4096), device.alloc_host(4096), other.alloc(64)
    mapping, kernel, fits = memory.map(), device.kernel("relu"), 1 if fixed else 0
    calls = [
        lambda: stream.copy(memory, pinned, 4097 - fits),
        lambda: stream.copy(memory[64:128], pinned, 65 - fits),
        lambda: stream.copy(memory[4000:], pinned, 97 - fits),
        lambda: stream.copy(bytearray(16), memory, 17 - fits),
        lambda: stream.copy(pinned.array[:16], memory, 17 - fits),
        lambda: stream.copy_2d(memory, 1195 - fits, pinned, 512, 512, 4),
        lambda: stream.fill(memory.at(4000, 100 - 4 * fits), 1),
        lambda: memory.at(-4 * (1 - fits), 8),
        lambda: memory.at(5000 * (1 - fits)),
        lambda: memory.write(bytes(101 - fits), 3996),
        lambda: memory.read(shape=(2, 2049 - fits)),
        lambda: memory.map(size=4097 - fits),
        lambda: mapping.flush(0, 4097 - fits),
        lambda: pinned.annotate_write(1, 4096 - fits),
        lambda: kernel.launch(stream, memory, memory, 1025 - fits),
        lambda: device.primary.copy_peer(elsewhere, memory[:65] if not fixed else memory[:64]),
        lambda: other.create_command_list().append_fill(elsewhere.at(0, 65 - fits), 1),
    ]
    stream.fill(memory, 0)
    stream.fill(pinned, 0)
    device.synchronize()
    for call in calls:
        with contextlib.suppress(libnpu.NpuError):
            call()
        device.synchronize()


WHOLE, ELSEWHERE, PART = (
    "an allocation of 4096",
    "an allocation of 64",
    "a part, at {} of an allocation of 4096 bytes, of {}",
)
OUTSIDE = [  # the call, the range, of what, bytes outside
    ("Stream.copy", "0 to 4097", WHOLE, "1 byte"),
    ("Stream.copy", "0 to 65", PART.format(64, 64), "1 byte"),
    ("Stream.copy", "4000 to 4097", WHOLE, "1 byte"),
    ("Stream.copy", "0 to 17", "memory of the program of 16", "1 byte"),
    ("Stream.copy", "0 to 17", PART.format(0, 16), "1 byte"),
    ("Stream.copy_2d", "0 to 4097", WHOLE, "1 byte"),
    ("Memory.at", "4000 to 4100", WHOLE, "4 bytes"),
    ("Memory.at", "-4 to 4", WHOLE, "4 bytes"),
    ("Memory.at", "5000 to 5000", WHOLE, "904 bytes"),
    ("Memory.write", "3996 to 4097", WHOLE, "1 byte"),
    ("Memory.read", "0 to 4098", WHOLE, "2 bytes"),
    ("Buffer.map", "0 to 4097", WHOLE, "1 byte"),
    ("Mapping.flush", "0 to 4097", WHOLE, "1 byte"),
    ("HostBuffer.annotate_write", "1 to 4097", WHOLE, "1 byte"),
    ("Kernel.launch", "0 to 4100", WHOLE, "4 bytes"),
    ("Context.copy_peer", "0 to 65", ELSEWHERE, "1 byte"),
    ("Memory.at", "0 to 65", ELSEWHERE, "1 byte"),
]


def test_calls_that_ask_for_more_than_there_is(records_of):
    records = records_of(asks_for_more)
    for line, (record, (call, asked, memory, outside)) in enumerate(zip(records, OUTSIDE, strict=True), 5):
        expected = f"{call} asks for bytes {asked} of {memory} bytes, {outside} outside of it; it was refused"
        assert record["message"].startswith(expected)
        assert (record["rule"], record["acts"][0]["site"], record["certain"]) == ("OOB", line, False)
        assert (record["allocation"] is None) == (memory.startswith("memory of the program"))
    assert records_of(asks_for_more, True) == []


CASES = [
    (used_after_free, "UAF", [3, 5]),
    (freed_twice, "DOUBLE-FREE", [2, 5]),
    (of_another_context, "CTX-MISMATCH", [4]),
    (called_in_a_host_function, "CALLBACK-API", [6]),
    (a_call_as_a_host_function, "CALLBACK-API", [2]),
    (waits_for_ever, "DEADLOCK", [2, 6]),
    (in_a_circle, "DEADLOCK", [6, 5, 11]),
]


@pytest.mark.parametrize(("program", "rule", "lines"), CASES)
def test_the_wrong_program_is_reported_at_its_lines_and_the_right_one_is_not(found, program, rule, lines):
    assert found(program) == [(rule, lines)]
    assert found(program, True) == []


def test_an_error_that_is_on_its_way_or_being_handled_is_not_ignored():
    checkers = []

    def ended():
        with libnpu.check() as checker, libnpu.open("unit") as device:
            checkers.append(checker)
            with device.alloc(64) as memory:
                memory.free()
                try:
                    device.default_stream.fill(memory, 1)
                except libnpu.NpuError:
                    device.synchronize()
                    raise

    with pytest.raises(libnpu.NpuError, match="was freed"):
        ended()
    assert checkers[0].records() == []


def test_a_python_program_that_an_error_ends(npu, tmp_path):
    program = tmp_path / "ends.py"
    program.write_text(
        "import libnpu\ndevice = libnpu.open('unit')\nmemory = device.alloc(64)\nmemory.free()\nmemory.read()\n"
    )
    assert npu("check", "-o", tmp_path / "report", "--", sys.executable, program)[0] == 1
    assert (tmp_path / "report").read_text() == "npu check: 0 findings\n"


KEPT = []  # what is collected as garbage is given back


def leaks(device, fixed=False):
    memory = device.alloc(4096)
    stream = device.create_stream()
    event = device.create_event()
    KEPT.append(event)
    device.default_stream.fill(device.alloc(64), 1)
    if fixed:
        memory.free()
        stream.close()
        event.destroy()


def test_leaks_are_reported_to_who_asks(found):
    assert found(leaks, leaks=True) == [("LEAK", [1]), ("LEAK", [5]), ("LEAK", [2]), ("LEAK", [3])]
    assert found(leaks, True, leaks=True) == [("LEAK", [5])]
    assert found(leaks) == []


IN_C = """
#include <npu.h>
int main(int argc, char **argv)
{
    void *memory, *other, *host;
    char buffer[16], *local = buffer;
    npu_stream_t stream;
    npu_kernel_t relu;
    npu_init(0);
    npu_malloc(&memory, 4096, 0);
    npu_malloc(&other, 4096, 0);
    npu_create_stream(&stream);
    npu_malloc_host(&host, 4096, 0);
    npu_get_builtin_kernel(&relu, "relu");
    npu_arg_t args[] = {NPU_BUFFER((char *)other + 4), NPU_BUFFER(other), NPU_INT(1024)};
    npu_free(memory);
    if (argc == 1) {
        npu_free(memory);
        npu_memset_async(memory, 4096, 1, 4096, stream);
        npu_memcpy_async(other, 5000, host, 5000, NPU_MEMCPY_HOST_TO_DEVICE, stream);
        npu_memcpy_2d(other, 1200, 5000, host, 512, 512, 4, NPU_MEMCPY_HOST_TO_DEVICE);
        npu_memset((char *)other + 96, 4000, 1, 4001);
        npu_memset((char *)other + 96, 4001, 1, 4001);
        npu_memset((char *)other + 4196, 4, 1, 4);
        npu_memcpy(local, 16, other, 17, NPU_MEMCPY_DEVICE_TO_HOST);
        npu_launch_kernel_async(relu, args, 3, stream);
        npu_map((void **)&local, other, 4097, NPU_TO_DEVICE);
        npu_flush(host, 4000, 97);
        npu_shutdown();
        return 0;
    }
    npu_free(other);
    npu_free_host(host);
    npu_destroy_stream(stream);
    npu_shutdown();
    return 0;
}
"""


def test_what_a_c_program_ignores_and_leaks(npu, compiled, tmp_path):
    program = compiled("ignores", IN_C)
    report = tmp_path / "report"
    assert npu("check", "--leaks", "-o", report, "--", program)[0] == 1
    lines = report.read_text().splitlines()
    found = [line.split()[2].rstrip(":") for line in lines if line[:1].isdigit()]
    assert found == ["DOUBLE-FREE", "UAF", *(["OOB"] * 9), "LEAK", "LEAK", "LEAK"]
    sites = [int(line.partition("ignores.c:")[2].split()[0]) for line in lines if line.startswith("     ")]
    outside = [(20, 11), (21, 11), (22, 11), (23, 11), (24, 11), (25,), (26, 11), (27, 11), (28, 13)]
    assert sites == [16, 18, 16, 19, *itertools.chain(*outside), 11, 13, 12]
    assert re.findall(r"(\d+) bytes? outside", report.read_text()) == ["904", "16", "1", "1", "4", "1", "4", "1", "1"]
    assert npu("check", "--leaks", "--", program, "fixed") == (0, "", "npu check: 0 findings\n")
