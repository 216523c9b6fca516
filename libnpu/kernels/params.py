"""What the host knows of the built-in kernels: the arguments that the structures of npu.h stand for, which sizes a kernel takes,
how many bytes each buffer needs, and in how many blocks to launch it. Pure functions; no runtime.

The rule of the default grid: a block for every `WORTH` elements of the result (of a matrix kernel: every `WORTH_MACS`
multiply-accumulates), but not more blocks than SHAVEs; then as many as it takes to keep each block within what the
watchdog allows a program (`bounds`), at most NPU_MAX_KERNEL_GRID.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, prod
from operator import index
from typing import TYPE_CHECKING, Any

from npu_abi import C
from npu_model.shave_machine import MAX_STARTS, MAX_WORK

from libnpu.kernels import bounds
from libnpu.kernels.bounds import Block, Bound, TileError, Window
from libnpu.kernels.catalogue import BUILTINS, DTYPES, FLOATS
from libnpu.kernels.operations import CAPACITY, ITEM_BYTES
from libnpu.kernels.pooling import LARGE

if TYPE_CHECKING:
    from npu_model.profile import Profile

WORTH = 4096  # elements; below, a block costs more than it saves
WORTH_MACS = 1 << 18
MAX_BUFFER_BYTES = (1 << 31) - 1  # strides of a DMA have 31 bits
MAX_GRID = int(C.NPU_MAX_KERNEL_GRID)
MAX_WINDOW = 255  # a kernel's or stride's field of struct npu_dpu_invariant
OPTIONAL = ("bias", "gamma", "beta")  # buffers that may be absent: address 0
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


@dataclass(frozen=True, slots=True)
class BufferNeed:
    """A buffer of a kernel: the bytes that the launch touches, `direction` of enum npu_arg_direction."""

    name: str
    size_bytes: int
    direction: int
    optional: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch that is known to fit: what its buffers need, in the order of the parameters, the default grid, and the least. More blocks than the
    least may still be too few, in rare cases: see `excess`.
    """

    kernel: str
    buffers: tuple[BufferNeed, ...]
    grid: int
    least_grid: int
    bound: Bound = field(repr=False, compare=False)

    def excess(self, grid: int) -> str | None:
        """Say what a block of `grid` blocks may use more of than the watchdog allows; None when nothing."""
        return _excess(self.bound(grid))


def _excess(block: Block) -> str | None:
    for what, value, limit in (("units of work", block.work, MAX_WORK), ("operations", block.starts, MAX_STARTS)):
        if value > limit:
            return f"{value} {what} in a block; the watchdog allows {limit}"
    return None


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
    base, dtype = _split(name)
    builtin = BUILTINS[base]
    sizes = _Sizes(name, bounds.Program(base, dtype, unit.cmx_bytes), dict(numbers))
    elements, blocks, bound = _RULES[base](sizes)
    es = ITEM_BYTES[dtype]
    for buffer, count in elements.items():
        if count * es > MAX_BUFFER_BYTES:
            raise KernelArgumentError(
                f"{name}: {buffer} has {count * es} bytes; at most {MAX_BUFFER_BYTES} are possible"
            )
    needs = tuple(
        BufferNeed(buffer, elements[buffer] * es, direction, buffer in OPTIONAL)
        for buffer, direction in builtin.buffers.items()
    )
    least = _least_grid(bound, 1)
    wanted = max(min(ceil(blocks), unit.shaves), 1)
    grid = _least_grid(bound, wanted)
    if least is None or grid is None:
        raise KernelArgumentError(f"{name}: with {MAX_GRID} blocks, the most, {_excess(bound(MAX_GRID))}")
    return Plan(name, needs, grid, least, bound)


def _least_grid(bound: Bound, first: int) -> int | None:
    """Return the fewest blocks, from `first` on, each of which stays within what the watchdog allows; None when even the most do not."""
    low = high = first
    while _excess(bound(high)):
        if high == MAX_GRID:
            return None
        low, high = high + 1, min(2 * high, MAX_GRID)
    while low < high:
        middle = (low + high) // 2
        if _excess(bound(middle)):
            low = middle + 1
        else:
            high = middle
    return high


