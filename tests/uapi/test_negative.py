"""Every field of every call, wrong: the errno, and nothing has changed.

`CALLS` has for each call the fields of a call that works, and for each field the wrong values with the errno of each, by npu_uapi.h.
A text in place of a list says why no value of the field is wrong. Names stand for what a process has (conftest.py): bo, command, queue,
freed, foreign, offset. Reserved fields are not listed: each of them is EINVAL.
"""

from __future__ import annotations

from errno import EBUSY, EFAULT, EINVAL, ENOENT, ENOSPC, EPERM

import pytest
from npu_abi import C, ffi
from npu_driver.ioctls import TABLE

U32, U64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
OUT = [(1, EINVAL), (U32, EINVAL)]
OVERWRITTEN = "an output that is overwritten"
SEED = "any number is a seed"
HANDLE = [(0, ENOENT), ("freed", ENOENT), ("foreign", ENOENT), (U32, ENOENT)]
WAIT_HANDLE = [(0, EINVAL), ("freed", EINVAL), ("foreign", EINVAL), (U32, EINVAL)]
QUEUE = [(0, ENOENT), ("foreign", ENOENT), (255, ENOENT), (256, ENOENT), (U32, ENOENT)]
NO_POINTER = [(0, EFAULT)]
READ = {"buffer_ptr": NO_POINTER, "buffer_bytes": "as much as fits", "used_bytes": OUT}
PRIORITY = [(5, EINVAL), (U32, EINVAL)]
COUNT = [(0, EINVAL), (2, EFAULT), (4097, EINVAL), (0x40000000, EINVAL), (U32, EINVAL)]
COMMANDS = [(1, EINVAL), (63, EINVAL), (4096, EINVAL), (0xFFFFFFC0, EINVAL), (U32, EINVAL)]

