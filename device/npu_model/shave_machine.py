"""One SHAVE core as an explicit state record, and the loop that runs it.

`Machine` holds registers, counters and the traffic log; instructions are rows that `shave_decode.translate` makes from
the program's bytes once. With `compute` off the scalars run, vector registers have shapes
and no data, and cycles and traffic come out the same.

Time is that of a VLIW core in whose words the units work side by side: scalar instructions are issued one after another, and a
vector instruction streams its elements through the memory unit (loads and stores) or the vector unit, strip by strip, while the
program goes on. So a tile lasts as long as its busiest unit, and what fills and drains the other.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from npu_abi import C

from npu_model import casts, footprint
from npu_model import shave_math as sm
from npu_model.profile import Shave
from npu_model.shave_faults import ShaveFault, ShaveFaultCode
from npu_model.shave_memory import ADDRESS_LIMIT, Access, Array, Memory, Runs
from npu_model.shave_opcodes import (
    F16,
    F32,
    FLAG_COL,
    FLAG_ROW,
    FLOAT_REGISTERS,
    I32,
    INSN_BYTES,
    INT_REGISTERS,
    VECTOR_CAPACITY,
    VECTOR_REGISTERS,
)

NO_COST_RATE = 1 << 30  # a rate per cycle from which on accesses cost nothing: what the teaching profile means by it
HALT = -1  # what a handler returns instead of the next instruction's number
SUSPEND = -3  # the same: the program waits for `Machine.suspension`
CMX_WINDOW = range(int(C.NPU_CMX_BASE), int(C.NPU_CMX_END))
MEMORY_UNIT, VECTOR_UNIT = 0, 1  # loads and stores; everything else of vectors

# The watchdog counts work beside cycles, because cycles say little about how long the model takes. One unit is about 3 ns of
# it; the weights are chosen from measurements, so that no program runs for much more than a second.
MAX_WORK = 1 << 28
INSN_WORK = 1 << 7  # of any instruction
ACCESS_WORK = 1 << 12  # more, of a scalar load or store
VECTOR_WORK = 1 << 12  # more, of a vector instruction, plus its elements or bytes; twice that of a gather or scatter
SPECIAL_WORK = 1 << 4  # of an element of a special function, of which
SPECIAL_ELEMENTS = 1 << 9  # are counted at least
STRIDED_WORK = 1 << 3  # of an element that is accessed by itself
RUN_WORK = 1 << 13  # of a place in memory that is not the continuation of the one before
BAR_WORK = 1 << 13  # of waiting for other blocks
MAX_STARTS = 1 << 10  # operations of other engines

Handler = Callable[["Machine", Any], int | None]
Row = tuple[Handler, Any, int]  # handler, its argument, scalar instructions that it executes (0: one of vectors)
Shape = tuple[int, int]


class ShaveResult(NamedTuple):
    """What one invocation did.

    Runs are (address, width, ((count, stride), ...)) in the order of their first access, continued runs of one instruction
    merged. They are exact but for scatters, whose runs bound every index.
    """

    cycles: int
    insns: int
    read_boxes: tuple[Runs, ...]
    write_boxes: tuple[Runs, ...]
    read_bytes: int
    write_bytes: int

    @property
    def reads(self) -> list[footprint.Box]:
        """What was read, as boxes."""
        return [footprint.box(*runs) for runs in self.read_boxes]

    @property
    def writes(self) -> list[footprint.Box]:
        """What was written, as boxes."""
        return [footprint.box(*runs) for runs in self.write_boxes]


class Start(NamedTuple):
    """A program starts the operation whose descriptor is at `address`. `engine` is DMA or DPU of enum npu_engine."""

    engine: int
    address: int
    port: int  # of DMA
    tag: int
    pc: int  # in bytes


class Wait(NamedTuple):
    """A program waits until the operations of `engine` with `tag`, or with any (ALL_TAGS), that it started have ended."""

    engine: int
    tag: int
    pc: int  # in bytes


class Bar(NamedTuple):
    """A block waits until every block of its launch has come to a `bar`."""

    pc: int  # in bytes


class Traffic:
    """The boxes that a program touched, and the bytes of its accesses by place. Runs of one instruction that continue each other are merged."""

    __slots__ = ("_access_bytes", "_last", "cmx_bytes", "ddr_bytes", "moved_bytes", "runs")

    def __init__(self, access_bytes: int) -> None:
        self.runs: list[Runs] = []
        self.cmx_bytes = 0
        self.ddr_bytes = 0  # elsewhere
        self.moved_bytes = 0  # of the whole accesses, aligned `access_bytes`, that those are parts of
        self._access_bytes = access_bytes
        self._last: dict[int, int] = {}

    @property
    def total_bytes(self) -> int:
        """The bytes of all accesses."""
        return self.cmx_bytes + self.ddr_bytes

    def add(self, pc: int, tile: Access) -> None:
        """Record `tile`, touched by the instruction at `pc`. A run that begins in the access in which the one before ends shares it."""
        base, _, width, dims, _ = tile
        if not dims:
            self.add_run(pc, base, width)
            return
        self.runs.append((base, width, dims))
        nbytes = width * tile.run_count
        if base in CMX_WINDOW:
            self.cmx_bytes += nbytes
            return
        starts = np.array([base], np.int64)
        for count, stride in dims:
            starts = (starts[:, None] + np.arange(count) * stride).ravel()
        first, last = starts // self._access_bytes, (starts + width - 1) // self._access_bytes
        accesses = int((last - first + 1).sum()) - int(np.count_nonzero(first[1:] == last[:-1]))
        self.ddr_bytes += nbytes
        self.moved_bytes += accesses * self._access_bytes

    def add_run(self, pc: int, base: int, width: int) -> None:
        """Record one run."""
        self._count(base, 1, width)
        self._log(pc, base, width)

    def add_indexed(self, pc: int, bounds: Access, count: int, width: int, step: int) -> None:
        """Record `count` runs of `width` bytes, each some multiple of `step` behind the base of `bounds`. Where is not known without values:
        all of `bounds` counts as touched, and of the accesses that a run may be a part of the fewest as moved.
        """
        base, size = bounds.base, self._access_bytes
        self._count(base % gcd(step, size) if base not in CMX_WINDOW else base, count, width)
        if bounds.dims:
            self.runs.append(bounds.box)
        else:
            self._log(pc, base, bounds.width)

    def _count(self, base: int, count: int, width: int) -> None:
        if base in CMX_WINDOW:
            self.cmx_bytes += count * width
            return
        size = self._access_bytes
        self.ddr_bytes += count * width
        self.moved_bytes += count * ((base % size + width - 1) // size + 1) * size

    def _log(self, pc: int, base: int, width: int) -> None:
        index = self._last.get(pc)
        if index is not None:
            first, length, _ = self.runs[index]
            if first + length == base:
                self.runs[index] = (first, length + width, ())
                return
            if first <= base and base + width <= first + length:
                return
        self._last[pc] = len(self.runs)
        self.runs.append((base, width, ()))


class Machine:
    """Registers, counters and memory of one core. `r[32]` takes writes to r0.

    A program that starts or awaits other engines, or other blocks of its launch, runs in segments: `run` returns at each such instruction with what it asks
    for in `suspension`, and is called again when that is done; `segment` says what happened in between.
    """

    __slots__ = (
        "access_bytes",
        "accessed_bytes",
        "cols",
        "compute",
        "cycles",
        "ddr_access_bytes",
        "ended",
        "f",
        "first",
        "free",
        "insns",
        "lane_moves",
        "lane_ops",
        "lanes",
        "last",
        "latency",
        "load_bytes",
        "loads",
        "max_cycles",
        "memory",
        "open_tags",
        "overflows",
        "pc",
        "r",
        "reads",
        "rows",
        "scalar_cycles",
        "shapes",
        "special",
        "starts",
        "store_bytes",
        "stored",
        "stores",
        "strided",
        "suspension",
        "v",
        "work",
        "writes",
    )

    def __init__(self, args_va: int, memory: Memory, shave: Shave, compute: bool, ddr_access_bytes: int = 1) -> None:
        """`ddr_access_bytes`: what memory elsewhere than in CMX moves at least, aligned."""
        self.memory = memory
        self.compute = compute
        self.r: list[int] = [0] * (INT_REGISTERS + 1)
        self.r[1] = args_va
        self.f: list[Any] = [np.float32(0.0)] * FLOAT_REGISTERS
        self.v: list[Array | None] = [None] * VECTOR_REGISTERS
        self.shapes: list[Shape | None] = [None] * VECTOR_REGISTERS
        self.rows = 1
        self.cols = 1
        self.pc = 0
        self.insns = 0
        self.lane_moves = 0  # those of `lane_ops` that only go elsewhere: copies, broadcasts, transpositions
        self.lane_ops = 0  # elements of vector instructions; one of a special function for each cycle in its lane
        self.loads = 0  # accesses of data, each of a register of lanes at most; what `ldm` reads is none
        self.stores = 0
        self.accessed_bytes = 0  # by both
        self.work = 0  # of vectors and accesses; instructions and the places in memory come on top
        self.cycles = shave.startup_cycles  # of scalar instructions; at a halt or a suspension of everything
        self.ended = 0  # when the last vector instruction has ended; this and what follows in cycles as well
        self.free = [0, 0]  # when a unit has done its work
        self.first = [0] * VECTOR_REGISTERS  # when a register has its first elements
        self.last = [0] * VECTOR_REGISTERS  # ... and its last
        self.stored = 0  # when the last store has ended
        self.overflows = 0  # finite values that became infinite while they were rounded to fp16
        self.ddr_access_bytes = ddr_access_bytes
        self.reads = Traffic(ddr_access_bytes)
        self.writes = Traffic(ddr_access_bytes)
        self.suspension: Start | Wait | Bar | None = None
        self.starts = 0  # operations of other engines
        self.open_tags: set[tuple[int, int]] = set()  # (engine, tag) started and not yet waited for
        self.max_cycles = shave.max_cycles
        self.latency = shave.latency_cycles
        self.scalar_cycles = shave.scalar_cycles
        special = shave.special_cycles
        self.special = {F32: special["f32"], F16: special["f16"], I32: special["i32"]}
        self.load_bytes = shave.load_bytes_per_cycle
        self.store_bytes = shave.store_bytes_per_cycle
        self.strided = shave.strided_elements_per_cycle
        lanes = shave.lanes
        self.lanes = {F32: lanes["f32"], F16: lanes["f16"], I32: lanes["i32"]}
        self.access_bytes = 4 * lanes["f32"]

    def round_f16(self, value: Array) -> Array:
        """Return fp32 `value` rounded to fp16 and back; counts what overflows."""
        if sm.is_plain(value):
            return value.astype(np.float16).astype(np.float32)
        bits = casts.f32_to_f16(value)
        if casts.f16_infinities(bits):
            self.overflows += casts.f16_overflows(value)
        return casts.f16_to_f32(bits)

    def fault(self, code: ShaveFaultCode, detail: str = "") -> ShaveFault:
        """Return the fault of the current instruction, for the caller to raise."""
        return ShaveFault(code, self.pc * INSN_BYTES, detail)

    def shape(self, register: int) -> Shape:
        """Return the shape of a vector register; UNDEFINED_REGISTER when it was never written."""
        shape = self.shapes[register]
        if shape is None:
            raise self.fault(ShaveFaultCode.UNDEFINED_REGISTER, f"v{register}")
        return shape

    def extent(self, flags: int) -> Shape:
        """Return the tile that ROW and COL select of the vector length."""
        return (1 if flags & FLAG_ROW else self.rows), (1 if flags & FLAG_COL else self.cols)

    def broadcast(self, x: Shape, y: Shape) -> Shape:
        """Return the shape that both broadcast to; SHAPE or VECTOR_LENGTH when there is none."""
        if x == y:
            return x
        rows = x[0] if y[0] == 1 else y[0]
        cols = x[1] if y[1] == 1 else y[1]
        if x[0] not in (1, rows) or x[1] not in (1, cols):
            raise self.fault(ShaveFaultCode.SHAPE, f"{x} with {y}")
        if rows * cols > VECTOR_CAPACITY:
            raise self.fault(ShaveFaultCode.VECTOR_LENGTH, f"{rows} x {cols}")
        return rows, cols

    def value(self, register: int, dtype: np.dtype[Any]) -> Array:
        """Return the bits of a vector register that has a value, as `dtype`."""
        array = self.v[register]
        assert array is not None
        return array if array.dtype is dtype else array.view(dtype)

    def set(self, register: int, shape: Shape, value: Array | None) -> None:
        """Replace a vector register; `value` is None when not computing."""
        self.shapes[register] = shape
        self.v[register] = value

    def stream(self, unit: int, busy: int, sources: tuple[int, ...], begin: int) -> tuple[int, int]:
        """Give `unit` a vector instruction that keeps it busy for so many cycles; return when its first and last results are there.

        It begins at `begin`, when the first elements of its `sources` are there. From then on the instructions of a unit share it
        strip by strip, so it ends when the unit has done its work and all work before, and no sooner than the sources are complete.
        What reads a register that it replaces is not waited for: in a strip each value has a place of its own.
        """
        first, last, free, supplied = self.first, self.last, self.free, 0
        for register in sources:
            if first[register] > begin:
                begin = first[register]
            if last[register] > supplied:
                supplied = last[register]
        end = free[unit] = (begin if begin > free[unit] else free[unit]) + busy
        if supplied > end:
            end = supplied
        end += self.latency
        if end > self.ended:
            self.ended = end
        return begin + self.latency, end

    def arithmetic(self, d: int, shape: Shape, type_: int, special: bool, sources: tuple[int, ...]) -> None:
        """Let the vector unit compute `shape` elements of register `d`; counts their work."""
        count = shape[0] * shape[1]
        groups = -(-count // self.lanes[type_])
        if special:
            groups *= self.special[type_]
            self.lane_ops += count * self.special[type_]
            self.work += max(count, SPECIAL_ELEMENTS) * SPECIAL_WORK
        else:
            self.lane_ops += count
            self.work += count
        self.first[d], self.last[d] = self.stream(VECTOR_UNIT, groups, sources, self.cycles)

    def move(self, d: int, shape: Shape, type_: int, sources: tuple[int, ...]) -> None:
        """Let the vector unit fill `shape` elements of register `d` with what there is, which computes nothing."""
        self.lane_moves += shape[0] * shape[1]
        self.arithmetic(d, shape, type_, False, sources)

    def load(self, d: int, busy: int, sources: tuple[int, ...] = ()) -> None:
        """Let the memory unit fill register `d`, after all stores before, which may be to the same place."""
        self.first[d], self.last[d] = self.stream(MEMORY_UNIT, busy, sources, max(self.cycles, self.stored))

    def store(self, busy: int, *sources: int) -> None:
        """Let the memory unit write register `sources[0]`; another one is the index."""
        _, end = self.stream(MEMORY_UNIT, busy, sources, self.cycles)
        self.stored = max(self.stored, end)

    def count_accesses(self, count: int, width: int, write: bool) -> None:
        """Count `count` runs of `width` bytes as the loads or stores that they take."""
        self.accessed_bytes += count * width
        if write:
            self.stores += count * -(-width // self.access_bytes)
        else:
            self.loads += count * -(-width // self.access_bytes)

    def check_span(self, base: int, span: int) -> None:
        """Raise ADDRESS when these bytes are not in the address space."""
        if base < 0 or base + span > ADDRESS_LIMIT:
            raise self.fault(ShaveFaultCode.ADDRESS, f"{base:#x} + {span}")

    def touch(self, tile: Access, write: bool) -> int:
        """Check the addresses of `tile`, add its bytes to the log and return its cycles."""
        base, span, width, _, elements = tile
        self.check_span(base, span)
        if write:
            self.writes.add(self.pc, tile)
            rate = self.store_bytes
        else:
            self.reads.add(self.pc, tile)
            rate = self.load_bytes
        runs = tile.run_count
        if elements:  # of which a run of rows that touch has several
            self.count_accesses(elements, runs * width // elements, write)
            self.work += elements * STRIDED_WORK
            return access_cycles(1, elements, self.strided)
        self.count_accesses(runs, width, write)
        self.work += runs * width
        return access_cycles(runs, width, rate)

    def touch_run(self, base: int, width: int, write: bool) -> int:
        """Do what `touch` does for one dense run of bytes."""
        self.check_span(base, width)
        self.work += width
        self.count_accesses(1, width, write)
        if write:
            self.writes.add_run(self.pc, base, width)
            return access_cycles(1, width, self.store_bytes)
        self.reads.add_run(self.pc, base, width)
        return access_cycles(1, width, self.load_bytes)

    def run(self, rows: list[Row]) -> bool:
        """Run on from `pc`; return True at HALT, False when suspended. ShaveFault, or whatever the memory raises, ends the program."""
        count = len(rows)
        scalar_cycles = self.scalar_cycles
        pc = self.pc
        insns = self.insns
        self.suspension = None
        with np.errstate(all="ignore"):
            while True:
                self.pc = pc
                if not 0 <= pc < count:
                    raise self.fault(ShaveFaultCode.BAD_PC)
                handler, argument, length = rows[pc]
                if length:
                    insns += length
                    self.cycles += scalar_cycles * length
                else:
                    length = 1
                    insns += 1
                    self.work += VECTOR_WORK
                    if self.work > MAX_WORK:
                        self.insns = insns
                        self.check_limits()
                target = handler(self, argument)
                if target is None:
                    pc += length
                    continue
                self.insns = insns
                if target == HALT:
                    self.drain()
                    return True
                if target == SUSPEND:
                    self.drain()
                    self.check_limits()
                    self.pc = pc + 1
                    return False
                self.check_limits()
                pc = target

    def drain(self) -> None:
        """Wait for all vector instructions."""
        if self.ended > self.cycles:
            self.cycles = self.ended

    def check_limits(self) -> None:
        """Raise WATCHDOG when the program has had its share."""
        work = self.total_work()
        if max(self.cycles, self.ended) > self.max_cycles or work > MAX_WORK or self.starts > MAX_STARTS:
            raise self.fault(
                ShaveFaultCode.WATCHDOG,
                f"{max(self.cycles, self.ended)} cycles, {self.insns} instructions, work {work}, {self.starts} operations started",
            )

    def total_work(self) -> int:
        """Return what the watchdog has counted so far."""
        runs = len(self.reads.runs) + len(self.writes.runs)
        return self.work + self.insns * INSN_WORK + runs * RUN_WORK

    def charge(self, work: int) -> None:
        """Add the work of the operation that the program, suspended, starts. WATCHDOG when it is too much."""
        self.work += work
        self.pc -= 1
        self.check_limits()
        self.pc += 1

    def segment(self) -> tuple[list[Runs], list[Runs]]:
        """Return the runs of bytes read and written since the last call."""
        reads, writes = self.reads, self.writes
        if self.suspension is not None:
            self.work += (len(reads.runs) + len(writes.runs)) * RUN_WORK
            self.reads, self.writes = Traffic(self.ddr_access_bytes), Traffic(self.ddr_access_bytes)
        return reads.runs, writes.runs

    def result(self) -> ShaveResult:
        """Return the counters and traffic so far."""
        return ShaveResult(
            self.cycles,
            self.insns,
            tuple(self.reads.runs),
            tuple(self.writes.runs),
            self.reads.total_bytes,
            self.writes.total_bytes,
        )


def access_cycles(count: int, amount: int, rate: int) -> int:
    """Return the cycles of an instruction that moves `amount` (bytes or elements) `count` times at `rate` per cycle."""
    return count * -(-amount // rate) if rate < NO_COST_RATE else 0


def in_cmx(address: int) -> bool:
    """Return whether `address` lies in the CMX window."""
    return address in CMX_WINDOW
