"""Messages between driver and firmware: two slot areas in SSID 0, a FIFO register each way.

Send: take a FREE slot of the tx area, fill it, status ALLOCATED, post its address in CPU_IPC_FIFO; the firmware sets
FREE. Receive (from the interrupt handler): pop addresses from HOST_IPC_FIFO, copy the message, set FREE. Replies are
matched by request id, everything else goes to `on_message`. What the firmware writes is not trusted: addresses and
lengths are checked and clamped.
"""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, name_of, sizeof, view

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_driver.device_api import BusApi
    from npu_driver.memory import Memory
    from npu_driver.registers import Registers

AREA_PAGES = 4  # chosen: as the 16 KiB areas of the public driver; 85 slots
SLOT_BYTES = sizeof("npu_ipc_slot")
MESSAGE_BYTES = sizeof("npu_jsm_msg")
_MESSAGE = ffi.typeof("struct npu_jsm_msg *")


@dataclass(slots=True, eq=False)
class Request:
    """A message on its way; `reply` is a copy of the firmware's struct npu_jsm_msg once `finished`."""

    request_id: int
    type: int
    finished: bool = False
    reply: Any = None


class Area:
    """An array of struct npu_ipc_slot at `va` of SSID 0."""

    __slots__ = ("count", "headers", "memory", "messages", "pa", "va")

    def __init__(self, memory: Memory, va: int) -> None:
        self.va = va
        self.pa, self.memory = memory.alloc_zeroed(AREA_PAGES)
        self.count = len(self.memory) // SLOT_BYTES
        slots = [view("npu_ipc_slot", self.memory, i * SLOT_BYTES) for i in range(self.count)]
        self.headers = [slot.hdr for slot in slots]
        self.messages = [ffi.addressof(slot, "msg") for slot in slots]


class Ipc:
    """Both directions. `on_message(msg)` receives every struct npu_jsm_msg that is not a reply to a request."""

    __slots__ = ("_bus", "_next_id", "_on_message", "_requests", "_rx", "_tx", "dropped")

    def __init__(self, bus: BusApi, tx: Area, rx: Area, on_message: Callable[[Any], None]) -> None:
        self._bus = bus
        self._tx = tx
        self._rx = rx
        self._on_message = on_message
        self._requests: dict[int, Request] = {}
        self._next_id = 1
        self.dropped: deque[str] = deque(maxlen=32)  # what was wrong with messages that were not understood

    def send(self, registers: Registers, kind: int, payload: bytes, channel: int) -> Request:
        """Post a message and return its request. EAGAIN when every slot is taken."""
        index = next((i for i, header in enumerate(self._tx.headers) if header.status == C.NPU_IPC_FREE), None)
        if index is None:
            raise KernelError(errno.EAGAIN, f"all {self._tx.count} message slots are taken")
        header, msg = self._tx.headers[index], self._tx.messages[index]
        request = Request(self._next_id, kind)
        self._next_id = self._next_id % 0xFFFFFFFF + 1
        msg.type = kind
        msg.request_id = request.request_id
        msg.result = 0
        msg.reserved0 = 0
        ffi.buffer(msg.payload)[:] = payload.ljust(len(msg.payload), b"\0")
        header.data_size = MESSAGE_BYTES
        header.channel = channel
        header.status = C.NPU_IPC_ALLOCATED
        self._requests[request.request_id] = request
        registers.write(C.NPU_REG_CPU_IPC_FIFO, self._tx.va + index * SLOT_BYTES)
        return request

    def forget(self, request: Request) -> None:
        """Stop waiting for the reply; a late one is dropped."""
        self._requests.pop(request.request_id, None)

    def forget_all(self) -> None:
        """Drop all requests and mark all slots free: the firmware is gone."""
        self._requests.clear()
        self._tx.memory[:] = bytes(len(self._tx.memory))
        self._rx.memory[:] = bytes(len(self._rx.memory))

    def drain(self) -> None:
        """Take every message out of HOST_IPC_FIFO. Called from the interrupt handler."""
        read32 = self._bus.read32
        while address := read32(C.NPU_REG_HOST_IPC_FIFO):
            index, rest = divmod(address - self._rx.va, SLOT_BYTES)
            if rest or not 0 <= index < self._rx.count:
                self.dropped.append(f"message address {address:#x} is not a slot")
                continue
            header = self._rx.headers[index]
            msg = ffi.new(_MESSAGE)
            ffi.memmove(msg, self._rx.messages[index], min(header.data_size, MESSAGE_BYTES))
            header.status = C.NPU_IPC_FREE
            self._deliver(msg)

    def _deliver(self, msg: Any) -> None:
        kind = msg.type
        if kind in (C.NPU_JSM_JOB_DONE, C.NPU_JSM_BOOT_DONE):
            self._on_message(msg)
        elif request := self._requests.pop(msg.request_id, None):
            request.reply = msg
            request.finished = True
        else:
            self.dropped.append(f"{name_of('npu_jsm_type', kind)} answers no request (id {msg.request_id})")


def check_reply(request: Request) -> Any:
    """Return the reply of a finished request.

    EBADMSG for a reply of another type, EBADE for a result that is not OK.
    """
    reply = request.reply
    if reply.type != request.type + (C.NPU_JSM_ENGINE_RESET_DONE - C.NPU_JSM_ENGINE_RESET):
        raise KernelError(errno.EBADMSG, f"{name_of('npu_jsm_type', reply.type)} answers {request.type:#x}")
    if reply.result != C.NPU_JSM_OK:
        kind = name_of("npu_jsm_type", request.type)
        raise KernelError(errno.EBADE, f"the firmware answers {kind} with {name_of('npu_jsm_result', reply.result)}")
    return reply
