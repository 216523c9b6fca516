"""Vector-core operations as tasks: element-wise expressions, reductions, softmax, gather and arg-max, cut into boxes.

Tasks are cut along the outermost axis in memory, over CMX and over the SHAVEs of the tile; never along the axis that a
reduction or softmax works on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from npu_model import dtypes
from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.lower.boxes import PARALLEL_ELEMENTS, chunks, cuts_of_long_runs, each_box, in_place, tile_boxes
from libnpu.compiler.lower.errors import does_not_fit
from libnpu.compiler.lower.view import Order, View, merge_dims
from libnpu.compiler.program import ShavePayload
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from npu_model.profile import Profile

    from libnpu.compiler.ir import Node, Value
    from libnpu.compiler.lower.builder import Builder

_PAYS = 0.3  # of the start-up of a task that all its work has to take for it to be shared; chosen: who waits gains most of that
_SAMPLE = 1024  # elements
KERNEL_DIMS = 4  # axes that a kernel walks; more are separate tasks


def launch(
    builder: Builder, node: Node, program: kernels.Program, operands: Sequence[View], shapes: Sequence[tuple[int, ...]]
) -> None:
    """Append one task of `program`. `operands` are inputs in order, then the output; `shapes` are their axes as the kernel sees them."""
    described = [
        kernels.Operand(i, code_of_numpy(v.dtype), shape, v.strides)
        for i, (v, shape) in enumerate(zip(operands, shapes, strict=True))
    ]
    template = program.args(described)
    _append(builder, node, program, template, kernels.cost_cycles(program, template, builder.profile), operands)


def _append(
    builder: Builder,
    node: Node,
    program: kernels.Program,
    template: kernels.ArgsTemplate,
    cost: int,
    operands: Sequence[View],
) -> None:
    payload = ShavePayload(program.code, [v.ref for v in operands], template)
    reads = list({v.access(): None for v in operands[:-1]})
    builder.shave(node, payload, reads, [operands[-1].access()], cost)


def launch_element_by_element(
    builder: Builder, node: Node, programs: Sequence[kernels.Program], views: Sequence[View]
) -> None:
    """Append the tasks of one box: `views` are inputs in order, then the output, all of the shape that is walked.

    Of `programs`, which do the same, each task has the one that is fastest for it.
    """
    dims, steps = merge_dims(views[0].shape if views[:-1] else views[-1].shape, [v.strides for v in views])
    outer = max(0, len(dims) - KERNEL_DIMS)
    for index in product(*(range(n) for n in dims[:outer])):
        operands = [
            View(
                v.target,
                v.offset + sum(i * s for i, s in zip(index, step, strict=False)),
                tuple(dims[outer:]),
                tuple(step[outer:]),
                v.dtype,
            )
            for v, step in zip(views, steps, strict=True)
        ]
        cost, _, program, template = min(ways(builder.profile, programs, operands), key=lambda way: way[:2])
        _append(builder, node, program, template, cost, operands)


def ways(
    profile: Profile, programs: Sequence[kernels.Program], operands: Sequence[View]
) -> Iterator[tuple[int, int, kernels.Program, kernels.ArgsTemplate]]:
    """Yield (cycles, number, program, arguments) for each of `programs` that takes the operands; the first takes all."""
    described = [kernels.Operand(i, code_of_numpy(v.dtype), v.shape, v.strides) for i, v in enumerate(operands)]
    for number, program in enumerate(programs):
        try:
            template = program.args(described)
        except Unsupported:
            if not number:
                raise
            continue
        yield kernels.cost_cycles(program, template, profile), number, program, template


def lower_elementwise(builder: Builder, node: Node) -> None:
    """Append the tasks of an Elementwise node, whatever its expression.

    Where one input changes type, the program also changes the order of axes: DMA moves whole rows then, and a SHAVE is faster
    at single elements than a DMA port. Otherwise every operand is walked in its own order.
    """
    value = node.outputs[0]
    values = [v for v in node.inputs if v is not None]
    order, inputs, out = elementwise_operands(builder, node, values)
    expr, codes, code = node.attrs["expr"], tuple(code_of_numpy(v.dtype) for v in values), code_of_numpy(value.dtype)
    programs: Sequence[kernels.Program] = [kernels.elementwise(expr, codes, code)]
    if len(codes) == 1:
        programs = kernels.unary(expr, codes[0], code)

    def emit(tiles: list[View], tile: View) -> None:
        views = [t.broadcast(tile.shape).permuted(order) for t in tiles] + [tile.permuted(order)]
        launch_element_by_element(builder, node, programs, views)

    orders = [order] * (len(inputs) + 1)
    usable, axes, steps = [in_place(v, order) for v in inputs], list(order), None
    if len(inputs) == 1 and inputs[0].dtype != value.dtype and inputs[0].shape == value.shape:
        order = out.order()
        orders, usable = [inputs[0].order(), order], [inputs[0].in_cmx]
        axes, steps = cuts_of_long_runs(inputs[0], out)
    each = _cycles_of_one(programs[0], (*codes, code), builder.profile)
    parallel = _PAYS * builder.profile.shave.startup_cycles / each
    if not builder.shares_few:
        builder.leaves_few |= parallel <= prod(value.shape) < PARALLEL_ELEMENTS
        parallel = max(parallel, PARALLEL_ELEMENTS)
    tile_boxes(
        builder,
        node,
        inputs,
        out,
        value.shape,
        orders,
        axes,
        usable,
        builder.shaves,
        emit,
        parallel=parallel,
        steps=steps,
    )


def _cycles_of_one(program: kernels.Program, codes: Sequence[int], profile: Profile) -> float:
    """Return the cycles that one more element takes of dense operands."""
    counts = (_SAMPLE, 2 * _SAMPLE)
    few, many = (
        kernels.cost_cycles(
            program,
            program.args([kernels.Operand(k, c, (n,), (dtypes.size_bytes(c),)) for k, c in enumerate(codes)]),
            profile,
        )
        for n in counts
    )
    return max(many - few, 1) / _SAMPLE


def elementwise_operands(builder: Builder, node: Node, values: Sequence[Value]) -> tuple[Order, list[View], View]:
    """Return (walk order, inputs at the output's rank, output home) of an element-wise node.

    The order is that of the largest computed input; constants are stored in it.
    """
    value = node.outputs[0]
    rank = len(value.shape)
    builder.relieve(
        [v for v in values if v.const is None], min(value.nbytes, builder.cmx_bytes // 4) + builder.cmx_bytes // 8, node
    )
    homes = {v: _at_rank(builder.home(v), rank) for v in values if v.const is None}
    leaders = [v for v in homes if homes[v].shape == value.shape] or list(homes)
    order: Order = tuple(range(rank))
    if leaders:
        leader = max(leaders, key=lambda v: (homes[v].in_cmx, homes[v].nbytes))
        order = builder.order_for(value, homes[leader])
        if len(values) == 1 and leader.dtype != value.dtype and leader.shape == value.shape:
            order = builder.right_matrix_order(value) or order
    out = _over_operand(builder, value, order, homes) or builder.place(value, order)
    if out.in_cmx:
        order = out.order()
    inputs = [homes[v] if v.const is None else constant_in_order(builder, v, rank, order) for v in values]
    return order, inputs, out


def _over_operand(builder: Builder, value: Value, order: Order, homes: dict[Value, View]) -> View | None:
    """Give an element-wise `value` the home of an operand that nobody reads again; None where there is none that fits.

    Each task then writes the elements that it has read: no other operand may lie there.
    """
    for operand, view in homes.items():
        alone = all(other.target is not view.target for key, other in homes.items() if key is not operand)
        if alone and view.order() == order and in_place(view, order):
            found = builder.place_over(value, operand)
            if found is not None:
                return found
    return None


def constant_in_order(builder: Builder, value: Value, rank: int, order: Order) -> View:
    """Return a constant at `rank`, stored so that walking it in `order` is contiguous."""
    assert value.const is not None
    array = value.const.astype(value.dtype, copy=False).reshape((1,) * (rank - len(value.shape)) + value.shape)
    stored = builder.constant(array.transpose(order), value.name)
    return stored.permuted([order.index(k) for k in range(rank)])


def _at_rank(view: View, rank: int) -> View:
    extra = rank - len(view.shape)
    return replace(view, shape=(1,) * extra + view.shape, strides=(0,) * extra + view.strides)


Kernel = Callable[[int, int], kernels.Program]


def lower_reduce(builder: Builder, node: Node) -> None:
    """Append the tasks of a Reduce node."""
    kind = node.attrs["kind"]
    axes = tuple(node.attrs["axes"])
    _along(builder, node, axes, lambda i, o: kernels.reduce(kind, i, o), node.attrs["keepdims"], keeps=False)


def lower_argmax(builder: Builder, node: Node) -> None:
    """Append the tasks of an ArgMax node."""
    _along(builder, node, (node.attrs["axis"],), kernels.argmax, node.attrs["keepdims"], keeps=False)


def lower_softmax(builder: Builder, node: Node) -> None:
    """Append the tasks of a Softmax node."""
    log = bool(node.attrs["log"])
    _along(builder, node, (node.attrs["axis"],), lambda i, o: kernels.softmax(i, o, log), True, keeps=True)


def _along(builder: Builder, node: Node, axes: tuple[int, ...], kernel: Kernel, keepdims: bool, keeps: bool) -> None:
    """Append tasks of a kernel that works along `axes`: [outer, n, inner] to the same shape (`keeps`) or to [outer, inner]."""
    source, value = node.inputs[0], node.outputs[0]
    assert source is not None
    home = builder.home(source)
    order = builder.order_for(value, home) if keeps else home.order()
    if not _adjacent(order, axes):
        order = (*(k for k in order if k not in axes), *axes)
        home = builder.dense_home(home, order, node)
    out = builder.place(value, _without(order, axes) if not keepdims else order)
    if not keepdims:
        out = _with_ones(out, axes)
    first = min(order.index(k) for k in axes)
    groups = [order[:first], order[first : first + len(axes)], order[first + len(axes) :]]
    program = kernel(code_of_numpy(home.dtype), code_of_numpy(out.dtype))

    def emit(tiles: list[View], tile: View) -> None:
        _launch_along(builder, node, program, tiles[0], tile, groups, keeps)

    usable = in_place(home, order) and len(merge_dims(*_group(home, groups[1]))[0]) == 1
    free = [k for k in order if k not in axes]
    units = builder.shaves
    tile_boxes(builder, node, [home], out, home.shape, [order] * 2, free, [usable], units, emit)


def _launch_along(
    builder: Builder, node: Node, program: kernels.Program, tile: View, out: View, groups: Sequence[Order], keeps: bool
) -> None:
    """Append the task of one box, or several where its outer or inner axes do not merge into one: each has the longest outer one."""
    outer, outer_steps = _longest_last(*merge_dims(*_group(tile, groups[0], out)))
    inner, inner_steps = merge_dims(*_group(tile, groups[2], out))
    rows, row_steps = merge_dims(*_group(tile, groups[1], *([out] if keeps else [])))
    if len(rows) != 1:
        raise Unsupported(f"{node.name} ({node.op}): axes {groups[1]} are not one run of elements")
    n, step = rows[0], [s[0] for s in row_steps]
    for index in product(*(range(k) for k in (*outer[:-1], *inner[:-1]))):
        moved = []
        for side, view in enumerate((tile, out)):
            strides = (*outer_steps[side][:-1], *inner_steps[side][:-1])
            moved.append((view, view.offset + sum(i * s for i, s in zip(index, strides, strict=True))))
        shape = (outer[-1], n, inner[-1])
        source = View(tile.target, moved[0][1], shape, (outer_steps[0][-1], step[0], inner_steps[0][-1]), tile.dtype)
        if keeps:
            strides = (outer_steps[1][-1], step[1], inner_steps[1][-1])
            target = View(out.target, moved[1][1], shape, strides, out.dtype)
        else:
            strides = (outer_steps[1][-1], inner_steps[1][-1])
            target = View(out.target, moved[1][1], (outer[-1], inner[-1]), strides, out.dtype)
        launch(builder, node, program, [source, target], [source.shape, target.shape])


def _longest_last(dims: list[int], steps: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Return axes that may be walked in any order, and their steps, with the longest as the last."""
    order = sorted(range(len(dims)), key=lambda k: (dims[k], k))
    return [dims[k] for k in order], [[step[k] for k in order] for step in steps]


def _group(view: View, axes: Order, *others: View) -> tuple[list[int], list[list[int]]]:
    """Return what merge_dims wants for some axes of views of one shape."""
    return [view.shape[k] for k in axes], [[v.strides[k] for k in axes] for v in (view, *others)]


def _adjacent(order: Order, axes: Sequence[int]) -> bool:
    places = sorted(order.index(k) for k in axes)
    return places == list(range(places[0], places[0] + len(places)))


def _without(order: Order, axes: Sequence[int]) -> Order:
    """Return the order of the axes that remain, renumbered."""
    return tuple(k - sum(a < k for a in axes) for k in order if k not in axes)


def _with_ones(view: View, axes: Sequence[int]) -> View:
    """Put axes of one element back where a reduction removed them."""
    shape, strides = list(view.shape), list(view.strides)
    for axis in sorted(axes):
        shape.insert(axis, 1)
        strides.insert(axis, 0)
    return replace(view, shape=tuple(shape), strides=tuple(strides))


def lower_gather(builder: Builder, node: Node) -> None:
    """Append a Gather: from CMX, from DDR row by row where a constant table is more than what is taken of it, else piece by piece."""
    data_value, index_value = node.inputs
    value = node.outputs[0]
    assert data_value is not None and index_value is not None
    axis = node.attrs["axis"]
    data = _row_major(builder, builder.home(data_value), node)
    outer, n, inner = prod(data.shape[:axis]), data.shape[axis], prod(data.shape[axis + 1 :])
    count = prod(index_value.shape)
    index = _flat(_row_major(builder, builder.home(index_value), node), (1, count, 1))
    out = builder.place(value)
    flat = out.reshaped((outer, count, inner))
    target = flat or _flat(builder.storage(f"{node.name}.rows", value.shape, value.dtype), (outer, count, inner))
    table = _flat(data, (outer, n, inner))
    burst = builder.profile.memory_system.dram.access_bytes
    taken = outer * count * -(-inner * table.dtype.itemsize // burst) * burst
    if table.in_cmx or (data_value.const is not None and taken < table.nbytes):
        _gather(builder, node, table, index, target)
    else:
        piece = _table_piece(builder, node, table)
        for starts, sizes in each_box(table.shape, piece):
            part = builder.fetch(table.sliced(starts, sizes), (0, 1, 2), node, "table")
            place = target.sliced((starts[0], 0, starts[2]), (sizes[0], count, sizes[2]))
            _gather(builder, node, part, index, place)
    if flat is None:
        builder.copy(out, target_view(target, value), node, "store")


def _table_piece(builder: Builder, node: Node, table: View) -> list[int]:
    """Return the largest part of a table, of all its rows, that leaves half of the room in CMX to indices and results."""
    room = min(builder.rooms([])[1:]) // 2
    for pieces in range(1, table.shape[0] * table.shape[2] + 1):
        size = chunks(table.shape, (0, 2), pieces)
        if prod(size) * table.dtype.itemsize <= room:
            return size
    raise does_not_fit(f"{node.name} (Gather)", "one column of its table", table.shape[1] * table.dtype.itemsize, room)


def _gather(builder: Builder, node: Node, table: View, index: View, target: View) -> None:
    """Append the tasks that take rows of `table` [outer, n, inner] by `index` [1, count, 1] to `target` [outer, count, inner]."""
    program = kernels.gather(code_of_numpy(table.dtype), code_of_numpy(index.dtype))

    def emit(tiles: list[View], tile: View) -> None:
        piece = tiles[0]
        flat_index = View(piece.target, piece.offset, (piece.shape[1],), (piece.strides[1],), piece.dtype)
        launch(builder, node, program, [table, flat_index, tile], [table.shape, flat_index.shape, tile.shape])

    order = (0, 1, 2)
    beside = [table] if table.in_cmx else []
    usable = [in_place(index, order)]
    shape = target.shape
    tile_boxes(builder, node, [index], target, shape, [order] * 2, (1,), usable, builder.shaves, emit, beside)


def target_view(view: View, value: Value) -> View:
    """Return a dense flat view under the shape of `value`."""
    return _flat(view, value.shape)


def _flat(view: View, shape: tuple[int, ...]) -> View:
    found = view.reshaped(shape)
    assert found is not None
    return found


def _row_major(builder: Builder, view: View, node: Node) -> View:
    """Return `view`, or a row-major copy when its elements are in another order or not dense."""
    if view.reshaped((prod(view.shape),)) is not None:
        return view
    return builder.dense_home(view, tuple(range(len(view.shape))), node)
