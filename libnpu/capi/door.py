"""The program's memory, as this side reaches it: always through door.c, so a bad address is an error and not a crash."""

from __future__ import annotations

from typing import Any

import npu_abi

from libnpu.capi.refusal import Refusal

MAX_STRING_BYTES = 4096
PAGE_BYTES = 4096
PROBE_BYTES = 1 << 20
ADDRESS_END = 1 << 64
SIZE_BYTES = 4  # of the field `size`


class Door:
    """Reads and writes host memory by address. `lib`: the functions of door.c. Every method raises BAD_ADDRESS."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._ffi = ffi
        self._lib = lib

    def read_into(self, target: memoryview, address: int) -> None:
        """Fill `target` (writable, contiguous) with what is at `address`."""
        if target.nbytes and address + target.nbytes > ADDRESS_END:
            raise self._bad(address, target.nbytes, "read")
        if target.nbytes and self._lib.npu_copy_from_user(self._ffi.from_buffer(target), address, target.nbytes) < 0:
            raise self._bad(address, target.nbytes, "read")

    def read(self, address: int, size: int) -> bytearray:
        """Return `size` bytes at `address`."""
        if size > PROBE_BYTES:  # do not allocate for a size that cannot be right
            self.read_into(memoryview(bytearray(1)), address + size - 1)
        data = bytearray(size)
        self.read_into(memoryview(data), address)
        return data

    def probe(self, address: int, size: int, what: str) -> None:
        """Check that `size` bytes at `address` can be written. Raises NULL_POINTER too, in which `what` is its name."""
        require(address, what)
        if self._lib.npu_probe_user(address, size) < 0:
            raise self._bad(address, size, "write")

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Put `data` at `address`, all of it or nothing."""
        source = self._ffi.from_buffer(data)
        if len(source) and self._lib.npu_copy_to_user(address, source, len(source)) < 0:
            raise self._bad(address, len(source), "write")

    def read_string(self, address: int, what: str, endless: str = "NPU_ERROR_INVALID_VALUE") -> bytes:
        """Return the NUL-terminated string at `address`, without the NUL. Raises `endless` when it is too long."""
        found = bytearray()
        while len(found) < MAX_STRING_BYTES:
            here = address + len(found)
            # Up to the page's end: the next one may not be there.
            piece = self.read(here, PAGE_BYTES - here % PAGE_BYTES)
            end = piece.find(0)
            if end >= 0:
                return bytes(found + piece[:end])
            found += piece
        raise Refusal(endless, f"{what} has no NUL in its first {MAX_STRING_BYTES} bytes")

    def new_struct(self, struct: str, address: int, what: str) -> Any:
        """Return a `struct STRUCT` to be filled and written to `address`, which the program passes as `what`.

        Raises NULL_POINTER, and INVALID_SIZE when the program's field `size`, the first one, is wrong.
        """
        require(address, what)
        size, expected = int.from_bytes(self.read(address, SIZE_BYTES), "little"), npu_abi.sizeof(struct)
        if size != expected:
            raise Refusal("NPU_ERROR_INVALID_SIZE", f"{what}->size is {size}, not {expected}")
        return npu_abi.new(struct, size=size)

    def write_integer(self, address: int, value: int, size: int) -> None:
        """Put an unsigned integer of `size` bytes at `address`."""
        self.write(address, value.to_bytes(size, "little"))

    def call(self, function: int, argument: int) -> None:
        """Call the program's `void function(void *argument)`."""
        self._lib.npu_call_function(function, argument)

    @staticmethod
    def _bad(address: int, size: int, verb: str) -> Refusal:
        return Refusal("NPU_ERROR_BAD_ADDRESS", f"cannot {verb} {size} bytes of host memory at {address:#x}")


def require(address: int, what: str) -> None:
    """Raise NULL_POINTER when `address` is 0."""
    if not address:
        raise Refusal("NPU_ERROR_NULL_POINTER", f"{what} is NULL")