# call -> (fields of a call that works, field -> its wrong values)
CALLS = {
    "NPU_SYS_MMAP": ({"offset": "offset", "length": 8192}, {
        "offset": [(0, EINVAL), (1, EINVAL), (U64, EINVAL)],
        "length": [(0, EINVAL), (8193, EINVAL), (U64, EINVAL)],
        "flags": [(2, EINVAL), (0x20000, EINVAL), (0x30001, EINVAL), (0x10001, EINVAL), (0x120001, EINVAL), (U32, EINVAL)],
    }),
    "NPU_SYS_POLL": ({}, {"deadline_ps": "any time", "ready_jobs": OUT}),
    "NPU_SYS_MODULE_LOAD": ({}, {
        "params_ptr": "EBUSY in any case: files are open",
        "params_bytes": [(4097, EINVAL), (U32, EINVAL), (1, EFAULT), (0, EBUSY)],
        "used_bytes": OUT,
    }),
    "NPU_SYS_MODULE_PARAMS": ({"params_ptr": 1, "params_bytes": 4096}, {
        "params_ptr": NO_POINTER,
        "params_bytes": [(1, ENOSPC), (4097, EINVAL), (U32, EINVAL)],
        "used_bytes": OUT,
    }),
    "NPU_IOCTL_GET_PARAM": ({"param": C.NPU_PARAM_DEVICE_ID}, {
        "param": [(6, EINVAL), (26, EINVAL), (U32, EINVAL)], "index": [(1, EINVAL), (U32, EINVAL)], "value": OVERWRITTEN,
    }),
    "NPU_IOCTL_SET_PARAM": (None, {
        "param": [(C.NPU_PARAM_DEVICE_ID, EINVAL), (24, EINVAL), (26, EINVAL), (U32, EINVAL)], "index": [(3, EINVAL), (U32, EINVAL)],
        "value": [(C.NPU_NOC_PRIORITIES, EINVAL), (U32, EINVAL), (1 << 32, EINVAL), (U64, EINVAL)],
    }),
    "NPU_IOCTL_BO_CREATE": ({"size": 4096}, {
        "size": [(0, EINVAL), (1 << 40, 12), (1 << 63, 12), (U64, 12)],
        "flags": [(0x20, EINVAL), (0x40, EINVAL), (0x10000, EINVAL), (0x30000, EINVAL), (0x120000, EINVAL), (1 << 31, EINVAL), (U32, EINVAL)],
        "handle": OUT, "npu_va": [(4096, EINVAL)],
    }),
    "NPU_IOCTL_BO_INFO": ({"handle": "bo"}, {
        "handle": HANDLE, "flags": OVERWRITTEN, "npu_va": OVERWRITTEN, "mmap_offset": OVERWRITTEN, "size": OVERWRITTEN,
    }),
    "NPU_IOCTL_BO_SYNC": ({"handle": "bo", "size": 64}, {
        "handle": HANDLE, "direction": [(3, EINVAL), (U32, EINVAL)], "offset": [(8192, EINVAL), (8129, EINVAL), (U64, EINVAL), (U64 - 63, EINVAL)],
        "size": [(8193, EINVAL), (U64, EINVAL)], "flags": [(1, EINVAL), (1 << 31, EINVAL)],
    }),
    "NPU_IOCTL_BO_FREE": (None, {"handle": HANDLE}),
    "NPU_IOCTL_BO_CREATE_FROM_USERPTR": (None, {
        "ptr": [(0, EINVAL), (4097, EINVAL), (U64 - 4095, EINVAL), (1 << 63, EINVAL)],
        "size": [(0, EINVAL), (4095, EINVAL), (C.NPU_MAX_USERPTR_BYTES + 4096, EINVAL), (U64 - 4095, EINVAL), (8192, EFAULT)],
        "flags": [(C.NPU_BO_MAPPABLE, EINVAL), (0x20000, EINVAL), (U32, EINVAL)], "handle": OUT, "npu_va": [(4096, EINVAL)],
    }),
    "NPU_IOCTL_BO_EXPORT": ({"handle": "bo"}, {"handle": HANDLE, "token": OUT}),
    "NPU_IOCTL_BO_IMPORT": (None, {
        "token": [(0, ENOENT), (1, ENOENT), (U64, ENOENT)], "handle": OUT, "flags": OUT, "npu_va": OUT, "size": OUT,
    }),
    "NPU_IOCTL_SUBMIT": (None, {
        "buffers_ptr": NO_POINTER, "buffer_count": COUNT, "engine": [(1, EINVAL), (U32, EINVAL)], "flags": [(1, EINVAL), (1 << 31, EINVAL)],
        "commands_offset": COMMANDS, "priority": PRIORITY,
    }),
    "NPU_IOCTL_BO_WAIT": ({"handle": "bo"}, {
        "handle": WAIT_HANDLE, "flags": [(1, EINVAL), (1 << 31, EINVAL)], "deadline_ps": "any time", "job_status": OVERWRITTEN,
        "job_id": OVERWRITTEN, "error_detail": OVERWRITTEN, "error_info": OVERWRITTEN, "start_ps": OVERWRITTEN, "end_ps": OVERWRITTEN,
    }),
    "NPU_IOCTL_CMDQ_CREATE": (None, {"cmdq_id": OUT, "priority": PRIORITY, "flags": [(2, EINVAL), (1 << 31, EINVAL)]}),
    "NPU_IOCTL_CMDQ_DESTROY": (None, {"cmdq_id": QUEUE, "flags": [(2, EINVAL), (1 << 31, EINVAL)]}),
    "NPU_IOCTL_CMDQ_SUBMIT": (None, {
        "buffers_ptr": NO_POINTER, "buffer_count": COUNT,
        "cmdq_id": [(0, EINVAL), ("foreign", EINVAL), (255, EINVAL), (256, EINVAL), (U32, EINVAL)], "flags": [(1, EINVAL), (1 << 31, EINVAL)],
        "commands_offset": COMMANDS, "preempt_buffer_index": [(1, EINVAL), (U32, EINVAL)], "job_id": OUT,
    }),
    "NPU_IOCTL_CMDQ_RING": ({"cmdq_id": "queue"}, {"cmdq_id": QUEUE}),
    "NPU_IOCTL_GET_INFO": ({"kind": C.NPU_INFO_DEVICE, "buffer_ptr": 1, "buffer_bytes": 72}, {
        **READ, "kind": [(0, EINVAL), (3, EINVAL), (U32, EINVAL)],
    }),
    "NPU_IOCTL_RECOVER": (None, {"kind": [(2, EINVAL), (U32, EINVAL)]}),
    "NPU_IOCTL_STATE_DUMP": ({"buffer_ptr": 1, "buffer_bytes": 64}, READ),
    "NPU_IOCTL_EMU_TRACE_READ": ({"buffer_ptr": 1, "buffer_bytes": 64}, READ),
    "NPU_IOCTL_EMU_OVERFLOWS": ({"buffer_ptr": 1, "buffer_bytes": 64}, READ),
    "NPU_IOCTL_EMU_ACCESSES": ({"buffer_ptr": 1, "buffer_bytes": 96}, READ),
    "NPU_IOCTL_EMU_WATCH": ({}, {"enable": [(2, EINVAL), (U32, EINVAL)]}),
    "NPU_IOCTL_EMU_SET_SCHEDULE": ({}, {"kind": [(2, EINVAL), (U32, EINVAL)], "seed": SEED}),
    "NPU_IOCTL_EMU_COUNTERS": ({"buffer_ptr": 1, "count": 1}, {
        "buffer_ptr": NO_POINTER, "count": [(0, EINVAL), (C.NPU_PMU_COUNT + 1, EINVAL), (U32, EINVAL)],
    }),
    "NPU_IOCTL_EMU_ADVANCE": (None, {"until_ps": [(0, EINVAL), (U64, EINVAL)]}),
    "NPU_IOCTL_EMU_RUN": ({}, {"until_ps": "any time", "now_ps": OUT, "next_ps": OUT, "interrupts": OUT, "edges": OUT}),
    "NPU_IOCTL_EMU_JOB": ({"handle": "bo"}, {"handle": HANDLE, "finished": OUT, "done_ps": OUT, "job_status": OUT}),
    "NPU_IOCTL_EMU_INJECT": (None, {
        "point": [(C.NPU_POINT_COUNT, EINVAL), (U32, EINVAL)], "kind": [(0, EINVAL), (13, EINVAL), (U32, EINVAL)],
        "after": "any number of passes", "count": "any number of times", "seed": SEED, "action": [(3, EINVAL), (U32, EINVAL)], "struck": OUT,
    }),
    "NPU_IOCTL_EMU_REGISTER": ({"offset": C.NPU_REG_ID_MAGIC}, {
        "offset": [(0, EINVAL), (C.NPU_REG_IP_RESET, EINVAL), (C.NPU_REG_ID_MAGIC + 2, EINVAL), (C.NPU_BAR0_SIZE, EINVAL), (U32, EINVAL)],
        "action": [(2, EINVAL), (U32, EINVAL)], "value": OUT,
    }),
    "NPU_IOCTL_EMU_TRAFFIC": (None, {
        "client": [(0, EINVAL), (U32, EINVAL)], "write_permille": [(1001, EINVAL), (U32, EINVAL)], "bytes_per_second": [(U64, EINVAL)],
        "burst_bytes": [(0, EINVAL), (C.NPU_MAX_TRAFFIC_BURST_BYTES + 1, EINVAL), (U64, EINVAL)], "address": [(1 << 40, EINVAL), (U64, EINVAL)],
        "span_bytes": [(0, EINVAL), (255, EINVAL), (U64, EINVAL)], "seed": SEED,
    }),
}  # fmt: skip
# Calls that change what the others need: right but for the one field.
CHANGING = {
    "NPU_IOCTL_SET_PARAM": {"param": C.NPU_PARAM_NOC_PRIORITY, "value": 7},
    "NPU_IOCTL_BO_FREE": {"handle": "bo"},
    "NPU_IOCTL_BO_CREATE_FROM_USERPTR": {"ptr": 1 << 20, "size": 4096},
    "NPU_IOCTL_BO_IMPORT": {},
    "NPU_IOCTL_SUBMIT": {"buffers_ptr": 1, "buffer_count": 1},
    "NPU_IOCTL_CMDQ_CREATE": {},
    "NPU_IOCTL_CMDQ_DESTROY": {"cmdq_id": "queue"},
    "NPU_IOCTL_CMDQ_SUBMIT": {"buffers_ptr": 1, "buffer_count": 1, "cmdq_id": "queue"},
    "NPU_IOCTL_RECOVER": {},
    "NPU_IOCTL_EMU_ADVANCE": {},
    "NPU_IOCTL_EMU_INJECT": {"point": C.NPU_POINT_ALLOC, "kind": C.NPU_FAULT_NO_MEMORY},
    "NPU_IOCTL_EMU_TRAFFIC": {"client": 2, "burst_bytes": 256, "span_bytes": 4096},
}
ROWS = {row.name: (request, row) for request, row in TABLE.items()}
CASES = [
    pytest.param(call, field, value, code, id=f"{call.removeprefix('NPU_')}-{field}-{value}")
    for call, (_, fields) in CALLS.items()
    for field, values in fields.items()
    if isinstance(values, list)
    for value, code in values
]


