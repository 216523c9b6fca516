"""npu-config: what it answers, and what it says when the library cannot be built."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from libnpu.capi import build as build_module
from libnpu.capi import config


def test_builds_at_the_same_time_leave_one_whole_library(tmp_path):
    compiler = tmp_path / "bin" / "gcc"  # how fast the library is does not matter here
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("gcc")} "$@" -O0\n')
    compiler.chmod(0o755)
    path = f"{compiler.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PATH": path}

    def libdir(_):
        command = [sys.executable, "-m", "libnpu.capi.config", "--libdir"]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(libdir, range(2))
    assert first == second
    assert [path.name for path in (tmp_path / "libnpu").iterdir()] == [Path(first.strip()).name]


@pytest.mark.parametrize(
    ("arguments", "status", "out", "err"),
    [
        (["--version"], 0, "0.2\n", ""),
        (["--frobnicate"], 1, "", "npu-config: unknown option --frobnicate; npu-config --help lists them\n"),
    ],
)
def test_npu_config_answers_and_refuses(arguments, status, out, err):
    run = subprocess.run(
        [sys.executable, "-m", "libnpu.capi.config", *arguments], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (status, out, err)


def test_npu_config_names_a_missing_compiler(tmp_path):
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "libnpu.capi.config", "--libs"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (run.returncode, run.stderr) == (1, "npu-config: no C compiler: install gcc (apt-get install gcc)\n")


def test_missing_libpython_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr(build_module, "python_libraries", list)
    with pytest.raises(build_module.BuildError, match=r"^no libpython .*apt-get install libpython3-dev\)$"):
        build_module.compile_library(tmp_path)


def test_missing_python_headers_are_named_with_their_package(monkeypatch, tmp_path):
    monkeypatch.setattr(build_module.sysconfig, "get_path", lambda name: "/nonexistent")
    with pytest.raises(
        build_module.BuildError, match=r"^no Python.h in /nonexistent: .*apt-get install python3-dev\)$"
    ):
        build_module.compile_library(tmp_path)


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """A cache folder of its own, and instead of the compiler something that writes one file. Returns the list of builds."""
    builds = []

    def compile_library(folder):
        builds.append(folder)
        (folder / "libnpu.so").write_bytes(b"the library")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build_module, "compile_library", compile_library)
    return builds


@pytest.mark.parametrize("damage", [b"", b"the librar", b"another one", None], ids=["empty", "cut", "other", "gone"])
def test_damaged_library_is_built_again(stand_in, damage):
    library = build_module.library_folder() / "libnpu.so"
    assert build_module.library_folder() == library.parent
    assert len(stand_in) == 1
    if damage is None:
        library.unlink()
    else:
        library.write_bytes(damage)
    assert build_module.library_folder() == library.parent
    assert (len(stand_in), library.read_bytes()) == (2, b"the library")
    assert list(library.parent.parent.iterdir()) == [library.parent]


def test_commas_in_the_cache_folder_reach_the_linker_whole(stand_in, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a,b"))
    assert config.main(["--libs"]) == 0
    folder = build_module.library_folder()
    assert "a,b" in str(folder)
    assert capsys.readouterr().out == f"-L{folder} -lnpu -Xlinker -rpath -Xlinker {folder}\n"


def test_comma_in_the_cache_folder_is_refused_for_pkg_config(stand_in, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a,b"))
    assert config.main(["--pkg-config"]) == 1
    assert capsys.readouterr().err.endswith(
        "has a comma, which -Wl cannot take: set XDG_CACHE_HOME to another folder\n"
    )


def test_the_package_file_is_beside_the_library(stand_in, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    assert config.main(["--pkg-config"]) == 0
    folder = capsys.readouterr().out.rstrip("\n")
    assert (tmp_path / "a b") in Path(folder).parents
    lines = Path(folder, "libnpu.pc").read_text().splitlines()
    assert "libdir=" + folder.replace(" ", "\\ ") in lines
    assert lines[-2:] == ["Cflags: -I${includedir}", "Libs: -L${libdir} -lnpu -Wl,-rpath,${libdir}"]


def test_colon_in_the_cache_folder_is_refused(stand_in, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a:b"))
    assert config.main(["--libs"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("has a colon, and run paths end at one: set XDG_CACHE_HOME to another folder\n")


def test_cache_folder_that_is_a_file_is_named(stand_in, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert config.main(["--libs"]) == 1
    assert (
        capsys.readouterr().err == f"npu-config: cannot make the cache folder {tmp_path}/file/libnpu: Not a directory\n"
    )


def test_compiler_that_fails_without_a_word_is_named_with_its_status(monkeypatch, tmp_path):
    gcc = tmp_path / "gcc"
    gcc.write_text("#!/bin/sh\nexit 3\n")
    gcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build_module, "python_libraries", lambda: [Path("/usr/lib/libpython.so")])
    monkeypatch.setattr(build_module, "generate", lambda folder: None)
    with pytest.raises(build_module.BuildError, match=rf"^{gcc} failed and says: nothing, and ends with status 3$"):
        build_module.compile_library(tmp_path)


def test_cache_folder_that_others_may_write_is_refused(stand_in, monkeypatch, tmp_path, capsys):
    folder = tmp_path / "cache" / "libnpu"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert config.main(["--libs"]) == 1
    assert capsys.readouterr().err == (
        f"npu-config: the cache folder {folder} cannot be used: others may write into it (chmod go-w ends that)\n"
    )
