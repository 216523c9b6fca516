"""Messages of the driver: what each type does and what it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, new, pack, sizeof

from npu_firmware import state_dump
from npu_firmware.hal import Hal
from npu_firmware.queues import GLOBAL, Queue
from npu_firmware.structs import read

if TYPE_CHECKING:
    from npu_firmware.core import Core

OK, INVALID = int(C.NPU_JSM_OK), int(C.NPU_JSM_INVALID)
LAST_SSID = int(C.NPU_NUM_SSIDS) - 1


class Messages:
    """Handlers by message type."""

    def __init__(self, hal: Hal, core: Core) -> None:
        self._hal = hal
        self._core = core
        self._handlers = {
            C.NPU_JSM_REGISTER_DB: self._register,
            C.NPU_JSM_UNREGISTER_DB: self._unregister,
            C.NPU_JSM_QUERY_ENGINE_HB: self._heartbeat,
            C.NPU_JSM_SSID_RELEASE: self._release_ssid,
            C.NPU_JSM_ENGINE_RESET: self._reset_engine,
            C.NPU_JSM_ENGINE_RESUME: self._resume_engine,
            C.NPU_JSM_STATE_DUMP: self._dump,
        }
        if hal.release >= C.NPU_FW_NOC_PRIORITY:
            self._handlers[C.NPU_JSM_SET_NOC_PRIORITY] = self._set_noc_priority

    def announce_boot(self) -> None:
        """Queue BOOT_DONE with the API versions."""
        done = new("npu_jsm_boot_done")
        done.api_version[C.NPU_FW_API_BOOT] = (C.NPU_FW_BOOT_API_MAJOR, C.NPU_FW_BOOT_API_MINOR)
        done.api_version[C.NPU_FW_API_JSM] = (C.NPU_FW_JSM_API_MAJOR, C.NPU_FW_JSM_API_MINOR)
        self._core.ipc.send(C.NPU_JSM_BOOT_DONE, pack(done), channel=C.NPU_IPC_CHAN_BOOT)

    def handle(self, address: int) -> None:
        """Read the message at `address`, act, reply. What is no message is dropped."""
        message = self._core.ipc.receive(address)
        if message is None:
            return
        handler = self._handlers.get(message.type)
        result, payload = int(C.NPU_JSM_UNKNOWN_TYPE), b""
        if handler is not None:
            answer = handler(message) if not message.reserved0 else (INVALID, b"")
            if answer is None:
                return  # it comes later
            result, payload = answer
        self._core.attention = True
        self._core.ipc.send((message.type + C.NPU_JSM_REPLY) & 0xFFFFFFFF, payload, message.request_id, result)

    def _register(self, message: Any) -> tuple[int, bytes]:
        body = _payload("npu_jsm_register_db", message)
        queues = self._core.queues
        if not 1 <= body.db_idx < C.NPU_NUM_DOORBELLS or body.db_idx in queues:
            return INVALID, b""
        if not C.NPU_SSID_FIRST_USER <= body.host_ssid <= LAST_SSID:
            return INVALID, b""
        if body.priority_band >= C.NPU_PRIORITY_BANDS:
            return INVALID, b""
        if body.jobq_size != C.NPU_JOBQ_SIZE or body.jobq_va % C.NPU_PAGE_SIZE:
            return INVALID, b""
        try:
            self._hal.load(GLOBAL, body.jobq_va, C.NPU_JOBQ_SIZE)
        except self._hal.Fault:
            return INVALID, b""
        queues[body.db_idx] = Queue(body.db_idx, body.host_ssid, body.jobq_va, body.priority_band)
        self._core.queues = dict(sorted(queues.items()))  # served in the order of their doorbells
        self._core.bands.changed(queues.values())
        return OK, b""

    def _unregister(self, message: Any) -> tuple[int, bytes]:
        body = _payload("npu_jsm_unregister_db", message)
        queue = self._core.queues.pop(body.db_idx, None)
        if queue is None or body.reserved:
            return INVALID, b""
        if queue.job is not None:
            self._core.abort(queue.job)
        self._core.drain(queue)
        self._core.bands.changed(self._core.queues.values())
        return OK, b""

    def _heartbeat(self, message: Any) -> tuple[int, bytes]:
        body = _payload("npu_jsm_query_hb", message)
        if body.engine_idx or body.reserved:
            return INVALID, b""
        return OK, pack(new("npu_jsm_query_hb_done", heartbeat=self._core.heartbeat + self._hal.tasks_done()))

    def _release_ssid(self, message: Any) -> tuple[int, bytes]:
        body = _payload("npu_jsm_ssid_release", message)
        if not C.NPU_SSID_FIRST_USER <= body.host_ssid <= LAST_SSID or body.reserved:
            return INVALID, b""
        core = self._core
        for job in [job for job in core.jobs if job.ssid == body.host_ssid]:
            core.abort(job)
        core.inferences.forget(body.host_ssid)
        core.transfers.forget(body.host_ssid)
        self._hal.drop_code(body.host_ssid)
        core.stopped.discard(body.host_ssid)
        for number in [n for n, queue in core.queues.items() if queue.ssid == body.host_ssid]:
            del core.queues[number]
        core.bands.changed(core.queues.values())
        return OK, b""

    def _reset_engine(self, message: Any) -> tuple[int, bytes] | None:
        body = _payload("npu_jsm_engine_reset", message)
        if body.engine_idx or body.reserved or self._core.reset.halted:
            return INVALID, b""
        self._core.reset.begin(message.request_id)
        return None

    def _resume_engine(self, message: Any) -> tuple[int, bytes]:
        body = _payload("npu_jsm_engine_resume", message)
        reset = self._core.reset
        if body.engine_idx or body.reserved or not reset.halted or reset.request >= 0:
            return INVALID, b""
        reset.resume()
        return OK, b""

    def _set_noc_priority(self, message: Any) -> tuple[int, bytes]:
        body = _payload("npu_jsm_set_noc_priority", message)
        clients = self._hal.read_register(C.NPU_REG_NOC_CLIENTS)
        if body.client >= clients or body.priority >= C.NPU_NOC_PRIORITIES:
            return INVALID, b""
        self._hal.write_register(C.NPU_REG_NOC_QOS_BASE + 4 * body.client, body.priority)
        return OK, b""

    def _dump(self, message: Any) -> tuple[int, bytes]:
        body = _payload("npu_jsm_state_dump", message)
        if body.reserved or body.buffer_bytes < sizeof("npu_fw_state"):
            return INVALID, b""
        try:
            self._hal.store(GLOBAL, body.buffer_va, state_dump.state(self._hal, self._core, body.buffer_bytes))
        except self._hal.Fault:
            return INVALID, b""
        return OK, b""


def _payload(struct: str, message: Any) -> Any:
    """Return a copy of the payload as `struct`."""
    return read(struct, bytes(ffi.buffer(message.payload)))
