"""Every call on a context that is lost, and on a device that is gone: the errno, and nothing has changed.

`AFTER` has for each call what it returns with right fields: on a context that an engine reset banned, and when the device was unplugged; 0 works.
What only looks at the context, or ends something in it, goes on when it is lost. The emulator's own calls go on in any case.
"""

from __future__ import annotations

from errno import EBADFD, EBUSY, ENODEV

import pytest
from npu_abi import C

from tests.uapi.conftest import Scene
from tests.uapi.test_negative import CALLS, CASES, CHANGING, ROWS, resolve, segments

AFTER = {
    "NPU_SYS_OPEN": (0, ENODEV),
    "NPU_SYS_MMAP": (0, ENODEV),
    "NPU_SYS_POLL": (0, ENODEV),
    "NPU_SYS_MODULE_LOAD": (EBUSY, ENODEV),
    "NPU_SYS_MODULE_PARAMS": (0, ENODEV),
    "NPU_IOCTL_GET_PARAM": (0, ENODEV),
    "NPU_IOCTL_SET_PARAM": (0, ENODEV),  # of the whole device
    "NPU_IOCTL_BO_CREATE": (EBADFD, ENODEV),
    "NPU_IOCTL_BO_INFO": (0, ENODEV),
    "NPU_IOCTL_BO_SYNC": (0, ENODEV),
    "NPU_IOCTL_BO_FREE": (0, ENODEV),
    "NPU_IOCTL_BO_CREATE_FROM_USERPTR": (EBADFD, ENODEV),
    "NPU_IOCTL_BO_EXPORT": (EBADFD, ENODEV),
    "NPU_IOCTL_BO_IMPORT": (EBADFD, ENODEV),
    "NPU_IOCTL_SUBMIT": (EBADFD, ENODEV),
    "NPU_IOCTL_BO_WAIT": (0, ENODEV),
    "NPU_IOCTL_CMDQ_CREATE": (EBADFD, ENODEV),
    "NPU_IOCTL_CMDQ_DESTROY": (0, ENODEV),
    "NPU_IOCTL_CMDQ_SUBMIT": (EBADFD, ENODEV),
    "NPU_IOCTL_CMDQ_RING": (EBADFD, ENODEV),
    "NPU_IOCTL_GET_INFO": (0, ENODEV),
    "NPU_IOCTL_RECOVER": (0, ENODEV),
    "NPU_IOCTL_STATE_DUMP": (0, ENODEV),
    "NPU_IOCTL_EMU_TRACE_READ": (0, 0),
    "NPU_IOCTL_EMU_OVERFLOWS": (0, 0),
    "NPU_IOCTL_EMU_WATCH": (0, 0),
    "NPU_IOCTL_EMU_ACCESSES": (0, 0),
    "NPU_IOCTL_EMU_SET_SCHEDULE": (0, 0),
    "NPU_IOCTL_EMU_COUNTERS": (0, 0),
    "NPU_IOCTL_EMU_ADVANCE": (0, 0),
    "NPU_IOCTL_EMU_RUN": (0, 0),
    "NPU_IOCTL_EMU_JOB": (0, 0),
    "NPU_IOCTL_EMU_INJECT": (0, 0),
    "NPU_IOCTL_EMU_REGISTER": (0, 0),
    "NPU_IOCTL_EMU_TRAFFIC": (0, 0),
    "NPU_SYS_CLOSE": (0, 0),
}


def lost():
    """A scene whose process has lost its context."""
    scene = Scene()
    scene.kernel.recovery.ban(scene.kernel.files[scene.file.fd], "as a test says")
    return scene


def gone():
    """A scene whose device was unplugged."""
    scene = Scene()
    scene.kernel.device.unplug()
    scene.kernel.after_interrupts()
    return scene


def call_of(scene, structure, call, **changes):
    """Make a call, right but for `changes`: (result, whether the structure came back as it was)."""
    request, row = ROWS[call]
    if row.struct is None:
        return scene.file.raw(request)[0], True
    right = dict(CHANGING.get(call, CALLS[call][0] or {}))
    behind = segments(scene, row)
    if call == "NPU_IOCTL_BO_CREATE_FROM_USERPTR":
        behind = [bytes(4096)]
    if call == "NPU_IOCTL_EMU_ADVANCE":
        right["until_ps"] = scene.file.now_ps
    arg = structure(row.struct, **resolve(scene, {**right, **changes}))
    ret, out, _ = scene.file.raw(request, arg, behind)
    return ret, out == arg


def test_the_table_has_every_call():
    assert set(AFTER) == set(ROWS)


@pytest.mark.parametrize("call", AFTER)
@pytest.mark.parametrize(("make", "column"), [(lost, 0), (gone, 1)], ids=["lost", "gone"])
def test_a_right_call_afterwards(structure, make, column, call):
    scene, code = make(), AFTER[call][column]
    before = scene.fingerprint()
    ret, same = call_of(scene, structure, call)
    if not code:
        assert ret >= 0
        return
    assert ret == -code
    assert same
    assert scene.fingerprint() == before


def test_wrong_calls_on_a_lost_context_change_nothing(structure):
    scene = lost()
    before = scene.fingerprint()
    for call, field, value, code in (case.values for case in CASES):
        changes = {field: value}
        if (call, field) == ("NPU_IOCTL_BO_SYNC", "size"):
            changes["offset"] = 1
        ret, same = call_of(scene, structure, call, **changes)
        assert ret == -code or (ret == -EBADFD and AFTER[call][0] == EBADFD), (call, changes)
        assert same
    assert scene.fingerprint() == before


def test_wrong_calls_on_a_device_that_is_gone_are_enodev(structure):
    scene = gone()
    before = scene.fingerprint()
    for call, field, value, _ in (case.values for case in CASES):
        if AFTER[call][1] == ENODEV:
            assert call_of(scene, structure, call, **{field: value}) == (-ENODEV, True), (call, field, value)
    assert scene.fingerprint() == before


def test_a_neighbour_of_a_lost_context_works_and_so_does_the_next_file(file_type):
    scene = lost()
    assert scene.neighbour.run(scene.foreign, scene.neighbour.nop()) == C.NPU_JOB_SUCCESS
    assert scene.file.call(C.NPU_SYS_CLOSE)[0] == 0
    file = file_type(scene.kernel.syscall)
    assert file.run(file.queue(), file.nop()) == C.NPU_JOB_SUCCESS
