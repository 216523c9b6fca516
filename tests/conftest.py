"""Settings that all tests share, and the command line as a function."""

import contextlib
import gc
import io
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import settings

settings.register_profile("project", derandomize=True, deadline=None)
settings.load_profile("project")

# Hundreds of processes are started: each would compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

os.environ["NPU_COMPILE_CACHE"] = "0"  # what is tested is the compiler; children inherit it

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in a background job of a shell: programs under test would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Keep the garbage collector from what stays: thousands of tests, through which it would go again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def npu():
    """Return a function that runs a command line: (exit status, stdout, stderr)."""
    from libnpu.tools.cli import main

    def run(*arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main([str(argument) for argument in arguments])
            except SystemExit as stop:
                status = stop.code
        return status, out.getvalue(), err.getvalue()

    return run


@pytest.fixture(scope="session")
def compile_c():
    """Return a function that compiles a C program with lines for debuggers, in a folder: its path."""

    def compile_c(folder, name, text):
        config = [sys.executable, "-m", "libnpu.capi.config", "--cflags", "--libs"]
        flags = subprocess.run(config, check=True, capture_output=True, text=True).stdout.split()
        source, program = folder / f"{name}.c", folder / name
        source.write_text(text)
        subprocess.run(["gcc", "-g", source, *flags, "-o", program], check=True)
        return program

    return compile_c


@pytest.fixture
def compiled(compile_c, tmp_path):
    """Return a function that compiles a C program, in a folder of the test's own: its path."""
    return lambda name, text: compile_c(tmp_path, name, text)
