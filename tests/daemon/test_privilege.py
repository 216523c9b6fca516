"""What needs privilege, at the daemon's door: a user who is neither root nor the daemon's owner gets EPERM, and nothing has changed."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace

import msgspec
import pytest
from npu_abi import C
from npu_driver.platform import start as start_device
from npu_model.profile import load_profile

import libnpu
from libnpu.daemon import connection, wire
from libnpu.daemon.server import Server
from tests.daemon.conftest import Client

OWNER, OTHER = 1000, 1001
PRIVILEGED = [
    (C.NPU_IOCTL_RECOVER, "npu_recover", {"kind": C.NPU_RECOVER_FULL}),
    (C.NPU_IOCTL_RECOVER, "npu_recover", {"kind": C.NPU_RECOVER_ENGINE}),
    (C.NPU_SYS_MODULE_LOAD, "npu_module", {}),
    *((C.NPU_IOCTL_EMU_INJECT, "npu_emu_inject", {"action": action, "point": C.NPU_POINT_ALLOC, "kind": C.NPU_FAULT_NO_MEMORY})
      for action in (C.NPU_INJECT_ARM, C.NPU_INJECT_DISARM, C.NPU_INJECT_QUERY)),
    (C.NPU_IOCTL_EMU_REGISTER, "npu_emu_register", {"offset": C.NPU_REG_LIVENESS, "action": C.NPU_REGISTER_WRITE}),
    (C.NPU_IOCTL_SET_PARAM, "npu_param_arg", {"param": C.NPU_PARAM_NOC_PRIORITY, "value": 7}),
]  # fmt: skip


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A daemon of user OWNER in this process: its kernel, where it listens, and whom the system names as the peer."""
    peer = SimpleNamespace(uid=OTHER)
    credentials = SimpleNamespace(size=connection.PEER.size, unpack=lambda _: (os.getpid(), peer.uid, peer.uid))
    monkeypatch.setattr(connection, "PEER", credentials)
    profile = load_profile("unit")
    kernel = start_device(profile, compute=True, numerics="exact", fidelity="fast", trace=False)
    greeting = wire.Greeting(
        profile=msgspec.Raw(msgspec.json.encode(profile)),
        compute=True,
        numerics="exact",
        fidelity="fast",
        trace=False,
        now_ps=0,
    )
    path = str(tmp_path / "npud.sock")
    server = Server(kernel, greeting, path, 0o600, lambda _: None, owner_uid=OWNER)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield SimpleNamespace(kernel=kernel, path=path, where=f"unix:{path}", peer=peer)
    server.stop()
    thread.join()


@pytest.mark.parametrize(("number", "struct", "fields"), PRIVILEGED)
def test_another_user_is_refused(served, number, struct, fields):
    client, kernel = Client(served), served.kernel
    resets = kernel.recovery.engine_resets, kernel.recovery.full_resets, kernel.module_loads
    assert client.call(number, struct, **fields)[0] == -errno.EPERM
    assert f"user {OTHER} may not" in client.door.log[-1]
    assert (kernel.recovery.engine_resets, kernel.recovery.full_resets, kernel.module_loads) == resets
    assert kernel.faults is None
    assert client.create().handle == 1  # it may use the device all the same
    client.close()


@pytest.mark.parametrize("uid", [OWNER, 0])
@pytest.mark.parametrize(("number", "struct", "fields"), PRIVILEGED)
def test_the_owner_and_root_are_not(served, uid, number, struct, fields):
    served.peer.uid = uid
    client = Client(served)
    busy = number == C.NPU_SYS_MODULE_LOAD
    assert client.call(number, struct, **fields)[0] == (-errno.EBUSY if busy else 0)
    client.close()


def test_a_program_of_another_user_is_told(served):
    with libnpu.open("unit", where=served.where) as device:
        for call in (
            device.recover,
            lambda: device.recover(engine=True),
            device.disarm_faults,
            lambda: device.inject("alloc", "no_memory"),
            lambda: device.set_noc_priority("npu", 7),
        ):
            with pytest.raises(libnpu.NpuError) as error:
                call()
            assert (error.value.result, error.value.errno) == (C.NPU_ERROR_NOT_PERMITTED, errno.EPERM)
        assert device.alloc(64).size == 64
