"""What one node of the canonical graph asks of the engines, however it is tiled: the least time of all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from npu_model import dtypes
from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.attention.masks import Masks
from libnpu.compiler.ir import SMALL_INTEGERS
from libnpu.compiler.lower.byte_sums import byte_sum
from libnpu.compiler.lower.eltwise import engine_operation
from libnpu.compiler.lower.passes import passes_cycles, passes_of
from libnpu.compiler.program import Engine
from libnpu.compiler.quality.engine import Layer, least_cycles, least_eltwise_cycles
from libnpu.compiler.quality.reach import CONVOLUTIONS, POOLINGS, PRODUCTS, axes

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_model.profile import Profile

    from libnpu.compiler.ir import Graph, Node, Value

PS_PER_SECOND = 10**12
_UNITS = 1024  # between the two sizes that a kernel's rate is taken from; chosen: whole vectors of every type
_ELEMENTS = 1 << 18  # of the larger one of the two at most: far from what the core's watchdog stops


@dataclass(slots=True, frozen=True)
class Work:
    """Of a node: its engine (None: data moves, or nothing happens), that engine's time, and what the first task costs before it works.

    `work_ps` is the time of all units of the engine together, at their peak, without start-up.
    """

    engine: Engine | None = None
    work_ps: float = 0.0
    start_ps: float = 0.0
    macs: int = 0


def node_work(graph: Graph, node: Node, profile: Profile, tiles: int) -> Work:
    """Return the work of `node` on `tiles` tiles of `profile`."""
    if node.op in (*CONVOLUTIONS, *POOLINGS, *PRODUCTS):
        return _matrix(node, profile, tiles)
    if node.op == "Elementwise" and (byte_sum(node) is not None or engine_operation(graph, node) is not None):
        value = node.outputs[0]
        return _dpu(profile, tiles, least_eltwise_cycles(_size(value), code_of_numpy(value.dtype), profile.dpu))
    if node.op == "Elementwise" and (passes := passes_of(node, profile, tiles)) is not None:
        return _dpu(profile, tiles, passes_cycles(passes, node, profile.dpu))
    if node.op == "RoPE":  # two products and a sum of each element
        cycles = 3 * _size(node.outputs[0]) / profile.shave.lanes["f32"] / (tiles * profile.shaves_per_tile)
        start_ps = _ps(profile.shave.startup_cycles, profile.shave.clock_hz)
        return Work(Engine.SHAVE, _ps(cycles, profile.shave.clock_hz), start_ps)
    if node.op in ("FlashSDPA", "IncrementalSDPA"):
        return _attention(node, profile, tiles)
    if node.op in ("Elementwise", "Reduce", "Softmax", "ArgMax", "Gather"):
        units = tiles * profile.shaves_per_tile
        start = profile.shave.startup_cycles
        return Work(
            Engine.SHAVE,
            _ps(_shave_cycles(node, profile) / units, profile.shave.clock_hz),
            _ps(start, profile.shave.clock_hz),
        )
    return Work()


def _dpu(profile: Profile, tiles: int, cycles: float, macs: int = 0) -> Work:
    dpu = profile.dpu
    start = dpu.startup_cycles + dpu.workload_cycles
    return Work(Engine.DPU, _ps(cycles / tiles, dpu.clock_hz), _ps(start, dpu.clock_hz), macs)


def _attention(node: Node, profile: Profile, tiles: int) -> Work:
    """Return the work of the engine that has most: products on DPUs, or what SHAVEs do to scores that count."""
    query, out, parts = node.inputs[0], node.outputs[0], node.attrs["parts"]
    assert query is not None
    keys = sum(value.shape[-2] for value in node.inputs[1 : 1 + parts] if value is not None)
    scores = Masks(
        node.attrs["expr"], [v for v in node.inputs[1 + 2 * parts :] if v is not None], (*query.shape[:-1], keys)
    ).counted()
    macs = scores * (query.shape[-1] + out.shape[-1])
    shave, lanes = profile.shave, profile.shave.lanes["f32"]
    if node.op == "IncrementalSDPA":  # a product and a sum of each element of keys and values
        cycles = 2 * macs / lanes
    else:  # the largest, the difference and the sum of scores
        cycles = 3 * scores / lanes
    vector = Work(
        Engine.SHAVE,
        _ps(cycles / (tiles * profile.shaves_per_tile), shave.clock_hz),
        _ps(shave.startup_cycles, shave.clock_hz),
        macs,
    )
    if node.op == "IncrementalSDPA":
        return vector
    rate = profile.dpu.macs_per_cycle.get(dtypes.name(code_of_numpy(query.dtype)), 1)
    return max(vector, _dpu(profile, tiles, macs / rate, macs), key=lambda work: work.work_ps)


def _matrix(node: Node, profile: Profile, tiles: int) -> Work:
    layer = _product(node) if node.op in PRODUCTS else _windowed(node)
    macs = layer.images * prod(layer.pixels) * layer.channels * _taps(node) if node.op not in POOLINGS else 0
    return _dpu(profile, tiles, least_cycles(layer, profile.dpu), macs)


def _taps(node: Node) -> int:
    """Return the multiply-accumulates of one element of a product's result."""
    source, weight = node.inputs[0], node.inputs[1]
    assert source is not None and weight is not None
    return int(source.shape[-1] if node.op in PRODUCTS else prod(weight.shape[1:]))


