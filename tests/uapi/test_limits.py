"""At each limit and one beyond it: the errno, and nothing has changed."""

from __future__ import annotations

from errno import EBUSY, EMFILE, ENOSPC

from npu_abi import C, ffi

CONTEXTS = 64  # SSIDs 2 to 65
QUEUES = 254  # of NPU_IOCTL_CMDQ_CREATE in a context
DOORBELLS = 255  # of the device
SLOTS = int(C.NPU_JOBQ_SLOTS)
JOB_IDS = 256  # of a context


def stuck(scene, file):
    """Make a command buffer that waits for a fence that nobody signals; the buffers of its job."""
    heap = file.bo()
    handle = file.bo()
    header = ffi.new("struct npu_cmd_buffer_header *")
    command = ffi.new("struct npu_cmd_fence *")
    command.h.type, command.h.size = C.NPU_CMD_FENCE_WAIT, ffi.sizeof("struct npu_cmd_fence")
    command.value = 1
    header.cmd_offset, header.api_version = 64, C.NPU_CMD_API_VERSION
    header.cmd_buffer_size = 64 + command.h.size
    header.fence_heap_va = file.info(heap).npu_va
    file.map(heap)[:8] = bytes(8)
    data = bytes(ffi.buffer(header)) + bytes(ffi.buffer(command))
    file.map(handle)[: len(data)] = data
    return handle


def test_contexts(scene, file_type):
    kernel = scene.kernel
    files = [file_type(kernel.syscall) for _ in range(CONTEXTS - len(kernel.contexts))]
    assert scene.file.call(C.NPU_IOCTL_GET_PARAM, "npu_param_arg", param=C.NPU_PARAM_NUM_CONTEXTS)[1].value == CONTEXTS
    before = scene.fingerprint()
    assert scene.file.call(C.NPU_SYS_OPEN)[0] == -EMFILE
    assert scene.fingerprint() == before
    assert files.pop().call(C.NPU_SYS_CLOSE)[0] == 0
    files.append(file_type(kernel.syscall))
    for file in files:
        assert file.call(C.NPU_SYS_CLOSE)[0] == 0


def test_queues_of_a_context(scene, file_type):
    file = file_type(scene.kernel.syscall)
    queues = [file.queue() for _ in range(QUEUES)]
    assert queues == list(range(2, 256))
    assert file.call(C.NPU_IOCTL_GET_PARAM, "npu_param_arg", param=C.NPU_PARAM_MAX_QUEUES)[1].value == QUEUES
    before = scene.fingerprint()
    assert file.call(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create")[0] == -EBUSY
    assert scene.fingerprint() == before
    assert file.call(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", cmdq_id=77)[0] == 0
    assert file.queue() == 77
    assert file.call(C.NPU_SYS_CLOSE)[0] == 0


def test_buffer_objects_of_a_context(scene, file_type):
    kernel = scene.kernel
    file, other = file_type(kernel.syscall), file_type(kernel.syscall)
    objects, handle, shared = kernel.contexts[kernel.files[file.fd].ssid].objects, file.bo(), other.bo()
    token = kernel.exports.token_of(kernel.files[other.fd], kernel.files[other.fd].objects[shared])
    objects.update(dict.fromkeys(range(-1, -C.NPU_MAX_OBJECTS, -1), objects[handle]))  # as if it had made them
    assert len(objects) == C.NPU_MAX_OBJECTS
    before = scene.fingerprint()
    assert file.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=4096)[0] == -ENOSPC
    assert f"NPU_MAX_OBJECTS is {C.NPU_MAX_OBJECTS}" in kernel.log[-1]
    assert file.call(C.NPU_IOCTL_BO_IMPORT, "npu_bo_import", token=token)[0] == -ENOSPC
    assert scene.fingerprint() == before
    for number in [number for number in objects if number < 0]:
        del objects[number]
    assert file.call(C.NPU_IOCTL_BO_IMPORT, "npu_bo_import", token=token)[0] == 0
    for each in (file, other):
        assert each.call(C.NPU_SYS_CLOSE)[0] == 0


def test_doorbells_of_the_device(scene, file_type):
    kernel = scene.kernel
    files = [file_type(kernel.syscall) for _ in range(2)]
    command = {file.fd: file.nop() for file in files}
    for number in range(DOORBELLS - len(kernel.doorbells)):
        file = files[number % 2]
        assert file.run(file.queue(), command[file.fd]) == C.NPU_JOB_SUCCESS
    assert len(kernel.doorbells) == DOORBELLS
    file = files[0]
    queue = file.queue()
    before = scene.fingerprint()
    assert file.submit(queue, command[file.fd]) == -EBUSY
    assert scene.fingerprint() == before
    assert files[1].call(C.NPU_SYS_CLOSE)[0] == 0
    file.now_ps = files[1].now_ps
    assert file.run(queue, command[file.fd]) == C.NPU_JOB_SUCCESS
    assert file.call(C.NPU_SYS_CLOSE)[0] == 0


def test_slots_of_a_ring_and_job_ids_of_a_context(scene, file_type):
    file = file_type(scene.kernel.syscall)
    context = scene.kernel.files[file.fd]
    queues = []
    while len(context.jobs) < JOB_IDS:
        queues.append(file.queue())
        while len(context.jobs) < JOB_IDS:
            handle = stuck(scene, file)
            before = scene.fingerprint()
            ret = file.submit(queues[-1], handle)
            if ret == -EBUSY:
                break
            assert ret == 0
        else:
            continue
        assert scene.fingerprint() == before
        assert SLOTS - 1 <= len(context.queues[queues[-1]].jobs) <= SLOTS  # the firmware has taken one out of the ring
    queue, handle = file.queue(), file.nop()
    before = scene.fingerprint()
    assert file.submit(queue, handle) == -EBUSY
    assert scene.fingerprint() == before
    for number in queues:
        assert file.call(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", cmdq_id=number, flags=C.NPU_CMDQ_ABORT)[0] == 0
    assert file.run(queue, handle) == C.NPU_JOB_SUCCESS
    assert file.call(C.NPU_SYS_CLOSE)[0] == 0
