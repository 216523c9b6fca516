"""`npu kmd`, `npu smi` and `npu dump` at npud's device."""

from __future__ import annotations

import errno
import json
import time

from npu_abi import C, ioctl_request

from libnpu.daemon.client import Door
from tests.daemon.conftest import Client, until

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


def test_an_older_firmware_at_npud_refuses_cached_mappings(start, npu, monkeypatch, tmp_path):
    daemon = start("--module-params", "tdr_timeout_ms=500")
    monkeypatch.setenv("NPU_DEVICE", daemon.where)

    def mapped():
        client = Client(daemon)
        handle = client.create(4096, C.NPU_BO_MAPPABLE).handle
        offset = client.info(handle).mmap_offset
        ret = client.call(C.NPU_SYS_MMAP, "npu_mmap", offset=offset, length=4096)[0]
        assert client.call(C.NPU_SYS_CLOSE)[0] == 0
        client.close()
        return ret

    assert mapped() == 0
    path = tmp_path / "old.bin"
    assert npu("fw", "set-version", "2.0.9", "-o", path)[0] == 0
    params = json.loads(npu("kmd", "params", "--json")[1])
    assert (params["firmware"], params["tdr_timeout_ms"]) == (str(path), "500")
    assert mapped() == -errno.EOPNOTSUPP
    assert npu("kmd", "reload", "--param", f"firmware={path}", "--param", "force_coherent=1")[0] == 0
    assert mapped() == 0
    user = Client(daemon)
    status, _, err = npu("fw", "set-version", "2.0.8", "-o", path)
    assert status == 1
    assert "EBUSY" in err
    user.close()
    until(lambda: npu("fw", "set-version", "2.1.0", "-o", path)[0] == 0)
    assert mapped() == 0


def test_r037_a_priority_at_npud_is_of_its_device_until_the_module_is_loaded_anew(daemon, npu, monkeypatch):
    monkeypatch.setenv("NPU_DEVICE", daemon.where)

    def seen():
        return list(json.loads(npu("fw", "qos", "--json")[1])["priorities"].values())

    assert npu("fw", "qos", "--client", "npu", "--prio", "7")[0] == 0
    assert seen() == [7, 7, 0]  # in another process, when the one that set it has gone
    user = Client(daemon)
    assert user.call(C.NPU_IOCTL_RECOVER, "npu_recover", kind=C.NPU_RECOVER_FULL)[0] == 0
    assert [user.param(C.NPU_PARAM_NOC_PRIORITY, client) for client in range(3)] == [7, 7, 0]
    user.close()
    until(lambda: npu("kmd", "reload")[0] == 0)
    assert seen() == [0, 0, 0]
