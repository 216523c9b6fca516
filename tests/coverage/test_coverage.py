"""Every result that npu.h documents has been seen, from C and from Python, by programs that expected it.

The programs in c/ and python/ run once per session, two at a time, and note what each call returned.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from npu_abi import INCLUDE_DIR

from libnpu.capi.build import library_folder, run_path
from tests.coverage.blobs import write_blobs
from tests.coverage.generated import before_init, called_functions, in_host_function
from tests.coverage.pairs import device_errors, documented, only_in_python, result_names
from tests.coverage.python_api import PYTHON

HERE = Path(__file__).parent
SOURCES = (".", "include", "driver", "firmware", "device")  # folders of packages
GENERATED = {"before_init": before_init, "in_host_function": in_host_function}
PROGRAMS = [f"c/{p.stem}" for p in sorted(HERE.glob("c/*.c"))]
PROGRAMS += [f"c/{name}" for name in GENERATED]
PROGRAMS += [f"python/{p.stem}" for p in sorted(HERE.glob("python/*.py"))]
# What every function may return, as the head of npu.h says.
GENERAL = {"NOT_INITIALIZED", "NOT_PERMITTED", "OUT_OF_HOST_MEMORY", "CAPTURE_UNSUPPORTED", *device_errors()}


def c_pairs():
    """Return (function, result) for all of C."""
    found = [(f.name, r) for f in documented().values() for r in f.results if r not in only_in_python()]
    everywhere = [f.name for f in called_functions()]
    return [
        *found,
        *((name, "NOT_INITIALIZED") for name in everywhere if (name, "NOT_INITIALIZED") not in found),
        *((name, "NOT_PERMITTED") for name in everywhere if (name, "NOT_PERMITTED") not in found),
    ]


def python_pairs():
    """Return (function, result) for all of Python, without those that have a reason not to exist."""
    return [
        (f.name, r)
        for f in documented().values()
        for r in f.results
        if f.name not in PYTHON or r not in PYTHON[f.name].impossible
    ]


def build(folder: Path, name: str) -> Path:
    """Compile the C program `name` into `folder` against npu.h and the library, warnings being errors."""
    program, source = folder / name, HERE / "c" / f"{name}.c"
    if name in GENERATED:
        source = folder / f"{name}.c"
        source.write_text(GENERATED[name]())
    library = library_folder()
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function", "-pthread", "-g"]
    paths = [f"-I{INCLUDE_DIR}", f"-I{HERE / 'c'}", f"-L{library}", *run_path(library)]
    subprocess.run(["gcc", *flags, str(source), *paths, "-lnpu", "-lm", "-o", str(program)], check=True)
    return program


def run_all(folder: Path) -> dict[str, list[list[str]] | dict[str, str]]:
    """Run every program; return what was seen in each language, and what each failed program said."""
    blobs = folder / "blobs"
    blobs.mkdir()
    write_blobs(blobs)
    seen = {language: folder / f"{language}.seen" for language in ("c", "python")}

    def run(name: str) -> tuple[str, str]:
        language, _, stem = name.partition("/")
        work = folder / name.replace("/", "-")
        work.mkdir()
        environment = {
            "NPU_COVERAGE": str(seen[language]),
            "NPU_PROFILE": str(blobs / "profile.json"),
            "PYTHONPATH": ":".join(str(HERE.parent.parent / part) for part in SOURCES),
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NPU_")}
        try:
            if language == "c":
                command = [str(build(work, stem)), str(blobs)]
            else:
                command = [sys.executable, "-m", "tests.coverage.recorder", str(HERE / f"{name}.py"), str(blobs)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=60, cwd=work, env=kept | environment, check=False
            )
        except subprocess.SubprocessError as error:  # it does not compile, or does not end
            return name, str(error)
        failed = done.returncode or done.stderr
        return name, f"status {done.returncode}\n{done.stderr[-8000:]}{done.stdout[-2000:]}" if failed else ""

    with ThreadPoolExecutor(2) as pool:
        problems = {name: problem for name, problem in pool.map(run, PROGRAMS) if problem}
    pairs = {
        key: sorted(map(str.split, set(path.read_text().splitlines()))) for key, path in seen.items() if path.exists()
    }
    return {"c": [], "python": [], **pairs, "problems": problems}


@pytest.fixture(scope="session")
def coverage(tmp_path_factory):
    """What `run_all` found, once for all workers of the session."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    known = base / "coverage.json"
    with (base / "coverage.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            known.write_text(json.dumps(run_all(tmp_path_factory.mktemp("coverage"))))
    found = json.loads(known.read_text())
    short = {full: name for name, full in result_names().items()}
    return {
        "problems": found["problems"],
        "c": {(function, short[result]) for function, result in found["c"]},
        "python": {tuple(pair) for pair in found["python"]},
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_gets_what_it_expects(coverage, program):
    assert program not in coverage["problems"], coverage["problems"][program]


@pytest.mark.parametrize(("function", "result"), c_pairs())
def test_c_sees(coverage, function, result):
    assert (function, result) in coverage["c"]


@pytest.mark.parametrize(("function", "result"), python_pairs())
def test_python_sees(coverage, function, result):
    assert (function, result) in coverage["python"]


def test_no_function_returns_what_the_header_does_not_say(coverage):
    surprises = [
        (function, result)
        for function, result in sorted(coverage["c"])
        if result not in documented()[function].results and result not in GENERAL
    ]
    assert surprises == []


def test_what_has_a_reason_not_to_happen_in_python_does_not(coverage):
    refuted = [(name, r) for name, r in sorted(coverage["python"]) if name in PYTHON and r in PYTHON[name].impossible]
    assert refuted == []


def test_every_function_has_its_python():
    assert sorted(PYTHON) == sorted(documented())
    unknown = [
        (name, r) for name, entry in PYTHON.items() for r in entry.impossible if r not in documented()[name].results
    ]
    assert unknown == []
