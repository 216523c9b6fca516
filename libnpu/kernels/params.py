"""What the host knows of the built-in kernels: the arguments that the structures of npu.h stand for, which sizes a kernel takes,
how many bytes each buffer needs, and in how many blocks to launch it. Pure functions; no runtime.

The rule of the default grid: a block for every `WORTH` elements of the result (of a matrix kernel: every `WORTH_MACS`
multiply-accumulates), but not more blocks than SHAVEs; then as many as it takes to keep each block within the work that the
watchdog allows a program, at most NPU_MAX_KERNEL_GRID.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from operator import index
from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.kernels.catalogue import BUILTINS, FLOATS
from libnpu.kernels.convolution import LARGEST_WIDTH, SMALLEST_SHARE
from libnpu.kernels.matrix import LARGEST_TILE
from libnpu.kernels.operations import CAPACITY, HEADER_BYTES, ITEM_BYTES
from libnpu.kernels.pooling import LARGE, LARGE_READS, LARGE_STEPS

if TYPE_CHECKING:
    from npu_model.profile import Profile

WORTH = 4096  # elements; below, a block costs more than it saves
WORTH_MACS = 1 << 18
MAX_BUFFER_BYTES = (1 << 31) - 1  # strides of a DMA have 31 bits
MAX_WINDOW = 255  # a kernel's or stride's field of struct npu_dpu_invariant
OPTIONAL = ("bias", "gamma", "beta")  # buffers that may be absent: address 0
_MAX_STARTS = 768  # of a block: three quarters of what the watchdog allows
_MAX_WORK = 1 << 27  # of a block: half
_MAX_ROW_WORK = 6 << 25  # of a row, which is not cut: three quarters; the pieces of a row cost up to a fifth more
_ITEM_WORK = 1 << 20  # of one tile, beside bytes and multiply-accumulates
_LAYERNORM_EPSILON = 1e-5  # of npu_submit_kernel, which has no field for it


class KernelArgumentError(ValueError):
    """Arguments that a built-in kernel does not take; the message names the kernel, the value and the limit."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What of a device decides about tiles: SHAVEs, and the CMX of a block in bytes."""

    shaves: int
    cmx_bytes: int

    @classmethod
    def of(cls, profile: Profile) -> Unit:
        """Return those of `profile`."""
        return cls(
            profile.tiles * profile.shaves_per_tile, profile.cmx.workspace_bytes // profile.shaves_per_tile // 64 * 64
        )

    def room(self, buffers: int) -> int:
        """Return the bytes for `buffers` buffers, as `operations.room`."""
        return self.cmx_bytes - HEADER_BYTES - 64 * buffers


