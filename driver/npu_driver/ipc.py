"""Messages between driver and firmware: two slot areas in SSID 0, a FIFO register each way.

Send: take a FREE slot of the tx area, fill it, status ALLOCATED, post its address in CPU_IPC_FIFO; the firmware sets
FREE. Receive (from the interrupt handler): pop addresses from HOST_IPC_FIFO, copy the message, set FREE. Replies are
matched by request id, everything else goes to `on_message`. The firmware takes its slots in turn, so one that it has passed over
was not announced: its message got lost. What the firmware writes is not trusted: addresses and lengths are checked and clamped.
"""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_abi import C, codec, name_of, offsetof, sizeof

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_driver.device_api import BusApi
    from npu_driver.memory import Memory
    from npu_driver.registers import Registers

AREA_PAGES = 4  # chosen: as the 16 KiB areas of the public driver; 85 slots
SLOT_BYTES = sizeof("npu_ipc_slot")
MESSAGE_BYTES = sizeof("npu_jsm_msg")
HEADER_BYTES = sizeof("npu_ipc_hdr")
STATUS_OFFSET = offsetof("npu_ipc_hdr", "status")
SLOT = codec(
    "npu_ipc_slot", "hdr.data_size", "hdr.channel", "hdr.status", "msg.type", "msg.request_id", "msg.result",
    "msg.payload",
)  # fmt: skip
DATA_SIZE = codec("npu_ipc_hdr", "data_size")
MESSAGE = codec("npu_jsm_msg", "type", "request_id", "result", "payload")
FREE, ALLOCATED = int(C.NPU_IPC_FREE), int(C.NPU_IPC_ALLOCATED)
ALL_ONES = 0xFFFFFFFF
EVENTS = (C.NPU_JSM_JOB_DONE, C.NPU_JSM_BOOT_DONE)


@dataclass(slots=True, eq=False)
class Request:
    """A message on its way; `reply_type`, `result` and `payload` are the firmware's answer once `finished`."""

    request_id: int
    type: int
    offset: int  # of its slot
    finished: bool = False
    reply_type: int = 0
    result: int = 0
    payload: bytes = b""


class Area:
    """An array of struct npu_ipc_slot at `va` of SSID 0."""

    __slots__ = ("count", "memory", "pa", "va")

    def __init__(self, memory: Memory, va: int) -> None:
        self.va = va
        self.pa, self.memory = memory.alloc_zeroed(AREA_PAGES)
        self.count = len(self.memory) // SLOT_BYTES

    def free_slot(self) -> int:
        """Return the byte offset of the first slot that is FREE, -1 when none is."""
        memory = self.memory
        end = self.count * SLOT_BYTES
        return next((at for at in range(0, end, SLOT_BYTES) if memory[at + STATUS_OFFSET] == FREE), -1)


