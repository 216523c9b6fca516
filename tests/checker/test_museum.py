"""The bug museum: a wrong variant is wrong under its schedule and reported with its rules at its lines, and nothing else is; a
fixed one, and a program without a bug, is right and silent under all schedules.
"""

import contextlib
import io
import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest

import libnpu
from libnpu.checker.exploration import explore
from libnpu.checker.recorder import replays_of
from libnpu.checker.report import text
from libnpu.checker.witness import add_witnesses, kind_of
from libnpu.tools.exhibits import FIELDS, exhibits
from libnpu.tools.replays import replay, watched

PAGE = Path(__file__).parents[2] / "docs" / "checker-reports.md"
RECORD = "NPU_RECORD_SAMPLES"  # in the environment: write what is reported instead of comparing
NAMED = ("timed", "eager", "lazy", "newest-first")
ALL = exhibits()
PYTHON = [name for name, each in ALL.items() if each.path.suffix == ".py"]
IN_C = [name for name, each in ALL.items() if each.path.suffix == ".c"]


def places(records):
    """Return (rule, lines of the acts) of records."""
    return [(r["rule"], [int(a["site"].rpartition(":")[2]) if a["site"] else None for a in r["acts"]]) for r in records]


def check_witnesses(records):
    """Each race is shown by other bytes; memory that is freed too early has no new owner here."""
    for record in records:
        kind = kind_of(record)
        if kind:
            assert record["witness"]["schedule"].startswith("hold:"), record
            assert (record["witness"]["bytes"] is None) == (kind == "FREE"), record
            assert not record["witness"]["benign"]


def check_page(name, records):
    """The report of a program that docs/checker-reports.md shows is the one that there is, but for times."""
    page = PAGE.read_text()
    begin, end = f"<!-- {name} -->\n```text\n", "```\n"
    if begin not in page:
        return
    before, _, rest = page.partition(begin)
    shown, _, after = rest.partition(end)
    report = re.sub(r" \(\d+\.\d{3} us\)", "", text(records))
    report = re.sub(rf"[^ ]*/({re.escape(ALL[name].path.name)}:)", r"\1", report)
    if os.environ.get(RECORD):
        PAGE.write_text(f"{before}{begin}{report}{end}{after}")
    else:
        assert shown == report, f"{RECORD}=1 records it anew"


@pytest.fixture(scope="module")
def run():
    """run(name, fixed, schedule) -> what a Python program prints."""
    loaded = {}

    def run(name, fixed, schedule):
        if name not in loaded:
            loaded[name] = runpy.run_path(str(ALL[name].path), run_name=name)["main"]
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
            patch.setenv("NPU_SCHEDULE", schedule)
            loaded[name](fixed)
        return out.getvalue().strip()

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("museum")


def run_c(name, folder, schedule, *arguments):
    """Return what a C program prints."""
    command = ALL[name].command(folder, *arguments)
    done = subprocess.run(
        command, env={**os.environ, "NPU_SCHEDULE": schedule}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def watched_c(name, folder, schedule, *arguments, witnesses=0):
    """Return what a C program prints and what is reported of it."""
    with pytest.MonkeyPatch.context() as patch, open(folder / "printed", "w+") as out:
        patch.setenv("NPU_SCHEDULE", schedule)
        status, records = watched(ALL[name].command(folder, *arguments), stdout=out.fileno(), witnesses=witnesses)
        assert status == 0
        out.seek(0)
        return out.read().strip(), records


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_program(name, run):
    exhibit = ALL[name]
    if exhibit.reports:
        assert run(name, False, exhibit.value("schedule")) == exhibit.value("wrong") != exhibit.value("right")
        with libnpu.check() as checker:
            run(name, False, "timed")
        records = checker.records()
        add_witnesses(records, replays_of(lambda: print(run(name, False, "timed"))))
        assert places(records) == exhibit.reports
        check_witnesses(records)
        check_page(name, records)
    with libnpu.check() as checker:
        assert run(name, True, "lazy") == exhibit.value("right")
    assert places(checker.records()) == []


@pytest.mark.parametrize("name", IN_C)
def test_a_c_program(name, folder):
    exhibit = ALL[name]
    if exhibit.reports:
        assert run_c(name, folder, exhibit.value("schedule")) == exhibit.value("wrong") != exhibit.value("right")
        _, records = watched_c(name, folder, "timed", witnesses=4)
        assert places(records) == exhibit.reports
        check_witnesses(records)
        check_page(name, records)
    assert watched_c(name, folder, "lazy", "fixed") == (exhibit.value("right"), [])


def check_results(exhibit, fixed, found):
    """Without the bug there is one result; with it the wrong one is among them."""
    assert found.is_complete
    printed = [result.run.printed.strip() for result in found.results]
    if fixed:
        assert printed == [exhibit.value("right")]
    else:
        assert exhibit.value("wrong") in printed


@pytest.mark.parametrize("name", PYTHON)
def test_all_results_of_a_python_program(name, run):
    for fixed in (True, False):
        replays = replays_of(lambda fixed=fixed: print(run(name, fixed, "timed")))
        if fixed or ALL[name].reports:
            found = explore(lambda schedule, replays=replays: replays(schedule, ()), holds=1, seeds=4)
            check_results(ALL[name], fixed, found)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", IN_C)
def test_all_results_of_a_c_program(name, folder):
    for fixed in (True, False):
        command = ALL[name].command(folder, *(["fixed"] if fixed else []))
        if fixed or ALL[name].reports:
            found = explore(lambda schedule, command=command: replay(command, schedule), holds=1, seeds=4)
            check_results(ALL[name], fixed, found)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, each in ALL.items() if each.reports])
