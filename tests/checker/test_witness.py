"""Witnesses: what two accesses in no order change when the program runs with the one first, and with the other."""

import json
import os
import subprocess
import sys

import pytest

import libnpu
from libnpu.checker.recorder import replays_of
from libnpu.checker.report import text
from libnpu.checker.sarif import sarif
from libnpu.checker.watch import NOT_REPLAYED
from libnpu.checker.witness import add_witnesses


@pytest.fixture
def witnessed():
    """Return a function: the findings of `program(device)` with their witnesses."""

    def witnessed(program, **options):
        def run():
            with libnpu.open("unit", **options) as device:
                program(device)

        with libnpu.check() as checker:
            run()
        found = checker.records()
        add_witnesses(found, replays_of(run))
        return found

    return witnessed


def two_streams(device):
    one, two = device.create_stream(), device.create_stream()
    memory = device.alloc(64)
    memory.write(bytes(64))
    return one, two, memory


@pytest.mark.parametrize(
    ("first", "second", "rule", "contents"),
    [
        ("fill", "copy", "XS-RAW", ("07 07", "00 00")),
        ("copy", "fill", "XS-WAR", ("00 00", "07 07")),
        ("fill", "other fill", "XS-WAW", ("09 09", "07 07")),
    ],
)
def test_the_bytes_that_the_reader_finds_or_that_are_left(witnessed, first, second, rule, contents):
    def program(device):
        one, two, memory = two_streams(device)
        kinds = {
            "fill": lambda stream: stream.fill(memory[8:10], 7),
            "other fill": lambda stream: stream.fill(memory[8:10], 9),
            "copy": lambda stream: stream.copy(device.alloc(2), memory[8:10]),
        }
        kinds[first](one)
        kinds[second](two)
        device.synchronize()

    (record,) = witnessed(program)
    assert record["rule"] == rule
    assert record["witness"] == {
        "schedule": "hold:1.1@2.1",
        "benign": False,
        "bytes": {"start": 0, "count": 2, "in_order": contents[0], "held": contents[1]},
        "printed": None,
        "status": None,
        "outputs": False,
    }
    assert f"other bytes{' are left' if rule == 'XS-WAW' else ''}, from byte 8 on {contents[1]}, not" in text([record])


def test_what_the_program_prints_and_raises(witnessed):
    def program(device):
        one, _, memory = two_streams(device)
        pinned = device.alloc_host(64)
        pinned.array[:] = 0
        one.fill(memory, 3)
        one.copy(pinned, memory)
        print(pinned.array[0])
        one.synchronize()
        assert memory.read()[0] == 3

    (record,) = witnessed(program)
    assert (record["rule"], record["witness"]["printed"]) == ("HD-RAW", {"line": 1, "in_order": "3", "held": "0"})
    assert record["witness"]["bytes"] == {"start": 0, "count": 1, "in_order": "03", "held": "00"}
    line = "the look at an array finds 1 other byte, from byte 0 on 00, not 03, and it prints '0', not '3'"
    assert f"   witness: with the two the other way round (NPU_SCHEDULE=hold:1.2) {line}\n" in text([record])


def test_a_race_that_changes_nothing_is_benign_and_comes_last(witnessed):
    def program(device):
        one, two, memory = two_streams(device)
        one.fill(memory[0:8], 5)
        two.fill(memory[0:8], 5)
        one.fill(memory[8:16], 5)
        two.fill(memory[8:16], 6)
        device.synchronize()

    worse, benign = witnessed(program)
    assert [record["witness"]["benign"] for record in (worse, benign)] == [False, True]
    assert benign["witness"]["schedule"] == "hold:1.1@2.1"
    shown = text([worse, benign])
    assert "2. BENIGN XS-WAW: fill with 0x05 in stream 1" in shown
    assert shown.endswith("(NPU_SCHEDULE=hold:1.1@2.1) nothing differs: benign in this run\n")
    assert [result["level"] for result in sarif([worse, benign])["runs"][0]["results"]] == ["error", "note"]