def resolve(scene, fields):
    return {name: getattr(scene, value) if isinstance(value, str) else value for name, value in fields.items()}


def segments(scene, row):
    """What is behind the pointers: the one handle of a submit, nothing that can be read else."""
    return [scene.command.to_bytes(4, "little")] if "SUBMIT" in row.name else []


def fields_of(row):
    return dict(ffi.typeof(f"struct {row.struct}").fields)


def test_the_table_has_every_field_of_every_call():
    for name, (_, row) in ROWS.items():
        if row.struct is not None:
            members = {member for member in fields_of(row) if not member.startswith("reserved")}
            assert set(CALLS[name][1]) == members, name


@pytest.mark.parametrize(
    "call", [name for name, (good, _) in CALLS.items() if good is not None and name != "NPU_SYS_MODULE_LOAD"]
)
def test_a_call_with_right_fields_works(scene, structure, call):
    request, row = ROWS[call]
    arg = structure(row.struct, **resolve(scene, CALLS[call][0]))
    assert scene.file.raw(request, arg, segments(scene, row))[0] >= 0


@pytest.mark.parametrize(("call", "field", "value", "code"), CASES)
def test_a_wrong_field_is_refused_and_nothing_has_changed(scene, structure, call, field, value, code):
    request, row = ROWS[call]
    fields = resolve(scene, {**CHANGING.get(call, CALLS[call][0]), field: value})
    if call == "NPU_IOCTL_BO_SYNC" and field == "size":
        fields["offset"] = 1
    before = scene.fingerprint()
    arg = structure(row.struct, **fields)
    ret, out, _ = scene.file.raw(request, arg, segments(scene, row))
    assert -ret == code
    assert out == arg
    assert scene.fingerprint() == before


