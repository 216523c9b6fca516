"""The tile program under construction: where each value lives, and the operations so far.

Every value gets a home: a view on a CMX buffer when it is small, else on a DDR scratch tensor; network inputs and outputs are
DDR tensors, constants are in the weights section. Producers write homes box by box, consumers read boxes of them; a box of a
DDR home passes through a fresh CMX buffer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import cycles

from libnpu.compiler.lower.copy import copies
from libnpu.compiler.lower.errors import CompileError
from libnpu.compiler.lower.invariant import variant_channels, variants
from libnpu.compiler.lower.mirror import ROOM, mirror
from libnpu.compiler.lower.records import dma_records, dpu_records
from libnpu.compiler.lower.relayout import relayout
from libnpu.compiler.lower.view import ALIGNMENT, Order, View, aligned, dense
from libnpu.compiler.program import (
    FAR,
    Access,
    Buffer,
    DdrKind,
    DdrTensor,
    DmaPayload,
    DpuPayload,
    Engine,
    ShavePayload,
    TileOp,
    TileProgram,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from npu_model.profile import Profile
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Graph, Node, Value
    from libnpu.compiler.lower.weights import ConstantWeights

MAX_OPS = 1 << 17  # chosen: far above real models, and what the scheduler orders in minutes; below NPU_MAX_TASKS
SMALL = 0.25  # of CMX, and half a tile: a value of at most this lives there
LARGE = 0.42  # of CMX, and FILL of a tile: so does one of at most this, when it and what lives there then take no more than CROWDED
CROWDED = 0.67
WAITING = 1 / 16  # of CMX: a value of at least this goes to DDR where it would wait in CMX while others need the room
LONG = 8  # nodes that it would wait for, at least; both chosen by trials
RECURRENT, MANY = 0.95, 8  # of CMX: weights of at most this stay there for at least so many readers; chosen by trials
FILL = 0.9  # of CMX that one operation should need, what lives there included; the rest is room for gaps
CHANNELS_LAST: Order = (0, 2, 3, 1)
_CHANNELS_LAST_OPS = frozenset({"Conv", "ConvInteger", "MaxPool", "AvgPool"})
_LAYOUT_NEUTRAL_OPS = frozenset({"Elementwise", "Concat", "Pad", "Slice"})
_SECTIONS = {DdrKind.WEIGHTS: ".data.weights", DdrKind.SCRATCH: ".bss.scratch"}


class Builder:
    """Homes of values and the list of operations, for one graph on one profile."""

    def __init__(
        self,
        graph: Graph,
        profile: Profile,
        tile_bytes: int,
        pingpong: bool,
        tiles: int = 1,
        keeps_values: bool = True,
        grain: int = 1,
        shares_few: bool = True,
        fuses: bool = True,
    ) -> None:
        self.graph = graph
        self.profile = profile
        self.tiles = tiles
        self.tile_bytes = tile_bytes  # of CMX in each tile
        self.cmx_bytes = tile_bytes * tiles
        self.pingpong = pingpong
        self.grain = grain  # tasks of a layer for each unit of its engine, where that costs little: others can start on the first
        self.shares_few = shares_few  # elements, where each takes long: that costs start-ups, and ends sooner where nothing else waits
        self.fuses = fuses  # layers of the matrix engine, band by band
        self.leaves_few = False  # whether some are not shared for that
        self.keeps_values = keeps_values  # in CMX from one operation to the next, where there is room
        self.ops: list[TileOp] = []
        self.ddr: list[DdrTensor] = []
        self._transposed: dict[Value, View] = {}
        self.weights: dict[Hashable, ConstantWeights] = {}  # of nodes that have the same
        self.task_cycles: dict[Hashable, list[int]] = {}  # of the matrix engine, by all that they depend on
        self.constants: list[tuple[int, Callable[[], bytes]]] = []  # empty in a plan
        self.weight_bytes = 0
        self.macs = 0
        self.homes: dict[Value, View] = {}
        self.deferred: dict[Value, Node] = {}  # whose reader makes pieces of them, by the node that does it
        self._outputs = set(graph.outputs)
        self._written_outputs: set[Value] = set()
        self._inside: dict[Value, tuple[Value, int, int]] = {}  # value -> (concatenation it is part of, axis, start)
        self._consumers: dict[Value, list[tuple[Node, int]]] = {}
        self._done: set[Node] = set()
        self._resident: dict[Value, None] = {}  # values that live in CMX and are still needed
        self._evicted: dict[Buffer, DdrTensor] = {}  # where what lived in a buffer is now
        for node in graph.nodes:
            for index, value in enumerate(node.inputs):
                if value is not None:
                    self._consumers.setdefault(value, []).append((node, index))
        self._channels_last: set[Value] = set()
        for node in reversed(graph.nodes):
            self._channels_last.update(filter(self._is_read_channels_last, node.outputs))
        self._channels_last.update(filter(self._is_read_channels_last, graph.inputs))
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        self._makers = {value: node for node in graph.nodes for value in node.outputs}
        self._operand_bytes = [self._residents(node) for node in graph.nodes]
        for value in graph.inputs:
            tensor = DdrTensor(value.name, value.nbytes, DdrKind.INPUT, symbol=f"in:{value.name}")
            self.ddr.append(tensor)
            self.homes[value] = dense(tensor, value.shape, value.dtype)

    @property
    def shaves(self) -> int:
        """SHAVEs that can work at once."""
        return self.tiles * self.profile.shaves_per_tile

    # ---- homes ------------------------------------------------------------------------------------

    def home(self, value: Value) -> View:
        """Return where a value is; a constant enters the weights section, row-major, on first use."""
        if value not in self.homes:
            if value.const is None:
                raise AssertionError(f"{value.name} is used before it is produced")
            self.homes[value] = self.constant(value.const, value.name, value.dtype)
        return self.homes[value]

    def place(self, value: Value, order: Order | None = None) -> View:
        """Give `value` a home, in `order` where the choice is free, and return it. Called by its producer."""
        if value in self.homes:
            return self.homes[value]
        if value in self._outputs:
            tensor = DdrTensor(value.name, value.nbytes, DdrKind.OUTPUT, symbol=f"out:{value.name}")
            self.ddr.append(tensor)
            self._written_outputs.add(value)
            view = dense(tensor, value.shape, value.dtype)
        elif value in self._inside:
            whole, axis, start = self._inside[value]
            starts = [start if k == axis else 0 for k in range(len(value.shape))]
            view = self.place(whole, order).sliced(starts, value.shape)
        elif self._waits(value):
            view = self._scratch(value.name, value.shape, value.dtype, order)
        else:
            view = self.storage(value.name, value.shape, value.dtype, order)
        self._settle(value, view)
        return view

    def chooses_order(self, value: Value) -> bool:
        """Whether the producer of `value` says in which order it lies."""
        return value not in self.homes and value not in self._outputs and value not in self._inside

    def _settle(self, value: Value, view: View) -> None:
        self.homes[value] = view
        if view.in_cmx:
            self._resident[value] = None

    def _residents(self, node: Node) -> int:
        """Return the bytes of a node's operands that may live in CMX."""
        values = {v for v in (*node.inputs, *node.outputs) if v is not None and v.const is None}
        return sum(value.nbytes for value in values if value.nbytes <= self.cmx_bytes * LARGE)

    def place_over(self, value: Value, other: Value) -> View | None:
        """Give `value` the home of `other`, when that is in CMX and nothing but the producer of `value` still needs it."""
        home = self.homes[other]
        if (
            value in self._outputs
            or value in self._inside
            or value in self.homes
            or not isinstance(home.target, Buffer)
        ):
            return None
        if home.shape != value.shape or home.dtype != value.dtype or home.nbytes != home.target.size_bytes:
            return None
        if any(self._needed(v, value) for v in self._resident if self.homes[v].target is home.target):
            return None
        self._settle(value, home)
        return home

    def _needed(self, value: Value, but_for: Value | None = None) -> bool:
        """Whether a node that is not done, other than the producer of `but_for`, reads `value`; or the graph returns it."""
        return (value in self._outputs and value not in self._written_outputs) or any(
            node not in self._done and but_for not in node.outputs for node, _ in self._consumers.get(value, ())
        )

    def only_consumer(self, value: Value) -> Node | None:
        """Return the node that alone reads `value`, once, when its producer may leave it to that node where the value is."""
        readers = self._consumers.get(value, ())
        free = value not in self._outputs and value not in self._inside and value not in self.homes
        return readers[0][0] if free and len(readers) == 1 else None

    def readers(self, value: Value) -> list[Node]:
        """Return the nodes that read `value` and are not done."""
        return [node for node, _ in self._consumers.get(value, ()) if node not in self._done]

    def may_be_followed(self, node: Node) -> bool:
        """Whether what is computed element by element from the result of `node` has its other operands already."""
        value = node.outputs[0]
        others = [v for reader in self.readers(value) if reader.op == "Elementwise" for v in reader.inputs]
        return all(v is None or v is value or v.const is not None or v in self.homes for v in others)

    def reads_alone(self, node: Node, value: Value) -> bool:
        """Whether nothing but `node`, once, reads `value`."""
        if value in self._outputs or value in self._inside:
            return False
        return [reader for reader, _ in self._consumers.get(value, ())] == [node]

    def is_done(self, node: Node) -> bool:
        """Whether the operations of `node` have been appended."""
        return node in self._done

    def done(self, node: Node) -> None:
        """Note that all operations of `node` have been appended."""
        self._done.add(node)
        for value in [v for v in node.inputs if v in self._resident]:
            if value is not None and not self._needed(value):
                self._resident.pop(value, None)

    def _live(self) -> dict[Buffer, None]:
        """Return the buffers in which values live that are still needed."""
        targets = (self.homes[value].target for value in self._resident)
        return {target: None for target in targets if isinstance(target, Buffer)}

    def bind(self, value: Value, view: View, node: Node) -> None:
        """Make `value` a view of bytes that exist; copied when its home is decided already (outputs, concatenations)."""
        if value in self._outputs or value in self._inside:
            self.copy(self.place(value, view.order()), view, node, "copy")
        else:
            self._settle(value, replace(view, dtype=value.dtype))

    def set_inside(self, value: Value, whole: Value, axis: int, start: int) -> bool:
        """Let the producer of `value` write straight into the concatenation `whole`; False when it cannot."""
        if value in self._outputs or value in self._inside or value.const is not None or value in self.homes:
            return False
        self._inside[value] = (whole, axis, start)
        return True

    def is_inside(self, value: Value) -> bool:
        """Whether the producer of `value` writes straight into a concatenation."""
        return value in self._inside

    def storage(self, name: str, shape: Sequence[int], dtype: np.dtype[Any], order: Order | None = None) -> View:
        """Return a fresh dense home: CMX when it is small or there is much left, else DDR scratch."""
        size = prod(shape) * dtype.itemsize
        if self.stays_in_cmx(size):
            return dense(Buffer(name, size), shape, dtype, order)
        return self._scratch(name, shape, dtype, order)

    def _scratch(self, name: str, shape: Sequence[int], dtype: np.dtype[Any], order: Order | None) -> View:
        tensor = DdrTensor(name, prod(shape) * dtype.itemsize, DdrKind.SCRATCH, symbol=_SECTIONS[DdrKind.SCRATCH])
        self.ddr.append(tensor)
        return dense(tensor, shape, dtype, order)

    def _waits(self, value: Value) -> bool:
        """Whether nothing reads `value` for long, and the nodes until then would fill CMX with it, their operands being in all tiles."""
        size = value.nbytes
        if size < self.cmx_bytes * WAITING:
            return False
        first = min((self._places[node] for node, _ in self._consumers.get(value, ())), default=0)
        between = self._operand_bytes[self._places[self._makers[value]] + 1 : first]
        return len(between) >= LONG and max(between) * self.tiles + size > self.cmx_bytes * CROWDED

    def stays_in_cmx(self, size: int) -> bool:
        """Whether a value of `size` bytes lives in CMX if it gets its home now."""
        crowded = _total(self._live()) + size > self.cmx_bytes * CROWDED
        small = min(self.cmx_bytes * SMALL, self.tile_bytes // 2 // ALIGNMENT * ALIGNMENT)
        return self.keeps_values and size <= (small if crowded else min(self.cmx_bytes * LARGE, self.tile_bytes * FILL))

    def constant(self, array: NDArray[Any], name: str, dtype: np.dtype[Any] | None = None) -> View:
        """Append an array to the weights section and return its row-major view."""
        kind = array.dtype if dtype is None else dtype
        content = partial(_content, array, kind)
        return dense(self.constant_bytes(array.size * kind.itemsize, name, content), array.shape, kind)

    def constant_bytes(self, size: int, name: str, content: Callable[[], bytes]) -> DdrTensor:
        """Append `size` bytes to the weights section, made when the program is emitted."""
        offset = aligned(self.weight_bytes)
        if not self.graph.is_plan:
            self.constants.append((offset, content))
        self.weight_bytes = offset + size
        tensor = DdrTensor(name, size, DdrKind.WEIGHTS, offset, _SECTIONS[DdrKind.WEIGHTS])
        self.ddr.append(tensor)
        return tensor

    def stays(self, value: Value) -> bool:
        """Whether a constant is small, and has several readers, or many, as the weights of a recurrence have, so that it should
        stay in CMX between them.
        """
        readers = len(self._consumers.get(value, ()))
        limit = self.cmx_bytes * RECURRENT if readers >= MANY else self.tile_bytes * SMALL
        return readers > 1 and value.nbytes <= limit

    def is_quantised(self, value: Value) -> bool:
        """Whether the int8 elements of `value` stand for other numbers, so that the matrix engine may work on them."""
        return self.graph.is_quantised(value)

    def wants_channels_last(self, value: Value) -> bool:
        """Whether a matrix-engine consumer, possibly behind element-wise ones, reads `value` as [H][W][C]."""
        return value in self._channels_last or (value.const is not None and self._is_read_channels_last(value))

    def _is_read_channels_last(self, value: Value) -> bool:
        return len(value.shape) == 4 and any(
            (node.op in _CHANNELS_LAST_OPS and index == 0)
            or (
                node.op in _LAYOUT_NEUTRAL_OPS
                and node.outputs[0].shape[1:2] == value.shape[1:2]
                and node.outputs[0] in self._channels_last
            )
            for node, index in self._consumers.get(value, [])
        )

    def order_for(self, value: Value, view: View) -> Order:
        """Return the physical order for an output that is computed from `view` of the same rank."""
        order = view.order()
        if order == tuple(range(4)) and self.wants_channels_last(value):
            return CHANNELS_LAST
        return order

    def right_matrix_order(self, value: Value) -> Order | None:
        """Return the order in which the matrix engine takes `value` when that alone reads it, as a right matrix; else None."""
        node, rank = self.only_consumer(value), len(value.shape)
        if node is None or node.op != "MatMul" or node.inputs[1] is not value or rank < 2:
            return None
        return (*range(rank - 2), rank - 1, rank - 2)

    # ---- room -------------------------------------------------------------------------------------

    def rooms(self, views: Sequence[View], without: Sequence[View] = ()) -> tuple[int, int, int]:
        """Return the bytes that tile buffers should take beside all that lives in CMX, may take beside `views`, and one task can.

        `without`: homes that will not be used.

        What a task streams fits beside what it finds in CMX, in the tile that has most left of it: tasks can always be placed.
        """
        own = {view.target: None for view in views if isinstance(view.target, Buffer)}
        fill = int(self.cmx_bytes * FILL)
        left = [self.tile_bytes // ALIGNMENT * ALIGNMENT] * self.tiles
        for size in sorted((aligned(buffer.size_bytes) for buffer in own), reverse=True):
            tile = next((k for k, room in enumerate(left) if room >= size), 0)
            left[tile] -= size
        one = max(left) if min(left) >= 0 else 0
        unused = {view.target for view in without}
        live = [buffer for buffer in own | self._live() if buffer not in unused]
        return max(0, fill - _total(live)), max(0, fill - _total(own)), one

    def cannot_be_everywhere(self, view: View) -> bool:
        """Whether a home is too large for a copy in each tile, so that DPUs of other tiles would read it from far."""
        return self.tiles > 1 and view.nbytes * self.tiles > self.cmx_bytes * ROOM

    def relieve(self, values: Sequence[Value], reserve_bytes: int, node: Node) -> None:
        """Move resident operands of `node` to DDR, the largest first, until `reserve_bytes` fit beside them, and as many of
        them as half a tile has in one tile.
        """
        while True:
            homes = [self.home(v) for v in values]
            resident = [home.target for home in homes if isinstance(home.target, Buffer)]
            _, room, one = self.rooms(homes)
            if not resident or (room >= reserve_bytes and one >= min(reserve_bytes, self.tile_bytes // 2)):
                return
            self.evict(max(resident, key=lambda b: b.size_bytes), node)

    def evict(self, buffer: Buffer, node: Node) -> None:
        """Move what lives in `buffer` to DDR."""
        tensor = DdrTensor(buffer.name, buffer.size_bytes, DdrKind.SCRATCH, symbol=_SECTIONS[DdrKind.SCRATCH])
        self.ddr.append(tensor)
        if any(access.target is buffer for op in self.ops for access in op.writes):
            byte = np.dtype(np.uint8)
            shape = (buffer.size_bytes,)
            self.copy(dense(tensor, shape, byte), dense(buffer, shape, byte), node, "evict")
        for value, view in self.homes.items():
            if view.target is buffer:
                self.homes[value] = replace(view, target=tensor)
                self._resident.pop(value, None)
        self._evicted[buffer] = tensor

    def current(self, view: View) -> View:
        """Return a view that was taken before: what it shows may have been moved to DDR since."""
        tensor = self._evicted.get(view.target) if isinstance(view.target, Buffer) else None
        return view if tensor is None else replace(view, target=tensor)

    def expect_ops(self, node: Node, count: int) -> None:
        """Raise CompileError, naming the node, when `count` more operations are more than a program may hold."""
        if len(self.ops) + count > MAX_OPS:
            raise CompileError(
                f"{node.name} ({node.op}): output {node.outputs[0].shape} brings the program to "
                f"{len(self.ops) + count} tasks or more, at most {MAX_OPS} are compiled"
            )

    # ---- operations -------------------------------------------------------------------------------

    def copy(self, dst: View, src: View, node: Node, what: str) -> None:
        """Append what copies `src` to `dst`: DMAs, or SHAVE tasks where those would move single elements."""
        if relayout(self, dst, src, node):
            return
        for payload, read, written in copies(dst, src):
            self._append(node, what, Engine.DMA, [read], [written], payload)

    def fetch(self, box: View, order: Order, node: Node, what: str) -> View:
        """Bring a box into a fresh CMX buffer, dense in `order`; repeated axes stay repeated."""
        once = tuple(1 if s == 0 else n for n, s in zip(box.shape, box.strides, strict=True))
        return self.fetch_dense(replace(box, shape=once), order, node, what).broadcast(box.shape)

    def fetch_dense(self, box: View, order: Order, node: Node, what: str) -> View:
        """As `fetch`, for readers to whom no two elements may share a byte: repeated axes are written out."""
        tile = dense(Buffer(f"{node.name}.{what}.{len(self.ops)}", box.nbytes), box.shape, box.dtype, order)
        self.copy(tile, box, node, f"load {what}")
        return tile

    def scratch_tile(self, box: View, order: Order, node: Node) -> View:
        """Return a fresh CMX buffer for a box of an output, dense in `order`."""
        return dense(Buffer(f"{node.name}.out.{len(self.ops)}", box.nbytes), box.shape, box.dtype, order)

    def flush(self, box: View, tile: View, node: Node) -> None:
        """Write a tile back to its box of the home."""
        self.copy(box, tile, node, "store")

    def dense_home(self, view: View, order: Order, node: Node) -> View:
        """Return a copy of `view` that is dense in `order`."""
        home = self.storage(f"{node.name}.relayout.{len(self.ops)}", view.shape, view.dtype, order)
        self.copy(home, view, node, "relayout")
        return home

    def transposed_matrices(self, value: Value, node: Node) -> View:
        """Return a copy of `value` whose last two axes have changed places in memory; the same one to all that ask for it."""
        if value not in self._transposed:
            view, rank = self.home(value), len(value.shape)
            self._transposed[value] = self.dense_home(view, (*range(rank - 2), rank - 1, rank - 2), node)
        return self._transposed[value]

    def dpu(self, node: Node, payload: DpuPayload, reads: list[Access], writes: list[Access]) -> None:
        """Append a matrix-engine task."""
        self._append(node, node.op, Engine.DPU, reads, writes, payload)

    def shave(self, node: Node, payload: ShavePayload, reads: list[Access], writes: list[Access], cost: int) -> None:
        """Append a vector-core task of `cost` cycles."""
        self._append(node, node.op, Engine.SHAVE, reads, writes, payload)
        self.ops[-1].cost_ps = _ps(cost, self.profile.shave.clock_hz)

    def _append(
        self,
        node: Node,
        what: str,
        engine: Engine,
        reads: list[Access],
        writes: list[Access],
        payload: DmaPayload | DpuPayload | ShavePayload,
    ) -> None:
        self.expect_ops(node, 1)
        layer = node.layers[0] if node.layers else node.name
        name = f"{node.name}.{what}.{len(self.ops)}".replace(" ", ".")
        self.ops.append(TileOp(name, layer, engine, 0, reads, writes, payload, {"what": what, "node": node.name}))

    def finish(self) -> TileProgram:
        """Copy outputs that no node wrote, predict costs, and return the program."""
        for value in self.graph.outputs:
            if value not in self._written_outputs:
                source = self.home(value)
                del self.homes[value]
                self.copy(self.place(value), source, _identity(value), "copy")
        self._cost_dma()
        self._cost_dpu()
        used = {access.target for op in self.ops for access in (*op.reads, *op.writes)}
        ddr = [tensor for tensor in self.ddr if tensor.kind != DdrKind.SCRATCH or tensor in used]
        program = TileProgram(
            self.graph.name, self.ops, ddr, self.constants, self.macs, self.weight_bytes, self.leaves_few
        )
        mirror(program, self.profile, self.tiles, self.tile_bytes)
        return program

    def _cost_dma(self) -> None:
        ops = [op for op in self.ops if isinstance(op.payload, DmaPayload)]
        records = dma_records([op.payload for op in ops if isinstance(op.payload, DmaPayload)])
        costs = (of(self.profile, records).tolist() for of in (cycles.dma_alone_ps, cycles.dma_path_ps))
        for op, cost_ps, path_ps in zip(ops, *costs, strict=True):
            op.cost_ps, op.path_ps = cost_ps, path_ps

    def _cost_dpu(self) -> None:
        ops = [op for op in self.ops if isinstance(op.payload, DpuPayload)]
        if not ops:
            return
        self._keep_rows([op.payload for op in ops if isinstance(op.payload, DpuPayload)])
        invariants, parts = dpu_records([op.payload for op in ops if isinstance(op.payload, DpuPayload)])
        grids = cycles.fastest_grids(self.profile, invariants, parts)
        invariants["mpe_grid"] = grids
        for op, grid in zip(ops, grids.tolist(), strict=True):
            if isinstance(op.payload, DpuPayload):
                op.payload.invariant["mpe_grid"] = grid
        columns = []
        for mask in range(2 * max(FAR.values()) if self.tiles > 1 else 1):
            moved = invariants.copy()
            for name, bit in FAR.items():
                moved[name][(moved[name] != 0) & bool(mask & bit)] += C.NPU_CMX_TILE_STRIDE
            counts = cycles.dpu_cycles(self.profile, moved, parts).tolist()
            columns.append([_ps(count, self.profile.dpu.clock_hz) for count in counts])
        for op, costs in zip(ops, zip(*columns, strict=True), strict=True):
            op.cost_ps, op.far_ps = costs[0], costs if self.tiles > 1 else ()

    def _keep_rows(self, payloads: list[DpuPayload]) -> None:
        """Give tasks workloads of few channels where the engine keeps rows of their kernels, and is done earlier for that."""
        own, cut = [], []
        for payload in payloads:
            fields, whole = payload.invariant, payload.variants[0]
            steps = variant_channels(fields, self.profile.dpu)
            if len(steps) > 1 and fields["out_z"] > min(steps):
                shape = fields["out_y"], fields["out_x"], fields["out_z"]
                pads = {name: whole[name] for name in ("pad_left", "pad_right", "pad_top", "pad_bottom")}
                own.append(payload)
                cut.append(replace(payload, variants=list(variants(shape, pads, min(steps)))))
        if own:
            counts = []
            for some in (own, cut):
                records = dpu_records(some)
                records[0]["mpe_grid"] = cycles.fastest_grids(self.profile, *records)
                counts.append(cycles.dpu_cycles(self.profile, *records))
            for payload, other, gains in zip(own, cut, (counts[1] < counts[0]).tolist(), strict=True):
                payload.variants = other.variants if gains else payload.variants


def _content(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()


def _identity(value: Value) -> Node:
    from libnpu.compiler.ir import Node

    return Node("Reshape", f"output {value.name}", [value], [value])


def _total(buffers: Iterable[Buffer]) -> int:
    return sum(aligned(buffer.size_bytes) for buffer in buffers)


def _ps(count: int, clock_hz: int) -> int:
    return -(-int(count) * 10**12 // clock_hz)
