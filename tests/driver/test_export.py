"""BO_EXPORT and BO_IMPORT: one memory in several contexts, which lives as long as anybody has it."""

from __future__ import annotations

import errno

import pytest
from npu_abi import C

from tests.driver.conftest import Process

SHAREABLE = int(C.NPU_BO_MAPPABLE | C.NPU_BO_SHAREABLE)


def export(process, handle, **fields):
    ret, arg, _ = process.call(C.NPU_IOCTL_BO_EXPORT, "npu_bo_export", handle=handle, **fields)
    return ret if ret < 0 else arg.token


def bring_in(process, token, **fields):
    ret, arg, _ = process.call(C.NPU_IOCTL_BO_IMPORT, "npu_bo_import", token=token, **fields)
    return ret if ret < 0 else (arg.handle, arg.npu_va, arg.size, arg.flags)


def free(process, handle):
    return process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)[0]


def test_an_import_shows_the_same_memory_and_has_its_flags(kernel):
    one, other = Process(kernel), Process(kernel)
    handle, _ = one.bo(5000, SHAREABLE | C.NPU_BO_READ_ONLY)
    token = export(one, handle)
    assert token and token == export(one, handle)
    imported, va, size, flags = bring_in(other, token)
    assert (size, flags) == (8192, SHAREABLE | C.NPU_BO_READ_ONLY)
    assert va >= 0x1_0000_0000
    one.map(handle)[:4] = b"data"
    assert bytes(other.map(imported)[:4]) == b"data"


def test_the_memory_lives_as_long_as_anybody_has_it(kernel):
    one, other, third = Process(kernel), Process(kernel), Process(kernel)
    before = kernel.memory.free_bytes
    handle, _ = one.bo(4096, SHAREABLE)
    token = export(one, handle)
    first, second = bring_in(other, token)[0], bring_in(third, token)[0]
    one.map(handle)[:4] = b"kept"
    assert free(one, handle) == 0
    assert bring_in(third, token) == -errno.ENOENT
    assert bytes(other.map(first)[:4]) == b"kept"
    assert free(other, first) == 0
    one.call(C.NPU_SYS_CLOSE)
    assert bytes(third.map(second)[:4]) == b"kept"
    assert free(third, second) == 0
    other.call(C.NPU_SYS_CLOSE)
    third.call(C.NPU_SYS_CLOSE)
    assert kernel.memory.free_bytes >= before


def test_a_token_ends_with_its_owner(kernel):
    one, other = Process(kernel), Process(kernel)
    token = export(one, one.bo(4096, SHAREABLE)[0])
    one.call(C.NPU_SYS_CLOSE)
    again = Process(kernel)  # has the number of the context that is gone
    again.bo()
    assert bring_in(other, token) == -errno.ENOENT


def test_what_may_not_be(kernel):
    one, other = Process(kernel), Process(kernel)
    handle, _ = one.bo(4096, SHAREABLE)
    token = export(one, handle)
    imported = bring_in(other, token)[0]
    assert export(one, 99) == -errno.ENOENT
    assert export(one, handle, token=1) == -errno.EINVAL
    assert export(one, handle, reserved=1) == -errno.EINVAL
    assert export(other, imported) == -errno.EOPNOTSUPP
    assert export(one, one.bo()[0]) == -errno.EOPNOTSUPP
    assert kernel.log[-1].endswith("export of buffer object 2, made without NPU_BO_SHAREABLE")
    for wrong in (0, token ^ 1, (1 << 64) - 1):
        assert bring_in(other, wrong) == -errno.ENOENT
    for field in ("handle", "flags", "npu_va", "size"):
        assert bring_in(other, token, **{field: 1}) == -errno.EINVAL
    assert set(kernel.contexts[3].objects) == {imported}


@pytest.mark.parametrize("flags", [0, C.NPU_BO_SHAVE_MEM, C.NPU_BO_MAPPABLE | C.NPU_BO_SHAVE_MEM])
def test_only_memory_that_every_process_can_map_is_shareable(kernel, flags):
    one = Process(kernel)
    ret, _, _ = one.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=4096, flags=flags | C.NPU_BO_SHAREABLE)
    assert ret == -errno.EINVAL
    assert kernel.log[-1].endswith("NPU_BO_SHAREABLE is for NPU_BO_MAPPABLE without NPU_BO_SHAVE_MEM")


def test_tokens_of_freed_objects_do_not_pile_up(kernel):
    one = Process(kernel)
    lives = one.bo(4096, SHAREABLE)[0]
    token = export(one, lives)
    for _ in range(300):
        handle, _ = one.bo(4096, SHAREABLE)
        export(one, handle)
        free(one, handle)
    assert len(kernel.exports._by_token) < 150
    assert export(one, lives) == token


def test_tokens_depend_on_the_key(kernel):
    one = Process(kernel)
    first = export(one, one.bo(4096, SHAREABLE)[0])
    kernel.exports.key = b"secret"
    kernel.exports._count = 0
    assert export(one, one.bo(4096, SHAREABLE)[0]) != first
