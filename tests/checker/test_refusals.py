"""Calls that are refused, deadlocks, leaks: what the program ignores, and what it is not blamed for."""

import contextlib
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
    void *memory, *other;
    npu_stream_t stream;
    npu_init(0);
    npu_malloc(&memory, 4096, 0);
    npu_malloc(&other, 4096, 0);
    npu_create_stream(&stream);
    npu_free(memory);
    if (argc == 1) {
        npu_free(memory);
        npu_memset_async(memory, 4096, 1, 4096, stream);
        npu_shutdown();
        return 0;
    }
    npu_free(other);
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
    assert found == ["DOUBLE-FREE", "UAF", "LEAK", "LEAK"]
    sites = [line.partition("ignores.c:")[2].split()[0] for line in lines if line.startswith("     ")]
    assert sites == ["11", "13", "11", "14", "9", "10"]
    assert npu("check", "--leaks", "--", program, "fixed") == (0, "", "npu check: 0 findings\n")
