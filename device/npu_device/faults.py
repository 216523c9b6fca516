"""Conditions that an engine reports instead of finishing a task."""

from __future__ import annotations

from npu_abi import C


class MemoryFault(Exception):
    """An access that left the mappings or the tiles of its job.

    `address` is the first byte that could not be reached, `code` is enum npu_mmu_event, `write` says the direction.
    """

    def __init__(self, address: int, code: int = C.NPU_MMU_EVT_TRANSLATION, write: bool = False) -> None:
        super().__init__(f"{'write' if write else 'read'} fault {code:#x} at {address:#x}")
        self.address = address
        self.code = code
        self.write = write


class CoreStopped(Exception):
    """The core runs its firmware no further, in the middle of a step."""