def _product(node: Node) -> Layer:
    """Return a matrix product: rows of all batches together where they share the right operand."""
    source, other, out = node.inputs[0], node.inputs[1], node.outputs[0]
    assert source is not None and other is not None
    shared = prod(other.shape[:-2]) == 1
    images, rows = (1, prod(out.shape[:-1])) if shared else (prod(out.shape[:-2]), out.shape[-2])
    act, weight, result = (code_of_numpy(v.dtype) for v in (source, source if other.const is not None else other, out))
    taps = ((1,), (rows,))
    small = other.dtype in SMALL_INTEGERS
    shape = images, (1, rows), out.shape[-1], 1, source.shape[-1]
    return Layer(*shape, taps, True, act, weight, result, has_small_weights=small)


def _windowed(node: Node) -> Layer:
    """Return a convolution or pooling of two dimensions."""
    source, out = node.inputs[0], node.outputs[0]
    assert source is not None
    weight = node.inputs[1] if node.op in CONVOLUTIONS else None
    windows = axes(node)
    kernel = [window.kernel for window in windows]
    groups = int(node.attrs["group"]) if weight is not None else 1
    own = weight is None or 1 < groups == source.shape[1] == weight.shape[0]
    images, channels, *pixels = out.shape
    taps = [[window.outputs] * window.kernel if own else window.live_outputs() for window in windows]
    is_line = min(kernel) == 1
    if is_line:  # rows, or columns, do not know each other: those of all images may be one plane
        images, pixels[0], taps[0] = 1, images * pixels[0], [images * rows for rows in taps[0]]
    code, target = code_of_numpy(source.dtype), code_of_numpy(out.dtype)
    return Layer(
        images=images,
        pixels=(pixels[0], pixels[1]),
        channels=channels,
        groups=1 if own else groups,
        depth=source.shape[1] // (1 if own else groups),
        taps=(taps[0], taps[1]),
        is_line=is_line,
        act=code,
        weight=code,
        out=target,
        own_channels=own,
        has_weights=weight is not None,
        keeps_rows=own and weight is not None and 3 in kernel,
        in_steps=weight is None and max(pixels) == 1,
        has_small_weights=weight is not None and weight.dtype in SMALL_INTEGERS,
    )


def _shave_cycles(node: Node, profile: Profile) -> float:
    """Return the cycles of one SHAVE for all of a node: what its kernel costs for each element more where all lie dense."""
    source, out = node.inputs[0], node.outputs[0]
    target = code_of_numpy(out.dtype)
    if node.op == "Elementwise":
        values = [value for value in node.inputs if value is not None]
        codes = [*(code_of_numpy(value.dtype) for value in values), target]
        steps = [
            0 if _size(value) < _size(out) else dtypes.size_bytes(code)
            for value, code in zip(values, codes, strict=False)
        ]
        steps.append(dtypes.size_bytes(target))
        program = kernels.elementwise(node.attrs["expr"], tuple(codes[:-1]), target)
        return _size(out) * _rate(
            program, lambda n: [_Side(c, (n,), (s,)) for c, s in zip(codes, steps, strict=True)], 1, profile
        )
    assert source is not None
    code = code_of_numpy(source.dtype)
    if node.op == "Gather":
        index = node.inputs[1]
        assert index is not None
        kind, inner = code_of_numpy(index.dtype), prod(source.shape[node.attrs["axis"] + 1 :])
        program = kernels.gather(code, kind)

        def rows(n: int) -> list[_Side]:
            return [_dense(code, (1, n, inner)), _dense(kind, (n,)), _dense(code, (1, n, inner))]

        return _size(out) / max(inner, 1) * _rate(program, rows, inner, profile)
    n: int = prod(source.shape[k] for k in (node.attrs["axes"] if node.op == "Reduce" else [node.attrs["axis"]]))
    if node.op == "Softmax":
        program = kernels.softmax(code, target, bool(node.attrs["log"]))
    elif node.op == "ArgMax":
        program = kernels.argmax(code, target)
    else:
        program = kernels.reduce(node.attrs["kind"], code, target)

    def along(shape: Callable[[int], tuple[int, int, int]]) -> float:
        def sides(count: int) -> list[_Side]:
            whole = shape(count)
            return [_dense(code, whole), _dense(target, whole if node.op == "Softmax" else (whole[0], whole[2]))]

        return _rate(program, sides, n, profile)

    # The elements of one reduction lie side by side, or beside those of the others: the order in memory is the lowering's choice.
    each = min(along(lambda k: (k, n, 1)), along(lambda k: (1, n, k)))
    return _size(source) / max(n, 1) * each


class _Side(NamedTuple):
    """An operand of a kernel: enum npu_dtype, dims, and strides in bytes."""

    code: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]


def _dense(code: int, dims: tuple[int, ...]) -> _Side:
    return _Side(code, dims, tuple(prod(dims[k + 1 :]) * dtypes.size_bytes(code) for k in range(len(dims))))


def _rate(program: kernels.Program, sides: Callable[[int], list[_Side]], elements: int, profile: Profile) -> float:
    """Return the cycles that one unit of `elements` more takes, of operands of `sides(count)`; what comes before it does not count."""
    units = max(1, min(_UNITS, _ELEMENTS // max(elements, 1) // 2))

    def cost(count: int) -> int:
        operands = [kernels.Operand(index, *side) for index, side in enumerate(sides(count))]
        return kernels.cost_cycles(program, program.args(operands), profile)

    return max(0.0, (cost(2 * units) - cost(units)) / units)


def _size(value: Value) -> int:
    return int(prod(value.shape))


def ddr_ps(profile: Profile, size_bytes: int) -> float:
    """Return the time that DMA takes at least to move so many bytes to or from DDR: what all ports carry, and memory gives."""
    dma = profile.dma
    rate = min(profile.ddr.bytes_per_second, dma.bytes_per_cycle * dma.clock_hz * profile.dma_ports)
    return size_bytes * PS_PER_SECOND / rate


def _ps(cycles: float, clock_hz: int) -> float:
    return cycles * PS_PER_SECOND / clock_hz
