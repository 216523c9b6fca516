"""The bug museum at a daemon: what is reported of its programs is what is reported of them in process."""

import subprocess

import pytest

from libnpu.tools.exhibits import exhibits
from libnpu.tools.replays import watched

ALL = {name: each for name, each in exhibits().items() if "module_params" not in each.source}  # those are npud's
SOME = ("read_before_wait", "vector_cleared")


def places(records):
    """Return (rule, lines of the acts) of records."""
    return [(r["rule"], [int(a["site"].rpartition(":")[2]) if a["site"] else None for a in r["acts"]]) for r in records]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("museum")


def check(name, folder, daemon, monkeypatch):
    monkeypatch.setenv("NPU_DEVICE", daemon.where)
    for arguments, expected in (((), ALL[name].reports), (("fixed",), [])):
        status, records = watched(ALL[name].command(folder, *arguments), stdout=subprocess.DEVNULL)
        assert (status, places(records)) == (0, expected)


@pytest.mark.parametrize("name", SOME)
def test_some_programs(name, folder, shared_daemon, monkeypatch):
    check(name, folder, shared_daemon, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in ALL if name not in SOME])
def test_all_others(name, folder, shared_daemon, monkeypatch):
    check(name, folder, shared_daemon, monkeypatch)