def test_a_host_function_has_ended_when_what_is_held_for_it_runs(witnessed):
    def program(device):
        one, two, _ = two_streams(device)
        pinned = device.alloc_host(4)
        two.fill(pinned, 2)
        one.add_host_function(pinned.array.__setitem__, slice(0, 4), 1)
        device.synchronize()

    (record,) = witnessed(program)
    assert record["rule"] == "XS-WAW"
    assert record["witness"]["schedule"] == "hold:2.1@1.2"
    assert record["witness"]["bytes"] == {"start": 0, "count": 4, "in_order": "01 01 01 01", "held": "02 02 02 02"}


@pytest.mark.parametrize(
    ("function", "host", "rule", "contents"),
    [
        (1, None, "HD-RAW", ("01", "00")),
        (None, 2, "HD-WAR", ("00", "02")),
        (1, 2, "HD-WAW", ("02", "01")),
    ],
)
def test_a_host_function_and_the_host_are_compared_in_both_orders(witnessed, function, host, rule, contents):
    def program(device):
        pinned = device.alloc_host(4)
        pinned.array[:] = 0

        def access(value):
            return pinned.array[1] if value is None else pinned.array.__setitem__(1, value)

        device.create_stream().add_host_function(access, function)
        access(host)
        device.synchronize()

    (record,) = witnessed(program)
    witness = record["witness"]
    assert (record["rule"], witness["schedule"], witness["printed"]) == (rule, "hold:1.1", None)
    assert witness["bytes"] == {"start": 0, "count": 1, "in_order": contents[0], "held": contents[1]}


def test_an_order_of_the_host_that_a_replay_did_not_come_to_is_no_benign_race(witnessed):
    runs = []

    def program(device):
        runs.append(1)
        one, pinned = device.create_stream(), device.alloc_host(4)
        one.fill(pinned, 1)
        if len(runs) > 1:
            one.synchronize()
        pinned.array.sum()

    (record,) = witnessed(program)
    assert record["witness"] == {"problem": "the runs did not come to the two in both orders (hold:1.1)"}


def test_a_replay_that_does_not_come_to_the_two_says_so(witnessed):
    runs = []

    def program(device):
        one, two, memory = two_streams(device)
        runs.append(1)
        one.fill(memory, 7)
        if len(runs) == 1:
            two.copy(device.alloc(64), memory)
        device.synchronize()

    (record,) = witnessed(program)
    assert record["witness"] == {"problem": "the runs did not come to the two in both orders (hold:1.1@2.1)"}


def test_so_many_findings_are_replayed_and_no_more():
    def program():
        with libnpu.open("unit") as device:
            one, two, memory = two_streams(device)
            one.fill(memory, 7)
            two.fill(memory[0:8], 8)
            two.fill(memory[8:16], 8)

    with libnpu.check() as checker:
        program()
    found = checker.records()
    add_witnesses(found, replays_of(program), 1)
    assert [record["witness"].get("schedule") for record in found] == ["hold:1.1@2.1", None]
    assert found[1]["witness"] == {"problem": "of the races the first 1 were replayed"}


def test_a_block_is_not_replayed_and_the_report_says_so():
    with libnpu.check() as checker, libnpu.open("unit") as device:
        one, two, memory = two_streams(device)
        one.fill(memory, 7)
        two.fill(memory, 8)
    assert checker.text().endswith(NOT_REPLAYED)
    with libnpu.check() as checker, libnpu.open("unit") as device:
        device.create_event().synchronize()
    assert "WAIT-UNRECORDED" in checker.text()
    assert NOT_REPLAYED not in checker.text()


PROGRAM = """
import os, sys, libnpu
with libnpu.open("unit") as device:
    one, two, memory = device.create_stream(), device.create_stream(), device.alloc(64)
    memory.write(bytes(64))
    one.fill(memory, 7)
    two.copy(target := device.alloc(64), memory)
    device.synchronize()
    value = int(target.read()[0])
    print(value, flush=True)
    {then}
"""