@dataclass(frozen=True, slots=True)
class BufferNeed:
    """A buffer of a kernel: the bytes that the launch touches, `direction` of enum npu_arg_direction."""

    name: str
    size_bytes: int
    direction: int
    optional: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch that is known to fit: what its buffers need, in the order of the parameters, the default grid, and the least, with which no
    block does more than the watchdog allows.
    """

    kernel: str
    buffers: tuple[BufferNeed, ...]
    grid: int
    least_grid: int


def plan(name: str, arguments: Sequence[Any], unit: Unit) -> Plan:
    """Return what a launch of built-in kernel `name` needs. `arguments` are all of its arguments; what stands for buffers is not looked at.

    Raises KernelArgumentError for an unknown kernel, a wrong number of arguments, or a size that the kernel or the device cannot do;
    TypeError for a size that is no integer.
    """
    builtin = BUILTINS[_split(name)[0]]
    expected = len(builtin.buffers) + len(builtin.scalars)
    if len(arguments) != expected:
        raise KernelArgumentError(f"{name}: {len(arguments)} arguments; expected {expected}")
    numbers = zip(builtin.scalars, arguments[len(builtin.buffers) :], strict=True)
    return _plan(name, tuple([(key, index(value)) for key, value in numbers if key not in FLOATS]), unit)


@lru_cache(maxsize=256)
def _plan(name: str, numbers: tuple[tuple[str, int], ...], unit: Unit) -> Plan:
    """Return the plan for the integers of a launch."""
    base, es = _split(name)
    builtin = BUILTINS[base]
    sizes = _Sizes(name, es, dict(numbers), unit)
    elements, work = _RULES[base](sizes)
    for buffer, count in elements.items():
        if count * es > MAX_BUFFER_BYTES:
            raise KernelArgumentError(
                f"{name}: {buffer} has {count * es} bytes; at most {MAX_BUFFER_BYTES} are possible"
            )
    needs = tuple(
        BufferNeed(buffer, elements[buffer] * es, direction, buffer in OPTIONAL)
        for buffer, direction in builtin.buffers.items()
    )
    least = max(ceil(max(work.starts / _MAX_STARTS, work.work / _MAX_WORK)), 1)
    if least > C.NPU_MAX_KERNEL_GRID:
        raise KernelArgumentError(f"{name}: takes {least} blocks; at most {C.NPU_MAX_KERNEL_GRID} are possible")
    return Plan(name, needs, max(min(ceil(work.blocks), unit.shaves), least), least)


def from_kernel_params(
    name: str, input_addr: int, weight_addr: int, output_addr: int, n: int, c: int, h: int, w: int
) -> tuple[int | float, ...]:
    """Return the arguments of `name` for kernel_params_t. Raises KernelArgumentError for a kernel that does not take it.

    The comment of kernel_params_t in npu.h says what the fields mean to each kernel; layernorm has no gamma and beta, and an
    epsilon of 1e-5.
    """
    for field, value in (("N", n), ("C", c), ("H", h), ("W", w)):
        if value < 1:
            raise KernelArgumentError(f"{name}: {field} is {value}; expected at least 1")
    base, _ = _split(name)
    ends = (input_addr, output_addr)
    count = n * c * h * w
    found: dict[str, tuple[int | float, ...]] = {
        "conv2d": (input_addr, weight_addr, 0, output_addr, n, c, h, w, c, 3, 3, 1, 1, 1, 1, 1, 0),
        "pool2d": (*ends, n, c, h, w, 2, 2, 2, 2, 0, 0, 0),
        "fully_connected": (input_addr, weight_addr, 0, output_addr, n, c * h * w, c * h * w, 0),
        "relu": (*ends, count),
        "copy": (*ends, count),
        "add": (input_addr, weight_addr, output_addr, count),
        "mul": (input_addr, weight_addr, output_addr, count),
        "softmax": (*ends, n * c * h, w),
        "layernorm": (input_addr, 0, 0, output_addr, n * c * h, w, _LAYERNORM_EPSILON),
        "reduce_sum": (*ends, n * c * h, w),
    }
    if base not in found:
        raise KernelArgumentError(f"{name}: does not take kernel_params_t; launch it with npu_launch_kernel_async")
    return found[base]


def from_conv2d_params(
    addresses: tuple[int, int, int, int], sizes: Sequence[int], relu: int, groups: int = 1
) -> tuple[int, ...]:
    """Return the arguments of conv2d for npu_conv2d_params_t.

    `addresses` are input, weight, bias (0 = none), output; `sizes` the eleven from n to pad_w.
    """
    return (*addresses, *sizes, groups, relu)


def _split(name: str) -> tuple[str, int]:
    """Return the kernel without its type, and the bytes of an element."""
    base, dot, dtype = name.partition(".")
    if base not in BUILTINS or (dot and dtype != "f16"):
        raise KernelArgumentError(
            f"{name!r} is no built-in kernel; there are {', '.join(BUILTINS)}, each also with .f16"
        )
    return base, ITEM_BYTES[dtype or "f32"]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The integers of a launch, by name."""

    kernel: str
    es: int  # bytes of an element
    values: Mapping[str, int]
    unit: Unit

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    def expect(self, names: Sequence[str], low: int, high: int) -> None:
        """Raise KernelArgumentError unless all of `names` are within [low, high]."""
        for name in names:
            if not low <= self.values[name] <= high:
                raise KernelArgumentError(f"{self.kernel}: {name} is {self.values[name]}; expected {low} to {high}")

    def fail(self, reason: str) -> KernelArgumentError:
        return KernelArgumentError(f"{self.kernel}: {reason}")


@dataclass(frozen=True, slots=True)
class _Work:
    """How much there is to do, for the grid: blocks that are worth it, starts of operations, work as the watchdog counts it."""

    blocks: float
    starts: float
    work: float


_Needs = tuple[dict[str, int], _Work]


