"""Every result that npu.h documents has been seen, from C and from Python, by programs that expected it.

The programs in c/ and python/ run once per session, two at a time, and note which results of calls they have compared (ledger.c,
ledger.py). The library notes itself what it returned to C.
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
from tests.coverage.general import surprises
from tests.coverage.generated import before_init, called_functions, in_host_function, wrapped_functions, wrappers
from tests.coverage.pairs import documented, only_in_python, result_names
from tests.coverage.python_api import PYTHON

HERE = Path(__file__).parent
SOURCES = (".", "include", "driver", "firmware", "device")  # folders of packages
GENERATED = {"before_init": before_init, "in_host_function": in_host_function}
PROGRAMS = [f"c/{p.stem}" for p in sorted(HERE.glob("c/*.c"))]
PROGRAMS += [f"c/{name}" for name in GENERATED]
PROGRAMS += [f"python/{p.stem}" for p in sorted(HERE.glob("python/*.py"))]
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function", "-pthread", "-g"]
LAST_ERROR = {
    "npu_get_last_error",
    "npu_peek_last_error",
}  # what they return is an earlier call's result; they never fail


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


def build_ledger(folder: Path) -> list[str]:
    """Compile into `folder` what notes the results of C programs; return the linker's arguments."""
    (folder / "wrappers.c").write_text(wrappers())
    objects = []
    for source in (HERE / "ledger.c", folder / "wrappers.c"):
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run(["gcc", *FLAGS, "-c", source, f"-I{INCLUDE_DIR}", f"-I{HERE}", "-o", objects[-1]], check=True)
    return [*objects, *(f"-Wl,--wrap={function.name}" for function in wrapped_functions())]


def build(folder: Path, name: str, ledger: list[str]) -> Path:
    """Compile the C program `name` into `folder` against npu.h and the library, warnings being errors."""
    program, source = folder / name, HERE / "c" / f"{name}.c"
    if name in GENERATED:
        source = folder / f"{name}.c"
        source.write_text(GENERATED[name]())
    library = library_folder()
    paths = [f"-I{INCLUDE_DIR}", f"-I{HERE}", f"-I{HERE / 'c'}", f"-L{library}", *run_path(library)]
    subprocess.run(["gcc", *FLAGS, str(source), *ledger, *paths, "-lnpu", "-lm", "-o", str(program)], check=True)
    return program


def run_all(folder: Path) -> dict[str, list[list[str]] | dict[str, str]]:
    """Run every program; return what was compared in each language, what C was given, and what each failed program said."""
    blobs = folder / "blobs"
    blobs.mkdir()
    write_blobs(blobs)
    notes = {kind: folder / f"{kind}.notes" for kind in ("c", "python", "given")}
    ledger = build_ledger(folder)

    def run(name: str) -> tuple[str, str]:
        language, _, stem = name.partition("/")
        work = folder / name.replace("/", "-")
        work.mkdir()
        environment = {
            "NPU_COMPARED": str(notes[language]),
            "NPU_COVERAGE": str(notes["given"]),
            "NPU_PROFILE": str(blobs / "profile.json"),
            "PYTHONPATH": ":".join(str(HERE.parent.parent / part) for part in SOURCES),
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NPU_")}
        try:
            if language == "c":
                command = [str(build(work, stem, ledger)), str(blobs)]
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
        kind: sorted(map(str.split, set(path.read_text().splitlines())))
        for kind, path in notes.items()
        if path.exists()
    }
    return {"c": [], "python": [], "given": [], **pairs, "problems": problems}


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

    def of_c(pairs):
        return {(function, "SUCCESS" if function in LAST_ERROR else short[result]) for function, result in pairs}

    return {
        "problems": found["problems"],
        "c": of_c(found["c"]),
        "given": of_c(found["given"]),
        "python": {tuple(pair) for pair in found["python"]},
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_gets_what_it_expects(coverage, program):
    assert program not in coverage["problems"], coverage["problems"][program]


def test_c_sees_every_result(coverage):
    assert sorted({*c_pairs()} - coverage["c"]) == []


def test_python_sees_every_result(coverage):
    assert sorted({*python_pairs()} - coverage["python"]) == []


def test_all_that_c_was_given_was_compared(coverage):
    assert coverage["given"] - coverage["c"] == set()


@pytest.mark.parametrize("language", ["c", "python"])
def test_no_function_returns_what_the_header_does_not_say(coverage, language):
    listed = {name: function.results for name, function in documented().items()}
    assert surprises(coverage[language], listed) == []


@pytest.mark.parametrize("language", ["c", "python"])
def test_a_lack_of_host_memory_is_seen(coverage, language):
    lacking = {("npu_host_register", "OUT_OF_HOST_MEMORY"), ("npu_memcpy_async", "OUT_OF_HOST_MEMORY")}
    assert lacking <= coverage[language]


def test_what_has_a_reason_not_to_happen_in_python_does_not(coverage):
    refuted = [(name, r) for name, r in sorted(coverage["python"]) if name in PYTHON and r in PYTHON[name].impossible]
    assert refuted == []


def test_every_function_has_its_python():
    assert sorted(PYTHON) == sorted(documented())
    unknown = [
        (name, r) for name, entry in PYTHON.items() for r in entry.impossible if r not in documented()[name].results
    ]
    assert unknown == []
