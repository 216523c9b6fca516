"""What can go wrong in a SHAVE program. To the device all are faults; two subclasses tell the model's limits from mistakes."""

from __future__ import annotations

from enum import IntEnum


class ShaveFaultCode(IntEnum):
    """Why a core stopped."""

    ILLEGAL_INSTRUCTION = (
        1  # opcode, type, flag or register number that does not exist, or an unused field that is not zero
    )
    BAD_PC = 2  # a jump to an address that is unaligned or outside the program
    BAD_TEXT = 3  # size of the program is zero or not a multiple of 16
    VECTOR_LENGTH = 4  # SETVL of a zero, negative or too large tile, or a result that exceeds the capacity
    SHAPE = 5  # operands that do not broadcast
    UNDEFINED_REGISTER = 6  # a vector register that was never written
    DIVIDE_BY_ZERO = 7  # integer
    INDEX = 8  # gather, scatter or extract outside the limit
    WATCHDOG = 9
    TRAP = 10  # the program asked for it
    ADDRESS = 11  # negative, beyond 48 bits, or a store that hits one place twice
    NEEDS_VALUES = 12  # without values: a scalar depends on data
    UNIMPLEMENTED = 13  # an instruction of another engine


class ShaveFault(Exception):
    """The core stopped at byte `pc` of its program for reason `code`."""

    def __init__(self, code: ShaveFaultCode, pc: int, detail: str = "") -> None:
        super().__init__(f"SHAVE fault {code.name} at pc {pc:#x}" + (f": {detail}" if detail else ""))
        self.code = code
        self.pc = pc
        self.detail = detail


class ShaveUnsupported(ShaveFault):
    """A program that the timing mode cannot follow, because its control flow or addresses depend on data."""

    def __init__(self, pc: int, detail: str) -> None:
        super().__init__(ShaveFaultCode.NEEDS_VALUES, pc, detail)


class ShaveUnimplemented(ShaveFault):
    """An instruction that is defined and not there yet."""

    def __init__(self, pc: int, detail: str) -> None:
        super().__init__(ShaveFaultCode.UNIMPLEMENTED, pc, detail)
