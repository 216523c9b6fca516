"""The records of what engines read and wrote: exactly the bytes that descriptors and programs name."""

import npu_abi
import numpy as np
from npu_abi import C

import libnpu
from libnpu.runtime.records import read_records
from libnpu.syscalls import Request

RECORD = npu_abi.dtype("npu_access_record")


def watch(context, enable):
    request = Request(C.NPU_IOCTL_EMU_WATCH, "npu_emu_watch", "EMU_WATCH")
    request.arg.enable = enable
    context.node.ioctl(request)


def accesses(context):
    """Return (address, bytes of a run, runs, stride of several, whether it writes) since the last call."""
    request = Request(C.NPU_IOCTL_EMU_ACCESSES, "npu_emu_accesses", "EMU_ACCESSES")
    rows = read_records(context.node, request, RECORD).tolist()
    return [
        (at, size, count, stride if count > 1 else 0, bool(write)) for _, at, size, stride, count, write, _, _ in rows
    ]


def test_copies_fills_and_kernels_are_noted_exactly_while_watched():
    with libnpu.open("unit") as device:
        context, stream = device.primary, device.default_stream
        x, y = device.alloc(1000), device.alloc(4096)
        stream.fill(x, 0)
        stream.synchronize()
        assert accesses(context) == []
        watch(context, 1)
        stream.copy(y[3:1003], x)
        stream.copy_2d(y[5:], 64, x, 10, 10, 7)
        stream.synchronize()
        ours = [row for row in accesses(context) if x.device_address <= row[0] < x.device_address + 4096 * 8]
        assert ours == [
            (x.device_address, 1000, 1, 0, False), (y.device_address + 3, 1000, 1, 0, True),
            (x.device_address, 70, 1, 0, False), (y.device_address + 5, 10, 7, 64, True),
        ]  # fmt: skip
        device.kernel("scale_add").launch(stream, x, y, 2.0, 250)
        stream.synchronize()
        touched = {(at, write): size for at, size, *_, write in accesses(context)}
        assert touched[x.device_address, False] == touched[y.device_address, True] == 1000
        watch(context, 0)
        stream.fill(x, 1)
        stream.synchronize()
        assert accesses(context) == []


def test_each_context_has_its_own():
    with libnpu.open("unit") as device, device.create_context() as other:
        watch(device.primary, 1)
        memory = other.alloc(64)
        other.fill(memory, 1)
        mine = device.alloc(64)
        device.primary.fill(mine, 1)
        assert [row[0] for row in accesses(device.primary) if row[4]] == [mine.device_address]
        assert accesses(other) == []
        other.destroy(force=True)


def test_watching_changes_no_time():
    def run(enable):
        with libnpu.open("npu-37xx") as device:
            x, y = device.to_device(np.ones(1 << 16, np.float32)), device.alloc(1 << 18)
            watch(device.primary, enable)
            for _ in range(3):
                device.kernel("relu").launch(device.default_stream, x, y, 1 << 16)
            device.synchronize()
            return device.now_ps

    assert run(0) == run(1)