@pytest.mark.parametrize("call", [name for name, (_, row) in ROWS.items() if row.reserved])
def test_every_reserved_bit_is_refused_and_nothing_has_changed(scene, structure, call):
    request, row = ROWS[call]
    good = structure(row.struct, **resolve(scene, CHANGING.get(call, CALLS[call][0])))
    before = scene.fingerprint()
    for start, end in row.reserved:
        for bit in range(8 * start, 8 * end):
            arg = bytearray(good)
            arg[bit // 8] |= 1 << bit % 8
            assert scene.file.raw(request, bytes(arg), segments(scene, row))[0] == -EINVAL
    assert scene.fingerprint() == before


def test_a_handle_of_the_neighbour_or_a_freed_one_in_a_list_of_buffers(scene, structure):
    request, row = ROWS["NPU_IOCTL_CMDQ_SUBMIT"]
    before = scene.fingerprint()
    arg = structure(row.struct, buffers_ptr=1, buffer_count=2, cmdq_id=scene.queue)
    for other, code in ((scene.freed, ENOENT), (scene.foreign, ENOENT), (0, ENOENT), (scene.command, 114)):
        data = scene.command.to_bytes(4, "little") + other.to_bytes(4, "little")
        assert scene.file.raw(request, arg, [data])[0] == -code
    assert scene.fingerprint() == before


def test_who_is_not_privileged_may_not_reset_load_or_inject(scene, structure):
    from dataclasses import replace

    kernel = scene.kernel
    was, kernel.current = kernel.current, replace(kernel.current, privileged=False)
    before = scene.fingerprint()
    try:
        for call in (
            "NPU_IOCTL_RECOVER",
            "NPU_SYS_MODULE_LOAD",
            "NPU_IOCTL_SET_PARAM",
            "NPU_IOCTL_EMU_INJECT",
            "NPU_IOCTL_EMU_TRAFFIC",
        ):
            request, row = ROWS[call]
            arg = structure(row.struct, **CHANGING.get(call, {}))
            assert scene.file.raw(request, arg)[0] == -EPERM
    finally:
        kernel.current = was
    assert scene.fingerprint() == before


def test_the_device_works_afterwards(scene):
    assert scene.file.run(scene.queue, scene.command) == C.NPU_JOB_SUCCESS
    assert scene.neighbour.run(scene.foreign, scene.neighbour.nop()) == C.NPU_JOB_SUCCESS