class Ipc:
    """Both directions. `on_message(type, payload)` receives every message that is not a reply to a request."""

    __slots__ = ("_bus", "_forgotten", "_next_id", "_next_rx", "_on_message", "_requests", "_rx", "_tx", "dropped")

    def __init__(self, bus: BusApi, tx: Area, rx: Area, on_message: Callable[[int, bytes], None]) -> None:
        self._bus = bus
        self._tx = tx
        self._rx = rx
        self._on_message = on_message
        self._requests: dict[int, Request] = {}
        self._next_id = 1
        self._next_rx = 0  # byte offset of the slot after that of the latest message
        self._forgotten: list[int] = []  # slots of requests that nobody waits for any more
        self.dropped: deque[str] = deque(maxlen=32)  # what was wrong with messages that were not understood

    def send(self, registers: Registers, kind: int, payload: bytes, channel: int) -> Request:
        """Post a message and return its request. EAGAIN when every slot is taken."""
        offset = self._tx.free_slot()
        if offset < 0:
            raise KernelError(errno.EAGAIN, f"all {self._tx.count} message slots are taken")
        request = Request(self._next_id, kind, offset)
        self._next_id = self._next_id % 0xFFFFFFFF + 1
        SLOT.pack_into(self._tx.memory, offset, MESSAGE_BYTES, channel, ALLOCATED, kind, request.request_id, 0, payload)
        self._requests[request.request_id] = request
        registers.write(C.NPU_REG_CPU_IPC_FIFO, self._tx.va + offset)
        return request

    def forget(self, request: Request) -> None:
        """Stop waiting for the reply; a late one is dropped. Its slot is free once the firmware has answered a later message."""
        self._requests.pop(request.request_id, None)
        self._forgotten.append(request.offset)

    def slot(self, va: int) -> memoryview:
        """Return the slot of a message to the firmware."""
        return self._tx.memory[va - self._tx.va :][:SLOT_BYTES]

    def reclaim(self) -> None:
        """Free the slots of messages whose address never came. Nothing waits in the FIFO."""
        for offset in range(0, self._rx.count * SLOT_BYTES, SLOT_BYTES):
            self._give_up(offset)

    def _give_up(self, offset: int) -> None:
        """Free a slot to the driver; a message that is in it was not announced."""
        memory = self._rx.memory
        if memory[offset + STATUS_OFFSET] != FREE:
            self.dropped.append(f"the message in slot {offset // SLOT_BYTES} was not announced")
            memory[offset + STATUS_OFFSET] = FREE

    def forget_all(self) -> None:
        """Drop all requests and mark all slots free: the firmware is gone."""
        self._requests.clear()
        self._forgotten.clear()
        self._next_rx = 0
        self._tx.memory[:] = bytes(len(self._tx.memory))
        self._rx.memory[:] = bytes(len(self._rx.memory))

    def drain(self) -> None:
        """Take every message out of HOST_IPC_FIFO. Called from the interrupt handler."""
        read32 = self._bus.read32
        rx = self._rx
        memory, end = rx.memory, rx.count * SLOT_BYTES
        while address := read32(C.NPU_REG_HOST_IPC_FIFO):
            if address == ALL_ONES:  # no slot is there: the device is gone
                return
            offset = address - rx.va
            if offset % SLOT_BYTES or not 0 <= offset < end:
                self.dropped.append(f"message address {address:#x} is not a slot")
                continue
            if memory[offset + STATUS_OFFSET] != ALLOCATED:
                self.dropped.append(f"message address {address:#x} is a slot without a message")
                continue
            while self._next_rx != offset:
                self._give_up(self._next_rx)
                self._next_rx = (self._next_rx + SLOT_BYTES) % end
            self._next_rx = (offset + SLOT_BYTES) % end
            size = min(DATA_SIZE.unpack_from(memory, offset)[0], MESSAGE_BYTES)
            start = offset + HEADER_BYTES
            message = memory[start : start + size].tobytes().ljust(MESSAGE_BYTES, b"\0")
            memory[offset + STATUS_OFFSET] = FREE
            self._deliver(*MESSAGE.unpack(message))

    def _deliver(self, kind: int, request_id: int, result: int, payload: bytes) -> None:
        if kind in EVENTS:
            self._on_message(kind, payload)
        elif request := self._requests.pop(request_id, None):
            for offset in self._forgotten:
                self._tx.memory[offset + STATUS_OFFSET] = FREE
            self._forgotten.clear()
            request.reply_type, request.result, request.payload = kind, result, payload
            request.finished = True
        else:
            self.dropped.append(f"{name_of('npu_jsm_type', kind)} answers no request (id {request_id})")


def check_reply(request: Request) -> bytes:
    """Return the payload of the reply to a finished request.

    EBADMSG for a reply of another type, EBADE for a result that is not OK.
    """
    if request.reply_type != request.type + C.NPU_JSM_REPLY:
        raise KernelError(errno.EBADMSG, f"{name_of('npu_jsm_type', request.reply_type)} answers {request.type:#x}")
    if request.result != C.NPU_JSM_OK:
        kind = name_of("npu_jsm_type", request.type)
        why = name_of("npu_jsm_result", request.result)
        raise KernelError(errno.EBADE, f"the firmware answers {kind} with {why}")
    return request.payload
