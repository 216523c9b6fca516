"""docs/checker-reports.md: its programs are run, the reports are what is said of them but for times, and each rule has one."""

import os
import re
import runpy
from pathlib import Path

import pytest

import libnpu
from libnpu.checker.rules import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checker-reports.md"
RECORD = "NPU_RECORD_SAMPLES"  # in the environment: write what is reported instead of comparing
PROGRAMS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```sh\nnpu check (.*)\n```\n\n```text$", PAGE.read_text(), re.MULTILINE)
INSTEAD = re.compile(r"\S.*  # fix: (.*)")


@pytest.fixture
def report_of(tmp_path, monkeypatch):
    """Return a function: what is said of a program of the page, without times."""
    monkeypatch.chdir(tmp_path)

    def report_of(name, text, options=(), arguments=()):
        path = tmp_path / f"{name}.py"
        path.write_text(f"# {name}.py\n{text}")
        monkeypatch.setattr("sys.argv", [str(path), *arguments])
        with libnpu.check(lint="--lint" in options, leaks="--leaks" in options) as checker:
            runpy.run_path(str(path), run_name="__main__")
        return re.sub(r" \(\d+\.\d{3} us\)", "", checker.text()).replace(f"{tmp_path}/", "")

    return report_of


@pytest.mark.parametrize("command", COMMANDS)
def test_the_report_of_a_program(report_of, command):
    options, _, called = command.partition("-- python ")
    file, *arguments = called.split()
    name = file.removesuffix(".py")
    report = report_of(name, PROGRAMS[name], options, arguments)
    before, begin, rest = PAGE.read_text().partition(f"```sh\nnpu check {command}\n```\n\n```text\n")
    shown, end, after = rest.partition("```\n")
    if os.environ.get(RECORD):
        PAGE.write_text(f"{before}{begin}{report}{end}{after}")
    else:
        assert shown == report, f"{RECORD}=1 records it anew"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fix_ends_the_report(report_of, name):
    options = next(command for command in COMMANDS if f" {name}.py" in command)
    assert report_of(name, INSTEAD.sub(r"\1", PROGRAMS[name]), options) == ""


def test_each_rule_has_a_report():
    assert {*re.findall(r"^\d+\. (?:ERROR|WARNING) ([A-Z-]+): ", PAGE.read_text(), re.MULTILINE)} == {*RULES}
