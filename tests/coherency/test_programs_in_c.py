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


def lines(program, name, variant, parameters):
    environment = {**os.environ, "NPU_PROFILE": "unit", "NPU_KMD_PARAMS": parameters}
    run = subprocess.run(
        [program, name, variant], check=False, capture_output=True, text=True, timeout=60, env=environment
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.splitlines()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_mistake_gives_these_bytes(program, name):
    parameters, expected, _, _ = PROGRAMS[name]
    assert lines(program, name, "wrong", parameters) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_right_program_is_right_under_every_schedule(program, name):
    _, _, parameters, expected = PROGRAMS[name]
    for schedule in SCHEDULES:
        assert lines(program, name, "right", f"{parameters} evict={schedule}") == expected, schedule


def test_uncached_memory_is_always_right(program):
    parameters = "allow_uncached=1 bugs=skip_wmb,skip_sync"
    assert lines(program, "uncached", "right", parameters) == ["A64", "A8 d8 A48"]


def test_an_unknown_parameter_is_named(program):
    run = subprocess.run(
        [program], capture_output=True, text=True, check=False, env={**os.environ, "NPU_KMD_PARAMS": "evict=never"}
    )
    assert (run.returncode, run.stdout) == (3, "NPU_ERROR_INVALID_VALUE\n")
