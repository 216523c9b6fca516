"""Any sequence of calls with any structures: an errno or a result each time, and a neighbour that never notices."""

from __future__ import annotations

import errno

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from npu_abi import C, ffi
from npu_device import Device
from npu_driver import Kernel
from npu_driver.ioctls import TABLE

SMALL = st.integers(0, 8)
WORDS = st.one_of(
    SMALL, SMALL, st.sampled_from([63, 64, 4096, 0x20000, 0xFFFFFFFF, 0x8000_0000]), st.integers(0, 0xFFFFF)
)
CALLS = sorted(request for request, row in TABLE.items() if row.name not in ("NPU_SYS_OPEN", "NPU_SYS_CLOSE"))
STEPS = st.lists(
    st.tuples(st.sampled_from(CALLS), st.lists(WORDS, min_size=14, max_size=14), st.lists(SMALL, max_size=4))
)


def fill(row, words):
    """The row's structure with `words` in its members; the reserved ones stay zero."""
    struct = ffi.new(row.ctype)
    for (name, field), word in zip(ffi.typeof(f"struct {row.struct}").fields, words, strict=False):
        if not name.startswith("reserved"):
            setattr(struct, name, word % (1 << 8 * ffi.sizeof(field.type) - 1))
    return bytes(ffi.buffer(struct))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_nothing_that_a_process_does_reaches_its_neighbour(process_type, command, steps):
    kernel = Kernel(Device("unit"))
    attacker, neighbour = process_type(kernel), process_type(kernel)
    for request, words, handles in steps:
        row = TABLE[request]
        arg = fill(row, words) if row.struct else b""
        ret, out, _ = attacker.raw(request, arg, [bytes(ffi.buffer(ffi.new("uint32_t[]", handles)))])
        assert ret >= 0 or -ret in errno.errorcode
        assert len(out) == len(arg)
    neighbour.now_ps = attacker.now_ps
    fence, fence_va = neighbour.bo()
    neighbour.map(fence)[:8] = bytes(8)
    signal = command("npu_cmd_fence", C.NPU_CMD_FENCE_SIGNAL, offset=0, value=5)
    handle, queue = neighbour.commands(signal, fence_heap_va=fence_va), neighbour.queue()
    assert neighbour.submit(queue, handle, fence) == 0
    ret, done = neighbour.wait(handle)
    assert (ret, done.job_status) == (0, C.NPU_JOB_SUCCESS)
    assert int.from_bytes(neighbour.map(fence)[:8], "little") == 5
    assert attacker.call(C.NPU_SYS_CLOSE)[0] == 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(min_size=0, max_size=256), offset=st.sampled_from([0, 64, 128, 4032]))
def test_no_command_buffer_breaks_the_firmware(process_type, nop, content, offset):
    kernel = Kernel(Device("unit"))
    process = process_type(kernel)
    handle, _ = process.bo()
    memory = process.map(handle)
    header = ffi.new("struct npu_cmd_buffer_header *")
    header.cmd_buffer_size, header.cmd_offset, header.api_version = 64 + len(content), 64, C.NPU_CMD_API_VERSION
    data = bytes(ffi.buffer(header)) + content
    memory[:] = bytes(4096)
    memory[: len(data)] = data
    queue = process.queue()
    assert process.submit(queue, handle, offset=offset) == 0
    ret, done = process.wait(handle)
    assert ret == 0
    assert done.job_status in (C.NPU_JOB_SUCCESS, C.NPU_JOB_PARSING_ERR, C.NPU_JOB_CTX_VIOLATION)
    other = process_type(kernel)
    fine = other.commands(nop)
    assert other.submit(other.queue(), fine) == 0
    assert other.wait(fine)[1].job_status == C.NPU_JOB_SUCCESS