def _elementwise(*buffers: str) -> Callable[[_Sizes], _Needs]:
    def rule(s: _Sizes) -> _Needs:
        s.expect(["count"], 1, MAX_BUFFER_BYTES)
        streams = len(buffers) + (s.kernel.startswith("scale_add"))  # its output is read, too
        chunk = min(CAPACITY, s.unit.room(2 * streams) // (2 * streams * s.es))
        chunks = s["count"] / chunk
        work = _Work(s["count"] / WORTH, chunks * streams, s["count"] * s.es * 3 * streams + chunks * _ITEM_WORK)
        return dict.fromkeys(buffers, s["count"]), work

    return rule


def _moved(*buffers: str) -> Callable[[_Sizes], _Needs]:
    """The rule of copy and fill, which are a DMA or two for each block."""

    def rule(s: _Sizes) -> _Needs:
        s.expect(["count"], 1, MAX_BUFFER_BYTES)
        return dict.fromkeys(buffers, s["count"]), _Work(s["count"] / WORTH, 2, s["count"] * s.es)

    return rule


def _rows(passes: int, *shared: str, cost: int, out: bool = True) -> Callable[[_Sizes], _Needs]:
    """The rule of kernels over rows: `passes` over a long row, `shared` operands of one row, a result of one row or one element. `cost`: the
    work that the watchdog counts for an element of a long row, measured on rows near the limit, rounded up.
    """

    def rule(s: _Sizes) -> _Needs:
        s.expect(["rows", "cols"], 1, MAX_BUFFER_BYTES)
        rows, cols = s["rows"], s["cols"]
        limit = min(CAPACITY // cols, s.unit.room(4) // (cols * s.es * 4))
        if limit:
            tiles, starts = rows / limit, 2.0
        else:
            piece = min(s.unit.room(4) // 256 * 64 // s.es, CAPACITY)
            tiles = float(rows * ceil(cols / piece))
            starts = passes + len(shared) + 1.0
            longest = min(int(_MAX_STARTS / starts) * piece, _MAX_ROW_WORK // cost)
            if cols > longest:
                raise s.fail(f"cols is {cols}; a block computes a whole row, of at most {longest} on this device")
        elements = {"input": rows * cols, **dict.fromkeys(shared, cols), "output": rows * cols if out else rows}
        work = _Work(rows * cols / WORTH, tiles * starts, rows * cols * 64 + tiles * _ITEM_WORK * passes)
        return elements, work

    return rule


def _window(s: _Sizes) -> tuple[int, int]:
    """Check a window and return the output's height and width."""
    s.expect(["n", "c", "h", "w"], 1, MAX_BUFFER_BYTES)
    s.expect(["kernel_h", "kernel_w", "stride_h", "stride_w"], 1, MAX_WINDOW)
    found = []
    for axis in "hw":
        size, kernel, stride, pad = s[axis], s[f"kernel_{axis}"], s[f"stride_{axis}"], s[f"pad_{axis}"]
        s.expect([f"pad_{axis}"], 0, kernel - 1)
        if size + 2 * pad < kernel:
            raise s.fail(f"kernel_{axis} is {kernel}; {axis} with its padding has {size + 2 * pad}")
        found.append((size + 2 * pad - kernel) // stride + 1)
    return found[0], found[1]


def _conv2d(s: _Sizes) -> _Needs:
    s.expect(["k"], 1, MAX_BUFFER_BYTES)
    s.expect(["activation"], 0, 1)
    s.expect(["groups"], 1, min(s["c"], s["k"]) if min(s["c"], s["k"]) > 0 else 1)
    out_h, out_w = _window(s)
    n, groups = s["n"], s["groups"]
    if s["c"] % groups or s["k"] % groups:
        raise s.fail(f"groups is {groups}; it must divide c {s['c']} and k {s['k']}")
    c, k = s["c"] // groups, s["k"] // groups
    taps = s["kernel_h"] * s["kernel_w"]
    tile = _conv_tile(s, c, k, out_h, out_w, taps)
    if tile is None:
        raise s.fail(
            f"a window of {s['kernel_h']} by {s['kernel_w']} inputs in {c} channels, twice, and its {taps * c} weights "
            f"do not fit in the {s.unit.cmx_bytes} bytes of CMX that a block has"
        )
    high, wide, broad = tile
    macs = n * groups * k * out_h * out_w * c * taps
    tiles = n * groups * ceil(k / wide) * ceil(out_h / high) * ceil(out_w / broad)
    moved = tiles * (high * s["stride_h"] + s["kernel_h"]) * (broad * s["stride_w"] + s["kernel_w"]) * c * s.es * 4
    elements = {
        "input": n * s["c"] * s["h"] * s["w"],
        "weights": s["k"] * c * taps,
        "bias": s["k"],
        "output": n * s["k"] * out_h * out_w,
    }
    return elements, _Work(macs / WORTH_MACS, tiles * 4, macs / 4 + moved + tiles * _ITEM_WORK)


def _conv_tile(s: _Sizes, c: int, k: int, out_h: int, out_w: int, taps: int) -> tuple[int, int, int] | None:
    """Return rows, channels and columns of a tile, as `convolution` chooses them for many blocks; None when not one fits."""
    wide, broad = min(k, LARGEST_WIDTH), out_w
    if s["n"] * s["h"] * s["w"] < k * taps:
        wide = min(wide, SMALLEST_SHARE)
    while True:
        row = min((broad - 1) * s["stride_w"] + s["kernel_w"], s["w"]) * c * 2 * s.es
        left = s.unit.room(6) - wide * (taps * c * s.es + 16) - (s["kernel_h"] - s["stride_h"]) * row
        high = max(left, 0) // (s["stride_h"] * row + broad * wide * 2 * s.es)
        if high or max(wide, broad) == 1:
            return (min(high, out_h), wide, broad) if high else None
        if broad > wide:
            broad = -(-broad // 2)
        else:
            wide = -(-wide // 2)


def _pool2d(s: _Sizes) -> _Needs:
    s.expect(["average"], 0, 1)
    out_h, out_w = _window(s)
    if out_w > CAPACITY:
        raise s.fail(f"the output is {out_w} wide; expected 1 to {CAPACITY}")
    wide = s["w"] + 2 * s["pad_w"]
    line = wide * s.es
    taps, steps = s["kernel_h"] * s["kernel_w"], s["kernel_h"] + s["kernel_w"]
    is_large = taps > LARGE
    room = s.unit.room(4) - is_large * wide * 4
    left = room - (s["kernel_h"] - s["stride_h"]) * line
    high = min(max(left, 0) // (s["stride_h"] * line + out_w * s.es), out_h, CAPACITY // out_w)
    if high < 1:
        raise s.fail(
            f"{s['kernel_h']} rows of {s['w']} inputs do not fit in the {s.unit.cmx_bytes} bytes of CMX that a block has"
        )
    if is_large:
        high = min(high, max(min(LARGE_STEPS // steps, LARGE_READS // (out_w * s["kernel_w"])), 1))
    planes = s["n"] * s["c"]
    tiles = planes * ceil(out_h / high)
    results = planes * out_h * out_w
    starts = tiles * 2
    if high == out_h:
        plane = ((out_h - 1) * s["stride_h"] + s["kernel_h"]) * line + out_h * out_w * s.es
        starts = ceil(planes / max(room // plane, 1)) * 2
    if is_large:
        reads = planes * out_h * (s["kernel_h"] * wide + s["kernel_w"] * out_w)
        blocks, taken = min(reads / WORTH, tiles), reads * 24 + planes * out_h * steps * (1 << 15)
    else:
        blocks, taken = results * taps / WORTH, results * taps * 24 + tiles * taps * (1 << 15)
    work = _Work(blocks, starts, taken + tiles * _ITEM_WORK // 8)
    return {"input": planes * s["h"] * s["w"], "output": results}, work


def _matrix(s: _Sizes) -> _Needs:
    s.expect(["m", "k", "n"], 1, MAX_BUFFER_BYTES)
    m, k, n = s["m"], s["k"], s["n"]
    batch = 1
    if "batch" in s.values:
        s.expect(["batch"], 1, MAX_BUFFER_BYTES)
        batch = s["batch"]
    else:
        s.expect(["activation"], 0, 1)
    high, wide = min(m, LARGEST_TILE), min(n, LARGEST_TILE)
    while ((high + wide) * k + high * wide) * 2 * s.es + wide * 16 > s.unit.room(7):
        if max(high, wide) == 1:
            raise s.fail(
                f"k is {k}; two rows of it, twice, do not fit in the {s.unit.cmx_bytes} bytes of CMX that a block has"
            )
        if high + (high != m) > wide:
            high = -(-high // 2)
        else:
            wide = -(-wide // 2)
    tiles = batch * ceil(m / high) * ceil(n / wide)
    macs = batch * m * k * n
    elements = {"input": batch * m * k, "weights": batch * k * n, "bias": n, "output": batch * m * n}
    work = macs / 4 + tiles * ((high + wide) * k + high * wide) * s.es * 3 + tiles * _ITEM_WORK
    return elements, _Work(max(macs / WORTH_MACS, prod((batch, m, n)) / WORTH / 4), tiles * 4, work)


_RULES: dict[str, Callable[[_Sizes], _Needs]] = {
    "conv2d": _conv2d,
    "pool2d": _pool2d,
    "fully_connected": _matrix,
    "matmul": _matrix,
    "add": _elementwise("input", "other", "output"),
    "mul": _elementwise("input", "other", "output"),
    "relu": _elementwise("input", "output"),
    "softmax": _rows(2, cost=82),
    "layernorm": _rows(3, "gamma", "beta", cost=66),
    "reduce_sum": _rows(1, cost=16, out=False),
    "copy": _moved("input", "output"),
    "fill": _moved("output"),
    "scale_add": _elementwise("input", "output"),
}