def from_kernel_params(
    name: str, input_addr: int, weight_addr: int, output_addr: int, n: int, c: int, h: int, w: int
) -> tuple[int | float, ...]:
    """Return the arguments of `name` for kernel_params_t. Raises KernelArgumentError for a kernel that does not take it.

    The comment of kernel_params_t in npu.h says what the fields mean to each kernel; layernorm has no gamma and beta, and an
    epsilon of 1e-5.
    """
    for dimension, value in (("N", n), ("C", c), ("H", h), ("W", w)):
        if value < 1:
            raise KernelArgumentError(f"{name}: {dimension} is {value}; expected at least 1")
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


def _split(name: str) -> tuple[str, str]:
    """Return the kernel without its type, and the type."""
    base, dot, dtype = name.partition(".")
    if base not in BUILTINS or (dot and (dtype not in DTYPES or dtype == "f32")):
        raise KernelArgumentError(
            f"{name!r} is no built-in kernel; there are {', '.join(BUILTINS)}, each also with .f16"
        )
    return base, dtype or "f32"


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The integers of a launch, by name."""

    kernel: str
    program: bounds.Program
    values: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    def expect(self, names: Sequence[str], low: int, high: int) -> None:
        """Raise KernelArgumentError unless all of `names` are within [low, high]."""
        for name in names:
            if not low <= self.values[name] <= high:
                raise KernelArgumentError(f"{self.kernel}: {name} is {self.values[name]}; expected {low} to {high}")

    def fail(self, reason: str) -> KernelArgumentError:
        return KernelArgumentError(f"{self.kernel}: {reason}")


# Elements of each buffer, blocks that are worth it, and what a block does at most.
_Needs = tuple[dict[str, int], float, Bound]


def _elementwise(*buffers: str) -> Callable[[_Sizes], _Needs]:
    def rule(s: _Sizes) -> _Needs:
        s.expect(["count"], 1, MAX_BUFFER_BYTES)
        loads = len(buffers) - (not s.kernel.startswith("scale_add"))  # its output is read, too
        return dict.fromkeys(buffers, s["count"]), s["count"] / WORTH, bounds.elementwise(s.program, s["count"], loads)

    return rule


def _moved(*buffers: str) -> Callable[[_Sizes], _Needs]:
    """The rule of copy and fill."""

    def rule(s: _Sizes) -> _Needs:
        s.expect(["count"], 1, MAX_BUFFER_BYTES)
        return dict.fromkeys(buffers, s["count"]), s["count"] / WORTH, bounds.moved(s.program, s["count"])

    return rule


def _rows(passes: int, *shared: str, out: bool = True) -> Callable[[_Sizes], _Needs]:
    """The rule of kernels over rows: `passes` over a long row, `shared` operands of one row, a result of one row or one element."""

    def rule(s: _Sizes) -> _Needs:
        s.expect(["rows", "cols"], 1, MAX_BUFFER_BYTES)
        rows, cols = s["rows"], s["cols"]

        def bound(rows: int, cols: int) -> Bound:
            return bounds.rows(s.program, rows, cols, cols if out else 1, passes + len(shared))

        if _excess(bound(1, cols)(1)):
            longest = bisect_left(range(cols), True, key=lambda n: _excess(bound(1, n + 1)(1)) is not None)
            raise s.fail(f"cols is {cols}; a block computes a whole row, of at most {longest} on this device")
        elements = {"input": rows * cols, **dict.fromkeys(shared, cols), "output": rows * cols if out else rows}
        return elements, rows * cols / WORTH, bound(rows, cols)

    return rule


def _window(s: _Sizes) -> Window:
    """Check a window and return it."""
    s.expect(["n", "c", "h", "w"], 1, MAX_BUFFER_BYTES)
    s.expect(["kernel_h", "kernel_w", "stride_h", "stride_w"], 1, MAX_WINDOW)
    found = []
    for axis in "hw":
        size, kernel, stride, pad = s[axis], s[f"kernel_{axis}"], s[f"stride_{axis}"], s[f"pad_{axis}"]
        s.expect([f"pad_{axis}"], 0, kernel - 1)
        if size + 2 * pad < kernel:
            raise s.fail(f"kernel_{axis} is {kernel}; {axis} with its padding has {size + 2 * pad}")
        found.append((size, (size + 2 * pad - kernel) // stride + 1, kernel, stride, pad))
    return Window(s["n"], *zip(*found, strict=True))


def _conv2d(s: _Sizes) -> _Needs:
    s.expect(["k"], 1, MAX_BUFFER_BYTES)
    s.expect(["activation"], 0, 1)
    s.expect(["groups"], 1, min(s["c"], s["k"]) if min(s["c"], s["k"]) > 0 else 1)
    window = _window(s)
    n, groups = s["n"], s["groups"]
    if s["c"] % groups or s["k"] % groups:
        raise s.fail(f"groups is {groups}; it must divide c {s['c']} and k {s['k']}")
    c, k = s["c"] // groups, s["k"] // groups
    weights, outputs = s["k"] * c * window.taps, n * s["k"] * prod(window.out)
    try:
        bounds.conv_tile(s.program, window, c, k, groups, 1)
    except TileError:
        raise s.fail(
            f"a window of {s['kernel_h']} by {s['kernel_w']} inputs in {c} channels, twice, and its {window.taps * c} weights "
            f"do not fit in the {s.program.cmx_bytes} bytes of CMX that a block has"
        ) from None
    elements = {"input": n * s["c"] * s["h"] * s["w"], "weights": weights, "bias": s["k"], "output": outputs}
    return elements, outputs * c * window.taps / WORTH_MACS, bounds.conv2d(s.program, window, c, k, groups)


def _pool2d(s: _Sizes) -> _Needs:
    s.expect(["average"], 0, 1)
    window = _window(s)
    (out_h, out_w), planes = window.out, s["n"] * s["c"]
    if out_w > CAPACITY:
        raise s.fail(f"the output is {out_w} wide; expected 1 to {CAPACITY}")
    try:
        high = bounds.pool_rows(s.program, window)
    except TileError:
        raise s.fail(
            f"{s['kernel_h']} rows of {s['w']} inputs do not fit in the {s.program.cmx_bytes} bytes of CMX that a block has"
        ) from None
    results = planes * out_h * out_w
    blocks = results * window.taps / WORTH
    if window.taps > LARGE:
        reads = planes * out_h * (s["kernel_h"] * (s["w"] + 2 * s["pad_w"]) + s["kernel_w"] * out_w)
        blocks = min(reads / WORTH, planes * ceil(out_h / high))
    bound = bounds.pool2d(s.program, window, s["c"], bool(s["average"]))
    return {"input": planes * s["h"] * s["w"], "output": results}, blocks, bound


def _matrix(s: _Sizes) -> _Needs:
    s.expect(["m", "k", "n"], 1, MAX_BUFFER_BYTES)
    m, k, n = s["m"], s["k"], s["n"]
    batch = 1
    if "batch" in s.values:
        s.expect(["batch"], 1, MAX_BUFFER_BYTES)
        batch = s["batch"]
    else:
        s.expect(["activation"], 0, 1)
    try:
        bounds.matrix_tile(s.program, batch, m, k, n, 1)
    except TileError:
        raise s.fail(
            f"k is {k}; two rows of it, twice, do not fit in the {s.program.cmx_bytes} bytes of CMX that a block has"
        ) from None
    elements = {"input": batch * m * k, "weights": batch * k * n, "bias": n, "output": batch * m * n}
    blocks = max(batch * m * k * n / WORTH_MACS, batch * m * n / WORTH / 4)
    return elements, blocks, bounds.matrix(s.program, batch, m, k, n)


_RULES: dict[str, Callable[[_Sizes], _Needs]] = {
    "conv2d": _conv2d,
    "pool2d": _pool2d,
    "fully_connected": _matrix,
    "matmul": _matrix,
    "add": _elementwise("input", "other", "output"),
    "mul": _elementwise("input", "other", "output"),
    "relu": _elementwise("input", "output"),
    "softmax": _rows(2),
    "layernorm": _rows(3, "gamma", "beta"),
    "reduce_sum": _rows(1, out=False),
    "copy": _moved("input", "output"),
    "fill": _moved("output"),
    "scale_add": _elementwise("input", "output"),
}
