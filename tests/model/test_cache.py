"""The cache folder: where it is, and whose it must be."""

import os
import shutil

import pytest
from npu_model import native
from npu_model.cache import cache_folder, make_private


@pytest.mark.parametrize("relative", [None, "", "cache"])
def test_folder_follows_xdg_then_home_then_temporary(monkeypatch, tmp_path, relative):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "libnpu"
    if relative is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "libnpu"
    monkeypatch.delenv("HOME")
    assert cache_folder().name == f"libnpu-{os.getuid()}"


def test_folder_is_made_for_the_user_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = make_private(tmp_path / "libnpu")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_folder_that_others_may_write_is_refused(tmp_path, mode):
    (tmp_path / "libnpu").mkdir()
    (tmp_path / "libnpu").chmod(mode)
    with pytest.raises(PermissionError, match=r"others may write into it .*libnpu"):
        make_private(tmp_path / "libnpu")


def test_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 4242)
    with pytest.raises(PermissionError, match=f"it belongs to user {tmp_path.stat().st_uid}"):
        make_private(tmp_path)


def test_library_in_a_folder_that_others_may_write_is_not_loaded(tmp_path):
    if native.load() is None:
        pytest.skip("no gcc, or the native helpers are turned off")
    shutil.copy(cache_folder() / f"native-{native._key()}.so", tmp_path)
    assert native.build_and_load(tmp_path, "/nonexistent/gcc") is not None
    tmp_path.chmod(0o777)
    assert native.build_and_load(tmp_path, "/nonexistent/gcc") is None
