"""`npu kmd`, `npu smi` and `npu dump` at npud's device."""

from __future__ import annotations

import json
import time

from npu_abi import C, ioctl_request

from libnpu.daemon.client import Door

PATIENCE_S = 20  # the daemon sees the end of a process in its own time


def test_reload_with_a_file_open_is_busy_and_without_one_works(daemon, npu, monkeypatch):
    monkeypatch.setenv("NPU_DEVICE", daemon.where)
    user = Door(daemon.path)
    assert user.call(ioctl_request(C.NPU_SYS_OPEN, None), b"", [], 0)[0] > 0
    status, _, err = npu("kmd", "reload", "--param", "coherent=0")
    assert status == 1
    assert "EBUSY" in err
    report = json.loads(npu("smi", "--json")[1])
    assert [context["ssid"] for context in report["contexts"]] == [2, 3]
    assert "2 contexts" in npu("dump")[1]
    user.close()
    end = time.monotonic() + PATIENCE_S
    while (done := npu("kmd", "reload", "--param", "coherent=0"))[0] and time.monotonic() < end:
        time.sleep(0.01)
    assert "coherent=0" in done[1]
    assert json.loads(npu("smi", "--json")[1])["device"]["module_loads"] == 2
