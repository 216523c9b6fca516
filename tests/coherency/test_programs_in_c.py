"""The mistakes of test_bug_classes.py in C: exactly these bytes under the schedule that shows the mistake, and right bytes under all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coherency.conftest import SCHEDULES

SOURCE = Path(__file__).with_name("programs.c")
WAITING = " ".join(["w1 c63"] * 4)  # lines with a letter at their start that arrived

# program: parameters of the module, what the mistake prints with them; parameters of the right program, what that prints.
# Those of the same parameters run in one process, one after the other.
PROGRAMS = {
    "lost_write": ("evict=lazy", [".128"], "", ["A64 .64"]),
    "stale_read": ("evict=lazy", [".128"], "", ["A64 .64"]),
    "dirty_line": ("evict=evict", ["x64 A64"], "", ["A128"]),
    "shared_line": ("evict=lazy", ["c1 .127"], "", ["c1 .63 d8 .56"]),
    "early_invalidate": ("evict=lazy", [".64"], "", ["A64"]),
    "undrained": ("bugs=skip_wmb", ["w1 c63 w1 c63 w1 c63 w1 c319"], "", [f"{WAITING} {WAITING}"]),
    "alias": ("coherent=0 evict=evict", ["o64"], "coherent=0", ["n64"]),
    "short_flush": ("evict=lazy", ["A64 .64"], "", ["A100 .28"]),
    "unfenced": ("bugs=skip_wmb", ["#64"], "", ["A64"]),
    "old_page": ("bugs=skip_tlbi", ["1", "n64 p4032"], "", ["1", "p4096"]),
    "shared_addresses": ("", ["0", "A8 d8 A48"], "", ["1", "A8 d8 A48"]),
}


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The compiled programs."""
    folder = tmp_path_factory.mktemp("coherency")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    config = [sys.executable, "-m", "libnpu.capi.config", "--cflags", "--libs"]
    flags = subprocess.run(config, check=True, capture_output=True, text=True, env=environment).stdout.split()
    target = folder / "programs"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", "-std=gnu11", *warnings, str(SOURCE), *flags, "-o", str(target)], check=True)
    return target


def by_parameters(index):
    """Return parameters -> the programs that have them at `index` of PROGRAMS."""
    found = {}
    for name, entry in PROGRAMS.items():
        found.setdefault(entry[index], []).append(name)
    return found


def outputs(program, variant, names, parameters):
    """Return program -> the lines that it prints."""
    environment = {**os.environ, "NPU_PROFILE": "unit", "NPU_KMD_PARAMS": parameters}
    run = subprocess.run(
        [program, variant, *names], check=False, capture_output=True, text=True, timeout=60, env=environment
    )
    assert (run.returncode, run.stderr) == (0, "")
    found = {}
    for line in run.stdout.splitlines():
        if line.endswith(":"):
            last = found[line[:-1]] = []
        else:
            last.append(line)
    return found


@pytest.mark.parametrize(("parameters", "names"), by_parameters(0).items())
def test_the_mistakes_give_these_bytes(program, parameters, names):
    assert outputs(program, "wrong", names, parameters) == {name: PROGRAMS[name][1] for name in names}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("parameters", "names"), by_parameters(2).items())
def test_the_right_programs_are_right_under_every_schedule(program, parameters, names, schedule):
    found = outputs(program, "right", names, f"{parameters} evict={schedule}")
    assert found == {name: PROGRAMS[name][3] for name in names}


def test_uncached_memory_is_always_right(program):
    parameters = "allow_uncached=1 bugs=skip_wmb,skip_sync"
    assert outputs(program, "right", ["uncached"], parameters) == {"uncached": ["A64", "A8 d8 A48"]}


def test_an_unknown_parameter_is_named(program):
    run = subprocess.run(
        [program], capture_output=True, text=True, check=False, env={**os.environ, "NPU_KMD_PARAMS": "evict=never"}
    )
    assert (run.returncode, run.stdout) == (3, "NPU_ERROR_INVALID_VALUE\n")
