"""Messages to and from the driver: slots in SSID 0, addresses through the FIFOs.

A message to the driver waits here until the next slot of the ring is FREE.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from npu_abi import C, codec, offsetof, sizeof

from npu_firmware.hal import Hal
from npu_firmware.structs import read

GLOBAL = int(C.NPU_SSID_GLOBAL)
SLOT_BYTES = sizeof("npu_ipc_slot")
HEADER_BYTES = sizeof("npu_ipc_hdr")
STATUS_OFFSET = offsetof("npu_ipc_hdr", "status")
MESSAGE_BYTES = sizeof("npu_jsm_msg")
SLOT = codec(
    "npu_ipc_slot", "hdr.data_size", "hdr.channel", "hdr.status", "msg.type", "msg.request_id", "msg.result",
    "msg.payload",
)  # fmt: skip
ALLOCATED = int(C.NPU_IPC_ALLOCATED)
FREE = bytes([C.NPU_IPC_FREE])


class Ipc:
    """Both directions. `params` is a view of struct npu_boot_params."""

    def __init__(self, hal: Hal, params: Any) -> None:
        self._hal = hal
        self._rx_va = params.ipc_rx_va
        self._rx_slots = params.ipc_rx_slots
        self._tx_va = params.ipc_tx_va
        self._tx_slots = params.ipc_tx_slots
        self._next = 0
        self.outbox: deque[bytes] = deque()  # whole slots

    def send(
        self,
        type_: int,
        payload: bytes = b"",
        request_id: int = 0,
        result: int = 0,
        channel: int = C.NPU_IPC_CHAN_GEN_CMD,
    ) -> None:
        """Queue a message with the bytes of its payload structure."""
        self.outbox.append(SLOT.pack(MESSAGE_BYTES, channel, ALLOCATED, type_, request_id, result, payload))

    def can_send(self) -> bool:
        """Say whether a message waits and its slot is free."""
        if not self.outbox or not self._rx_slots:
            return False
        return self._hal.load(GLOBAL, self._slot_va() + STATUS_OFFSET, 1) == FREE

    def flush_one(self) -> None:
        """Put the next message in its slot and post it."""
        va = self._slot_va()
        self._hal.store(GLOBAL, va, self.outbox.popleft())
        self._next = (self._next + 1) % self._rx_slots
        self._hal.post_message(va)

    def receive(self, va: int) -> Any:
        """Return struct npu_jsm_msg of a message of the driver and free its slot, or None when `va` is no slot."""
        offset = va - self._tx_va
        if offset < 0 or offset % SLOT_BYTES or offset // SLOT_BYTES >= self._tx_slots:
            return None
        data = self._hal.load(GLOBAL, va, SLOT_BYTES)
        self._hal.store(GLOBAL, va + STATUS_OFFSET, FREE)
        header = read("npu_ipc_hdr", data)
        if header.status != C.NPU_IPC_ALLOCATED or header.data_size > SLOT_BYTES - HEADER_BYTES or any(header.reserved):
            return None
        return read("npu_jsm_msg", data, HEADER_BYTES)

    def _slot_va(self) -> int:
        return int(self._rx_va + self._next * SLOT_BYTES)
