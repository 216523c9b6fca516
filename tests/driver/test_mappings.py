"""CPU mappings of several processes: who pays for looking at them, where what they show lies, and how many there may be."""

from __future__ import annotations

import errno
from collections import Counter

import pytest
from npu_abi import C
from npu_device import Device
from npu_driver import Kernel, ioctl_bo
from npu_driver.cpu_cache import CachedShadow, CombinedShadow
from npu_driver.file import Context
from npu_driver.params import parse
from npu_driver.process import Process as Caller

from tests.driver.conftest import Process

WC = int(C.NPU_BO_MAPPABLE | C.NPU_BO_WC)
SHAREABLE = int(C.NPU_BO_MAPPABLE | C.NPU_BO_SHAREABLE)
NON_SNOOPED = int(C.NPU_BO_MAPPABLE | C.NPU_BO_NON_SNOOPED)


class Neighbour(Process):
    """A process that is not the kernel's own."""

    def __init__(self, kernel, pid):
        self.caller = Caller(pid, 1000, "neighbour", privileged=False)
        self.kernel = kernel
        super().__init__(kernel)

    def raw(self, *arguments):
        self.kernel.current = self.caller
        return super().raw(*arguments)

    def export(self, handle):
        return self.call(C.NPU_IOCTL_BO_EXPORT, "npu_bo_export", handle=handle)[1].token

    def bring_in(self, token):
        return self.call(C.NPU_IOCTL_BO_IMPORT, "npu_bo_import", token=token)[1].handle

    def free(self, handle):
        assert self.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)[0] == 0

    def sync(self, handle, size=4096):
        arguments = {"handle": handle, "direction": C.NPU_SYNC_TO_DEVICE, "size": size}
        assert self.call(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", **arguments)[0] == 0


@pytest.fixture
def pair(kernel):
    return Neighbour(kernel, 11), Neighbour(kernel, 12)


@pytest.fixture
def looks(monkeypatch):
    """How often a shadow is compared, by method."""
    counts = Counter()

    def count(kind, name):
        real = getattr(kind, name)

        def counted(self, *arguments):
            counts[kind.__name__, name] += 1
            return real(self, *arguments)

        monkeypatch.setattr(kind, name, counted)

    for kind, name in ((CombinedShadow, "changed"), (CombinedShadow, "refresh"), (CachedShadow, "changed")):
        count(kind, name)
    return counts


def memory(kernel, bo):
    return bytes(kernel.memory.view(bo.pa, 8))


def test_a_call_looks_at_what_its_own_process_has_mapped(pair, looks):
    one, other = pair
    mapping = one.map(one.create(1 << 16, WC).handle)
    handle = other.create().handle
    looks.clear()
    other.info(handle)
    assert not looks
    one.param(C.NPU_PARAM_DDR_BYTES)
    assert looks == {("CombinedShadow", "changed"): 1, ("CombinedShadow", "refresh"): 1}
    del mapping


@pytest.mark.parametrize("evict", ["evict", "seed:1"])
def test_jobs_of_a_process_evict_what_it_has_mapped(evict, nop, looks):
    kernel = Kernel(Device("unit"), params=parse(f"evict={evict}"))
    one, other = Neighbour(kernel, 11), Neighbour(kernel, 12)
    mapping = one.map(one.create(4096, NON_SNOOPED).handle)
    queue, commands = other.queue(), other.commands(nop)
    looks.clear()
    assert other.submit(queue, commands) == 0
    assert other.wait(commands)[1].job_status == C.NPU_JOB_SUCCESS
    assert not looks
    queue, commands = one.queue(), one.commands(nop)
    assert one.submit(queue, commands) == 0
    assert one.wait(commands)[1].job_status == C.NPU_JOB_SUCCESS
    assert looks
    del mapping


def test_stores_to_shared_write_combined_memory_go_out_at_calls_of_who_has_it_mapped(kernel, pair):
    one, other = pair
    mine = one.create(4096, SHAREABLE | WC).handle
    theirs = other.bring_in(one.export(mine))
    bo = one.kernel.files[one.fd].objects[mine]
    one_sees, other_sees = one.map(mine), other.map(theirs)
    one_sees[:4] = b"mine"
    other.sync(theirs)
    assert memory(kernel, bo)[:4] == b"mine"
    del one_sees
    other_sees[4:8] = b"ours"
    one.sync(mine)
    assert memory(kernel, bo) == b"mine\xff\xff\xff\xff"  # it has nothing mapped any more
    other.sync(theirs)
    assert memory(kernel, bo) == b"mineours"
    other_sees[:4] = b"last"
    del other_sees
    one.info(mine)
    assert memory(kernel, bo) == b"lastours"
    assert not kernel.caches.active


def test_freed_objects_that_stay_mapped_cost_others_nothing(kernel, pair, monkeypatch):
    one, other = pair
    before = kernel.memory.free_bytes
    mappings = []
    for _ in range(50):
        handle = one.create().handle
        mappings.append(one.map(handle))
        one.free(handle)
    seen = []
    let_go = Context._let_go
    monkeypatch.setattr(Context, "_let_go", lambda self, bo: (seen.append(bo), let_go(self, bo)))
    other.free(other.create().handle)
    assert len(seen) == 1
    assert kernel.memory.free_bytes <= before - 50 * 4096
    del mappings[10:]
    seen.clear()
    other.free(other.create().handle)
    assert len(seen) == 41
    mappings.clear()
    for process in pair:
        process.call(C.NPU_SYS_CLOSE)
    assert kernel.memory.free_bytes >= before
    assert not kernel.mapped or not any(kernel.mapped.values())


@pytest.mark.parametrize("flags", [0, C.NPU_BO_WC, C.NPU_BO_NON_SNOOPED])
def test_who_shares_memory_gets_files_of_the_owners_shareable_memory_and_no_others(kernel, pair, flags):
    def file(process, handle):
        return kernel.device.dram.find(process.map(handle))[0]

    owner, other = pair
    handle = owner.create(8192, SHAREABLE | flags).handle
    imported = other.bring_in(owner.export(handle))
    shared = {file(other, imported), file(owner, handle)}
    assert shared == {file(owner, owner.create(4096, SHAREABLE).handle)}
    for process in pair:
        for own in (WC, NON_SNOOPED, C.NPU_BO_MAPPABLE):
            assert file(process, process.create(4096, own).handle) not in shared
    assert file(other, other.create(4096, SHAREABLE).handle) not in shared


@pytest.mark.parametrize("flags", [C.NPU_BO_WC, C.NPU_BO_NON_SNOOPED])
@pytest.mark.parametrize("early", [False, True])
def test_memory_whose_owner_is_gone_has_no_place_for_a_shadow(kernel, pair, flags, early):
    owner, other = pair
    before = kernel.memory.free_bytes
    imported = other.bring_in(owner.export(owner.create(4096, SHAREABLE | flags).handle))
    if early:
        other.map(imported)[:4] = b"kept"
    assert owner.call(C.NPU_SYS_CLOSE)[0] == 0
    again = Neighbour(kernel, 13)  # has the number of the context that is gone
    info = other.info(imported)
    ret, _, replies = other.call(C.NPU_SYS_MMAP, "npu_mmap", offset=info.mmap_offset, length=4096)
    if early and flags == C.NPU_BO_NON_SNOOPED:
        assert (ret, bytes(replies[0][:4])) == (0, b"kept")
    else:
        assert ret == -errno.EOWNERDEAD
    policy = {"flags": C.NPU_MMAP_POLICY, "offset": info.mmap_offset, "length": 4096}
    assert other.call(C.NPU_SYS_MMAP, "npu_mmap", **policy)[0] == 0
    del replies
    for process in (other, again):
        process.call(C.NPU_SYS_CLOSE)
    assert kernel.memory.free_bytes >= before


def test_a_process_has_so_many_mappings_and_no_more(kernel, pair, monkeypatch):
    assert ioctl_bo.MAX_MAPPINGS == C.NPU_MAX_MAPPINGS == 65530
    monkeypatch.setattr(ioctl_bo, "MAX_MAPPINGS", 3)
    one, other = pair
    handle = one.create().handle
    info = one.info(handle)

    def mmap(process, offset):
        return process.call(C.NPU_SYS_MMAP, "npu_mmap", offset=offset, length=4096)

    held = [mmap(one, info.mmap_offset)[2][0] for _ in range(3)]
    assert mmap(one, info.mmap_offset)[0] == -errno.ENOMEM
    assert kernel.log[-1].endswith("ENOMEM: process 11 has NPU_MAX_MAPPINGS 3 mappings")
    user = {"ptr": 1 << 20, "size": 4096}
    before = kernel.memory.free_bytes
    refused = one.call(C.NPU_IOCTL_BO_CREATE_FROM_USERPTR, "npu_bo_userptr", [bytes(4096)], **user)
    assert (refused[0], kernel.memory.free_bytes) == (-errno.ENOMEM, before)
    other.map(other.create().handle)
    held.pop()
    assert mmap(one, info.mmap_offset)[0] == 0
