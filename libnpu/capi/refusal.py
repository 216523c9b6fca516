"""The answer to a caller's mistake in a call of npu.h: a result code and what exactly is wrong."""

from __future__ import annotations

from npu_abi import C

from libnpu.errors import Asked, NpuError


class Refusal(NpuError):
    """A call that is refused before anything changed. `result` is the name of an enumerator of enum npu_result."""

    def __init__(self, result: str, message: str, *, gone: int = 0, asked: Asked | None = None) -> None:
        super().__init__(getattr(C, result), message, gone=gone, asked=asked)