def test_a_wrong_variant_is_wrong_on_every_run_under_its_schedule(name, run, folder):
    exhibit = ALL[name]
    one = run if name in PYTHON else lambda name, _, schedule: run_c(name, folder, schedule)
    assert {one(name, False, exhibit.value("schedule")) for _ in range(5)} == {exhibit.value("wrong")}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PYTHON)
def test_a_python_program_without_the_bug_is_right_and_silent_under_all_schedules(name, run):
    with libnpu.check() as checker:
        for schedule in (*NAMED, *(f"seed:{seed}" for seed in range(200))):
            assert run(name, True, schedule) == ALL[name].value("right"), schedule
    assert checker.text() == ""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PYTHON)
def test_the_report_is_the_same_under_all_schedules(name, run):
    for schedule in (*NAMED, *(f"seed:{seed}" for seed in range(4))):
        with libnpu.check() as checker:
            run(name, False, schedule)
        assert sorted(places(checker.records())) == sorted(ALL[name].reports), schedule


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", IN_C)
def test_a_c_program_without_the_bug_is_right_and_silent_under_all_schedules(name, folder):
    for schedule in (*NAMED, *(f"seed:{seed}" for seed in range(8))):
        assert watched_c(name, folder, schedule, "fixed") == (ALL[name].value("right"), []), schedule


def test_each_head_says_what_the_museum_needs():
    for name, exhibit in ALL.items():
        assert re.fullmatch(r"[A-Z].*\.", exhibit.title), name
        single = ("right",) if name.startswith("right_") else ("right", "wrong", "schedule", "link")
        assert [len(exhibit.values(field)) for field in single] == [1] * len(single), name
        assert bool(exhibit.reports) == bool(exhibit.values("catalogue")) == (not name.startswith("right_")), name
        given = re.findall(
            r"^(?: \*)?  +(\w+): ", exhibit.source.partition("import" if name in PYTHON else "#include")[0], re.M
        )
        assert set(given) <= set(FIELDS), name


def test_the_list_of_the_readme_is_complete():
    page = (ALL["read_before_wait"].path.parent / "README.md").read_text()
    rows = re.findall(r"^\| (B\d\d) \| (.*) \|$", page, re.M)
    numbers = [number for number, _ in rows]
    assert numbers == sorted(set(numbers))
    shown = {
        exhibit.value("catalogue"): f"[{name}]({exhibit.path.name})" for name, exhibit in ALL.items() if exhibit.reports
    }
    assert shown == {number: place for number, place in rows if place.startswith("[")}


def test_the_page_of_reports_has_one_of_each_rule_that_the_museum_shows():
    page = PAGE.read_text()
    shown = re.findall(r"^<!-- (\w+) -->$", page, re.M)
    rules = {rule for exhibit in ALL.values() for rule, _ in exhibit.reports}
    assert rules <= set(re.findall(r"(?:ERROR|WARNING) ([A-Z-]+): ", page))
    for name in shown:
        assert f"[{name}](../samples/bugs/{ALL[name].path.name}): {ALL[name].title}\n" in page


def test_npu_museum(npu):
    status, out, err = npu("museum", "list")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(ALL)
    assert "read_before_wait " in out
    assert "(HD-RAW)" in out
    assert npu("museum", "show", "read_before_wait") == (0, ALL["read_before_wait"].source, "")
    status, out, err = npu("museum", "run", "read_before_wait")
    assert (status, err) == (0, "")
    assert out.startswith("schedule lazy: it prints '0'; right is '36'\nnpu check: 1 finding\n1. ERROR HD-RAW: ")
    expected = "schedule lazy: it prints '36'; right is '36'\nnpu check: 0 findings\n"
    assert npu("museum", "run", "--fixed", "read_before_wait") == (0, expected, "")
    assert npu("museum", "run")[0] == npu("museum")[0] == 2
    assert npu("museum", "show", "no")[2] == "npu: error: 'no' is not in the museum; npu museum list\n"