@pytest.fixture
def check(npu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def check(then, *options):
        (tmp_path / "it.py").write_text(PROGRAM.format(then=then))
        status, out, err = npu("check", "--json", "-o", "found", *options, "--", sys.executable, "it.py")
        assert (status, out, err) == (1, "", "")
        (record,) = json.loads((tmp_path / "found").read_text())
        return record["witness"]

    return check


def test_a_program_is_replayed_in_processes_of_its_own(check, tmp_path):
    witness = check("open('ran', 'a').write(os.environ.get('NPU_SCHEDULE', '') + ' '); sys.exit(value)")
    assert witness["printed"] == {"line": 1, "in_order": "7", "held": "0"}
    assert (witness["status"], witness["outputs"]) == ([7, 0], True)
    assert (tmp_path / "ran").read_text().split(" ") == ["", "hold:", "hold:1.1@2.1", ""]


TOLD = """
import libnpu, threading
with libnpu.open("unit") as device:
    pinned, stream, other, told = device.alloc_host(4), device.create_stream(), device.create_stream(), threading.Event()
    stream.add_host_function(pinned.array.fill, 1)
    stream.add_host_function(told.set)
    other.fill(device.alloc(4), 1)
    other.synchronize()
    {wait}
    pinned.array.sum()
"""


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["told.is_set()", "told.wait()"])
def test_a_program_that_may_have_been_told_is_run_where_it_was_not(npu, tmp_path, monkeypatch, wait):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it.py").write_text(TOLD.format(wait=wait))
    status = npu("check", "--json", "-o", "found", "--", sys.executable, "it.py")[0]
    found = json.loads((tmp_path / "found").read_text())
    right = wait == "told.wait()"
    assert (status, [record["rule"] for record in found]) == ((0, []) if right else (1, ["HD-RAW"]))
    assert right or found[0]["witness"]["bytes"]["count"] == 4


@pytest.mark.parametrize(
    ("then", "options", "witness"),
    [
        ("", ["--witnesses", "0"], None),
        ("", ["--stop-on-first"], None),
        ("value or os._exit(3)", [], {"problem": "it used no device, or did not end by itself (hold:1.1@2.1)"}),
    ],
)
def test_programs_without_a_witness(check, then, options, witness):
    assert check(then, *options) == witness


def test_the_schedule_of_a_witness_shows_it_again(npu, check, tmp_path):
    schedule = check("open('seen', 'w').write(str(value))")["schedule"]
    assert (
        npu("check", "--witnesses", "0", "--schedule", schedule, "-o", "found", "--", sys.executable, "it.py")[0] == 1
    )
    assert (tmp_path / "seen").read_text() == "0"
    status, _, err = npu("check", "--schedule", "hold:1", "--", sys.executable, "it.py")
    assert (status, err.splitlines()[0][:55]) == (2, "npu: error: schedule 'hold:1': '1' is no list of operat")


TESTS = """
import libnpu, pytest

@pytest.mark.npu_check(witness=True)
def test_wrong(tmp_path, capsys):
    with libnpu.open("unit") as device:
        stream, pinned = device.create_stream(), device.alloc_host(64)
        pinned.array[:] = 0
        stream.fill(pinned, 1)
        (tmp_path / "seen").write_text(str(pinned.array.sum()))
"""


def test_the_plugin_calls_a_test_again_for_witnesses(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    plugin = ["-p", "libnpu.checker.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", *plugin, "test_it.py"]
    path = os.pathsep.join(map(os.path.abspath, sys.path[1:]))
    environment = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "the sum finds" not in done.stdout
    line = "(NPU_SCHEDULE=hold:1.1) the look at an array finds 64 other bytes, from byte 0 on 00 00 00 00 00 00 00 00"
    assert line in done.stdout, done.stdout + done.stderr
