"""What can go wrong in a SHAVE program. To the device all are faults; a subclass tells the model's limits from mistakes."""

from __future__ import annotations

from enum import IntEnum

from npu_abi import C


class ShaveFaultCode(IntEnum):
    """Why a core stopped: enum npu_shave_fault."""

    ILLEGAL_INSTRUCTION = C.NPU_SHAVE_FAULT_ILLEGAL_INSTRUCTION
    BAD_PC = C.NPU_SHAVE_FAULT_BAD_PC
    BAD_TEXT = C.NPU_SHAVE_FAULT_BAD_TEXT
    VECTOR_LENGTH = C.NPU_SHAVE_FAULT_VECTOR_LENGTH
    SHAPE = C.NPU_SHAVE_FAULT_SHAPE
    UNDEFINED_REGISTER = C.NPU_SHAVE_FAULT_UNDEFINED_REGISTER
    DIVIDE_BY_ZERO = C.NPU_SHAVE_FAULT_DIVIDE_BY_ZERO
    INDEX = C.NPU_SHAVE_FAULT_INDEX
    WATCHDOG = C.NPU_SHAVE_FAULT_WATCHDOG
    TRAP = C.NPU_SHAVE_FAULT_TRAP
    ADDRESS = C.NPU_SHAVE_FAULT_ADDRESS
    NEEDS_VALUES = C.NPU_SHAVE_FAULT_NEEDS_VALUES
    NEEDS_ENGINES = C.NPU_SHAVE_FAULT_NEEDS_ENGINES
    BAD_DESCRIPTOR = C.NPU_SHAVE_FAULT_BAD_DESCRIPTOR
    BAD_PORT = C.NPU_SHAVE_FAULT_BAD_PORT
    NOT_COOPERATIVE = C.NPU_SHAVE_FAULT_NOT_COOPERATIVE


class ShaveFault(Exception):
    """The core stopped at byte `pc` of its program for reason `code`."""

    def __init__(self, code: ShaveFaultCode, pc: int, detail: str = "") -> None:
        super().__init__(f"SHAVE fault {code.name} at pc {pc:#x}" + (f": {detail}" if detail else ""))
        self.code = code
        self.pc = pc
        self.detail = detail

    @property
    def error_detail(self) -> int:
        """The fault as error_detail of struct npu_jsm_job_done has it."""
        return self.code << 32 | self.pc


class ShaveUnsupported(ShaveFault):
    """A program that cannot be followed here: NEEDS_VALUES when its control flow or addresses depend on data, NEEDS_ENGINES
    when it starts other engines and there are none."""

    def __init__(self, pc: int, detail: str, code: ShaveFaultCode = ShaveFaultCode.NEEDS_VALUES) -> None:
        super().__init__(code, pc, detail)
