"""The answer to a caller's mistake: a result code of npu.h and what exactly is wrong."""

from __future__ import annotations

import enum

import npu_abi

Result: type[enum.IntEnum] = npu_abi.enum("npu_result")


class Refusal(Exception):
    """A call that is refused before anything changed. `result` is the name of an enumerator of enum npu_result."""

    def __init__(self, result: str, message: str) -> None:
        super().__init__(message)
        self.result = int(Result[result])
