"""The wheel: what it holds, and that a C program is built against it in a fresh environment."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # two environments and a build of libnpu.so


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree; the build tool is the one of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of the programs of a fresh environment with the wheel; libraries of others are borrowed from this one."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    origin = run(python, "-E", "-P", "-c", "import libnpu; print(libnpu.__file__)")
    assert Path(origin.strip()).is_relative_to(folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def environment(installed, tmp_path_factory):
    """PATH with these programs, and a cache of its own."""
    return {"PATH": f"{installed}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


def test_the_wheel_holds_headers_kernels_firmware_profiles_types_and_npu_config(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for expected in (
        "npu_abi/npu.h", "npu_abi/npu_uapi.h", "npu_abi/npu_fw.h", "npu_abi/npu_hw.h", "npu_abi/npu_blob.h", "libnpu/kernels/builtin.npu",
        "libnpu/capi/start.c", "libnpu/py.typed", "npu_model/profiles/npu-37xx.json", "npu_firmware/npu_fw.bin",
        "libnpu/museum/bugs/read_before_wait.py",
    ):  # fmt: skip
        assert expected in names
    assert any(name.endswith(".data/scripts/npu-config") for name in names)
    assert not any(name.endswith((".so", ".pyc", ".blob")) or name.startswith(("tests/", "samples/")) for name in names)


def test_a_sample_is_built_against_the_installed_wheel(environment, tmp_path):
    """libnpu.so is built there on first use."""
    flags = shlex.split(run("npu-config", "--cflags", "--libs", env=environment))
    for name in ("launch_conv.c", "check.h", "timeline.h"):
        shutil.copy(ROOT / "samples" / "c" / name, tmp_path)
    run("gcc", "-O2", "-Wall", "-Werror", "launch_conv.c", *flags, "-o", "launch_conv", cwd=tmp_path)
    printed = run(tmp_path / "launch_conv", env={})
    assert printed == (ROOT / "samples" / "c" / "expected" / "launch_conv.txt").read_text()


def test_the_museum_is_installed(environment):
    """A program in C among it, which is built."""
    printed = run("npu", "museum", "run", "blocking_copy", env=environment)
    assert printed.startswith("schedule lazy: it prints '0'; right is '2.5'\nnpu check: 1 finding\n1. ERROR HD-RAW: ")


def test_pkg_config_finds_the_library(environment):
    folder = run("npu-config", "--pkg-config", env=environment).strip()
    assert {"libnpu.so", "libnpu.pc"} <= {path.name for path in Path(folder).iterdir()}
    include = run("npu-config", "--includedir", env=environment).strip()
    text = (Path(folder) / "libnpu.pc").read_text()
    assert f"includedir={include}\nlibdir={folder}\n" in text
    if shutil.which("pkg-config"):
        said = run("pkg-config", "--cflags", "--libs", "libnpu", env={**environment, "PKG_CONFIG_PATH": folder})
        assert shlex.split(said) == [f"-I{include}", f"-L{folder}", "-lnpu", f"-Wl,-rpath,{folder}"]


def test_the_command_line_works_from_the_wheel(environment):
    assert "npu-37xx" in run("npu", "info", env=environment)
