"""npu check: C and Python programs, exit status, JSON, npud, programs that cannot be checked."""

import json
import subprocess
import sys

import pytest

from libnpu.checker.rules import RULES

RACE = """
import libnpu, sys
device = libnpu.open("unit")
stream, memory, pinned = device.create_stream(), device.alloc(256), device.alloc_host(256)
stream.fill(memory, 1)
stream.copy(pinned, memory)
if "fixed" in sys.argv:
    stream.synchronize()
print(int(pinned.array[0]), file=open("seen", "w"))
sys.exit(3)
"""

IN_C = """
#include <npu.h>
#include <string.h>
int main(int argc, char **argv)
{
    npu_stream_t one, two;
    npu_event_t event;
    void *pinned, *memory, *other;
    npu_init(0);
    npu_create_stream(&one);
    npu_create_stream(&two);
    npu_create_event(&event, 0);
    npu_malloc_host(&pinned, 4096, 0);
    npu_malloc(&memory, 4096, 0);
    npu_malloc(&other, 4096, 0);
    memset(pinned, 1, 4096);
    npu_memcpy_async(memory, 4096, pinned, 4096, NPU_MEMCPY_DEFAULT, one);
    npu_record_event(event, one);
    if (argc > 1) {
        npu_synchronize_event(event);
        npu_stream_wait_event(two, event);
    }
    memset(pinned, 2, 4096);
    npu_memcpy_async(other, 4096, memory, 4096, NPU_MEMCPY_DEFAULT, two);
    npu_synchronize_stream(two);
    npu_free(memory);
    return 0;
}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "race.py"
    path.write_text(RACE)
    monkeypatch.chdir(tmp_path)
    return str(path)


def test_a_python_program_is_reported_and_keeps_its_status_when_it_is_right(npu, program, tmp_path):
    status, out, err = npu("check", "--", sys.executable, program)
    assert (status, out) == (1, "")
    assert "HD-RAW" in err
    assert "at race.py:9" in err
    assert err.endswith("npu check: 1 finding\n")
    status, out, err = npu("check", "--", sys.executable, program, "fixed")
    assert (status, out, err) == (3, "", "npu check: 0 findings\n")
    assert (tmp_path / "seen").read_text() == "1\n"


def test_records_as_json(npu, program, tmp_path):
    report = tmp_path / "report.json"
    status, out, _ = npu("check", "--json", "-o", report, "--", sys.executable, program)
    assert (status, out) == (1, "")
    (record,) = json.loads(report.read_text())
    assert (record["rule"], record["certain"], record["count"], record["bytes"]) == ("HD-RAW", True, 1, [0, 1])
    assert [act["site"] for act in record["acts"]] == [f"{program}:6", f"{program}:9"]
    assert record["allocation"]["made"]["site"] == f"{program}:4"


def test_through_npud(npu, program, tmp_path, monkeypatch):
    socket = tmp_path / "npud"
    daemon = subprocess.Popen(
        [sys.executable, "-m", "libnpu.daemon", "--socket", str(socket), "--profile", "unit"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        daemon.stdout.readline()
        monkeypatch.setenv("NPU_DEVICE", f"unix:{socket}")
        status, _, err = npu("check", "--", sys.executable, program)
        assert (status, err.count("HD-RAW")) == (1, 1)
    finally:
        daemon.terminate()
        daemon.communicate(timeout=30)


def test_a_c_program_is_reported_by_file_and_line(npu, compiled, tmp_path):
    program = compiled("race", IN_C)
    status, _, err = npu("check", "--json", "-o", tmp_path / "found", "--", program)
    records = json.loads((tmp_path / "found").read_text())
    assert (status, err) == (1, "")
    found = {record["rule"]: [act["site"].rpartition("race.c:")[2] for act in record["acts"]] for record in records}
    assert found == {"HD-WAR": ["17", ""], "XS-RAW": ["17", "24"], "FREE-IN-USE": ["17", "26"]}
    status, _, err = npu("check", "--", program, "fixed")
    assert (status, err) == (0, "npu check: 0 findings\n")


def test_what_cannot_be_checked_is_said(npu):
    status, _, err = npu("check", "--", "true")
    assert (status, err) == (
        2, "npu: error: true ended with status 0 and was not checked: it opened no device, or did not end by itself\n"
    )  # fmt: skip
    for command in ("check", "explore"):
        status, _, err = npu(command, "--", "./none")
        assert (status, err) == (2, "npu: error: ./none cannot be run: No such file or directory\n")
        assert npu(command, "--", "true")[0] == 2
    assert npu("check")[0] == 2


@pytest.mark.parametrize(("arguments", "expected"), [((), 1), (("fixed",), 2)])
def test_a_schedule_that_holds_what_never_was_is_said_and_findings_count(npu, program, arguments, expected):
    status, _, err = npu(
        "check", "--witnesses", "0", "--schedule", "hold:9.9", "--", sys.executable, program, *arguments
    )
    assert (status, "there never was an operation 9.9" in err) == (expected, True)


@pytest.mark.parametrize(
    "option", [("--schedule", "lazier"), ("--suppress", "none"), ("-o", "none/report"), ("--sarif", "none/report")]
)
def test_an_option_that_cannot_be_meant_is_no_finding(npu, option):
    status, _, err = npu("check", *option, "--", "true")
    assert (status, err.startswith("npu: error: "), option[1].split("/")[0] in err) == (2, True, True)


def test_the_rules_are_listed(npu):
    status, out, err = npu("check", "--rules")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(RULES)
