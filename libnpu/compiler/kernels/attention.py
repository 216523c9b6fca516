"""Attention kernels: the step of a tile chain, whose products the matrix engine computes, and a whole attention of single queries.

Both keep for each query row the largest score so far, the sum of exponentials below it and the weighted sum of values (the
running maximum, sum and output of online softmax), so that no row of scores is needed as a whole. Scores pass through an
expression of `ir.EXPR_OPS`: input 0 is the scaled score, the others are masks and biases, read where they are needed.
A row whose scores are all -inf ends as 0 / 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from npu_model import dtypes
from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.ir import Expr
from libnpu.compiler.kernels.builder import ARGS, Builder, is_float, memory_type, store
from libnpu.compiler.kernels.expression import Lowering, float_text, last_uses, normalise
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported

LOWEST = float_text(-3.4028234663852886e38)  # of the running maximum: below it the difference of two -inf would be NaN


def flash_sdpa(
    expr: Expr, mask_dtypes: tuple[int, ...], weight_dtype: int, first: bool, has_product: bool, has_output: bool
) -> Program:
    """Return the step of a tile chain over scores [rows, cols], fp32.

    Operands: scores, masks [rows, cols] each, exponentials [rows, cols] of `weight_dtype` (written), running maximum and sum
    [rows] fp32 (written, read unless `first`), and with `has_product` the product [rows, dv] fp32 of the step before and the
    running output [rows, dv] fp32, which becomes (output + product) scaled to the new maximum; it is read if `has_output`.
    """
    return _flash_sdpa(normalise(expr), tuple(mask_dtypes), weight_dtype, first, has_product, has_output)


def incremental_sdpa(
    expr: Expr,
    mask_dtypes: tuple[int, ...],
    scale: float,
    value_dtypes: tuple[int, int, int],
    parts: int,
    first: bool,
    last: bool,
    heads: bool = False,
) -> Program:
    """Return attention of single queries over `parts` runs of keys and values, in fp32 throughout.

    Operands: queries [rows, d], for each part keys [n, d], values [n, dv] and masks [rows, n], then, unless it is both the
    `first` and the `last` of a chain, running maximum and sum [rows] and output [rows, dv], all fp32, and with `last` the
    result [rows, dv]. `value_dtypes` are those of queries, of keys and values, and of the result. With `heads` each row has
    keys and values of its own: [rows, n, d] and [rows, n, dv].
    """
    return _incremental_sdpa(normalise(expr), tuple(mask_dtypes), float(scale), value_dtypes, parts, first, last, heads)


def _scores(b: Builder, expr: Expr, mask_dtypes: tuple[int, ...]) -> Lowering:
    lowering = Lowering(expr, (dtypes.F32, *mask_dtypes), dtypes.F32)
    if not lowering.result.is_float:
        raise Unsupported(f"{b.name}: scores that are integers")
    return lowering


def _apply(b: Builder, lowering: Lowering, score: str, load: _Load, temporary: str) -> str:
    """Emit the expression of the scores in register `score`; return the register of its result. Others are free behind it."""
    steps, result = lowering.steps, lowering.result
    last = last_uses(steps, result.step)
    where: dict[int, str] = {}
    for index, step in enumerate(steps):
        if step.mnemonic == "load" and step.operand == 0:
            where[index] = score
            continue
        sources = [where[source] for source in step.sources]
        for source in dict.fromkeys(step.sources):
            if last[source] == index:
                b.free(where.pop(source))
        target = where[index] = b.vreg("the expression of the scores")
        if step.mnemonic == "load":
            load(step.operand - 1, target)
        elif step.scalar is None:
            b.emit(step.mnemonic, target, *sources)
        else:
            scalar = "f1" if step.scalar_float else temporary
            b.emit("fli" if step.scalar_float else "li", scalar, step.scalar)
            b.emit(step.mnemonic, target, *sources, scalar)
        if last[index] == index:
            b.free(where.pop(index))
    return where[result.step]


class _Load:
    """Loads a mask: its address is that of the row, `row` rows and `col` columns into the operand; columns lie along the tile's `axis`."""

    def __init__(
        self, b: Builder, mask_dtypes: tuple[int, ...], suffix: str, axis: int, row: str, col: str | None
    ) -> None:
        self.b, self.dtypes, self.suffix, self.axis = b, mask_dtypes, suffix, axis
        self.row, self.col = row, col
        self.address, self.step, self.other = b.reg(), b.reg(), b.reg()

    def __call__(self, index: int, target: str) -> None:
        b = self.b
        name = f"{index}{self.suffix}"
        b.arg(f"mask{name}", self.address)
        b.arg(f"mask_row{name}", self.step)
        b.advance(self.address, self.row, self.step, self.other)
        b.arg(f"mask_col{name}", self.other)
        if self.col is not None:
            b.emit("mul", self.step, self.col, self.other)
            b.emit("add", self.address, self.address, self.step)
        strides = (self.step, self.other) if self.axis == 1 else (self.other, "r0")
        if self.axis == 1:
            b.emit("ld.i64", self.step, ARGS, 8 * b.words[f"mask_row{name}"])
        b.emit(f"vld.{memory_type(self.dtypes[index])}", target, self.address, *strides, 0)

    def free(self) -> None:
        self.b.free(self.address, self.step, self.other)


@lru_cache(maxsize=256)
def _flash_sdpa(
    expr: Expr, mask_dtypes: tuple[int, ...], weight_dtype: int, first: bool, has_product: bool, has_output: bool
) -> Program:
    masks = [word for k in range(len(mask_dtypes)) for word in (f"mask{k}", f"mask_row{k}", f"mask_col{k}")]
    outputs = ["product", "product_row", "output", "output_row"] if has_product else []
    words = ["rows", "cols", "dv", "step", "scores", "score_row", "weights", "weight_row", "most", "total", *outputs]
    b = Builder("flash_sdpa", [*words, *masks])
    lowering = _scores(b, expr, mask_dtypes)
    rows, cols, dv, step, scores, score_row, weights, weight_row, most, total = b.args(*words[:10])
    done = b.args(*outputs) if outputs else []
    row, count, at, t = (b.reg() for _ in range(4))
    load = _Load(b, mask_dtypes, "", 1, row, None)
    size, four = b.reg(), b.reg()
    b.emit("li", size, dtypes.size_bytes(weight_dtype))
    b.emit("li", four, 4)
    f32 = dtypes.F32

    def place(base: str, stride: str) -> str:
        b.emit("mov", at, base)
        b.advance(at, row, stride, t)
        return at

    with b.loop(row, rows, step):
        b.rest(count, rows, row, step)
        b.emit("setvl", count, cols)
        score = b.vreg()
        b.emit("vld.f32", score, place(scores, score_row), score_row, four, 0)
        score = _apply(b, lowering, score, load, t)
        largest, before = b.vreg(), b.vreg()
        b.emit("fli", "f1", LOWEST)
        b.emit("vrmax.f32.col", largest, score)
        b.emit("vmax.f32.s", largest, largest, "f1")
        place(most, four)
        if not first:
            b.emit("vld.f32.col", before, at, four, four, 0)
            b.emit("vmax.f32", largest, largest, before)
        b.emit("vst.f32.col", largest, at, four, four, 0)
        b.emit("vsub.f32", score, score, largest)
        b.emit(f"vexp.{'f16' if weight_dtype == dtypes.F16 else 'f32'}", score, score)
        sums = b.vreg()
        b.emit("vrsum.f32.col", sums, score)
        store(b, score, True, weight_dtype, place(weights, weight_row), weight_row, size, "")
        place(total, four)
        if not first:
            b.emit("vsub.f32", before, before, largest)
            b.emit("vexp.f32", before, before)
            b.emit("vld.f32.col", largest, at, four, four, 0)
            b.emit("vmul.f32", largest, largest, before)
            b.emit("vadd.f32", sums, sums, largest)
        b.emit("vst.f32.col", sums, at, four, four, 0)
        if has_product:
            product, product_row, output, output_row = done
            b.emit("setvl", count, dv)
            b.emit("vld.f32", score, place(product, product_row), product_row, four, 0)
            place(output, output_row)
            if has_output:
                b.emit("vld.f32", sums, at, output_row, four, 0)
                b.emit("vadd.f32", score, score, sums)
            b.emit("vmul.f32", score, score, before)
            b.emit("vst.f32", score, at, output_row, four, 0)
    b_program = b

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        scores_in, rest = operands[0], list(operands[1:])
        mask_in, rest = rest[: len(mask_dtypes)], rest[len(mask_dtypes) :]
        weights_out, most_out, total_out, *outs = rest
        _expect(b_program, (scores_in, *mask_in, weights_out), (f32, *mask_dtypes, weight_dtype))
        _expect(b_program, (most_out, total_out, *outs), (f32,) * (2 + len(outs)))
        n, m = scores_in.dims
        wide = outs[0].dims[1] if outs else 1
        if max(m, wide) > VECTOR_CAPACITY:
            raise Unsupported(f"flash_sdpa: rows of {max(m, wide)} elements, at most {VECTOR_CAPACITY}")
        values = {"rows": n, "cols": m, "dv": wide, "step": min(n, VECTOR_CAPACITY // max(m, wide))}
        values |= {"score_row": scores_in.strides[0], "weight_row": weights_out.strides[0]}
        places = {"scores": scores_in, "weights": weights_out, "most": most_out, "total": total_out}
        for k, mask in enumerate(mask_in):
            places[f"mask{k}"] = mask
            values |= {f"mask_row{k}": mask.strides[0], f"mask_col{k}": mask.strides[1]}
        for name, out in zip(("product", "output"), outs, strict=bool(outs)):
            places[name] = out
            values[f"{name}_row"] = out.strides[0]
        return b_program.template(values, {word: operand.address_index for word, operand in places.items()})

    return b.program(pack)


@lru_cache(maxsize=256)
def _incremental_sdpa(
    expr: Expr,
    mask_dtypes: tuple[int, ...],
    scale: float,
    value_dtypes: tuple[int, int, int],
    parts: int,
    first: bool,
    last: bool,
    heads: bool,
) -> Program:
    query_dtype, kv_dtype, out_dtype = value_dtypes
    for dtype in value_dtypes:
        if not is_float(dtype):
            raise Unsupported(f"incremental_sdpa of {dtypes.name(dtype)}")
    chained = not (first and last)
    words = ["rows", "d", "dv", "queries", "query_row"]
    for p in range(parts):
        words += [f"{name}_{p}" for name in ("n", "step", "keys", "key_row", "values", "value_row")]
        words += [f"{name}{k}_{p}" for k in range(len(mask_dtypes)) for name in ("mask", "mask_row", "mask_col")]
        words += [f"key_head_{p}", f"value_head_{p}"] if heads else []
    words += ["most", "total", "output", "output_row"] if chained else []
    words += ["result", "result_row"] if last else []
    b = Builder("incremental_sdpa", words)
    lowering = _scores(b, expr, mask_dtypes)
    rows, d, dv, _, query_row = b.args(*words[:5])
    row, at, t, one, four = (b.reg() for _ in range(5))
    in_size, kv_size, out_size = b.reg(), b.reg(), b.reg()
    for register, dtype in zip((in_size, kv_size, out_size), value_dtypes, strict=True):
        b.emit("li", register, dtypes.size_bytes(dtype))
    b.emit("li", one, 1)
    b.emit("li", four, 4)
    query, most, total, output = (b.vreg() for _ in range(4))
    n, step, position, count, stride = (b.reg() for _ in range(5))

    def place(base: str, index: str, width: str) -> None:
        b.arg(base, at)
        b.advance(at, index, width, t)

    def place_in_head(what: str, p: int) -> None:
        """Point `at` to the keys or values of this step, whose rows are `stride` apart."""
        b.arg(f"{what}s_{p}", at)
        if heads:
            b.advance(at, row, b.arg(f"{what}_head_{p}", stride), t)
        b.advance(at, position, b.arg(f"{what}_row_{p}", stride), t)

    def state(mnemonic: str) -> None:
        b.emit("setvl", one, one)
        for word, register in (("most", most), ("total", total)):
            place(word, row, four)
            b.emit(f"{mnemonic}.f32", register, at, "r0", "r0", 0)
        b.emit("setvl", one, dv)
        place("output", row, b.arg("output_row", stride))
        b.emit(f"{mnemonic}.f32", output, at, stride, four, 0)

    def part(p: int) -> None:
        b.arg(f"n_{p}", n)
        b.arg(f"step_{p}", step)
        with b.loop(position, n, step):
            b.rest(count, n, position, step)
            b.emit("setvl", count, d)
            place_in_head("key", p)
            score = b.vreg()
            b.emit(f"vld.{memory_type(kv_dtype)}", score, at, stride, kv_size, 0)
            b.emit("vmul.f32", score, score, query)
            b.emit("vrsum.f32.col", score, score)
            b.emit("fli", "f1", float_text(scale))
            b.emit("vmul.f32.s", score, score, "f1")
            b.emit("setvl", count, one)
            load = _Load(b, mask_dtypes, f"_{p}", 0, row, position)
            score = _apply(b, lowering, score, load, t)
            load.free()
            largest, part_sum = b.vreg(), b.vreg()
            b.emit("vrmax.f32.row", largest, score)
            b.emit("vmax.f32", largest, largest, most)
            b.emit("vsub.f32", most, most, largest)
            b.emit("vexp.f32", most, most)  # the factor of all that came before
            b.emit("vsub.f32", score, score, largest)
            b.emit("vexp.f32", score, score)
            b.emit("vrsum.f32.row", part_sum, score)
            b.emit("vmul.f32", total, total, most)
            b.emit("vadd.f32", total, total, part_sum)
            b.emit("setvl", count, dv)
            place_in_head("value", p)
            b.emit(f"vld.{memory_type(kv_dtype)}", part_sum, at, stride, kv_size, 0)
            b.emit("vmul.f32", part_sum, part_sum, score)
            b.emit("vrsum.f32.row", part_sum, part_sum)
            b.emit("vmul.f32", output, output, most)
            b.emit("vadd.f32", output, output, part_sum)
            b.emit("vmov", most, largest)
            b.free(score, largest, part_sum)

    with b.loop(row, rows):
        b.emit("setvl", one, d)
        place("queries", row, query_row)
        b.emit(f"vld.{memory_type(query_dtype)}", query, at, query_row, in_size, 0)
        if first:
            for register, number in ((most, LOWEST), (total, "0x0"), (output, "0x0")):
                b.emit("fli", "f1", number)
                b.emit("vsplat.f32.s", register, "f1")
        else:
            state("vld")
        for p in range(parts):
            part(p)
        if last:
            b.emit("setvl", one, dv)
            b.emit("vdiv.f32", output, output, total)
            place("result", row, b.arg("result_row", stride))
            store(b, output, True, out_dtype, at, stride, out_size, "")
        else:
            state("vst")

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        queries_in, rest = operands[0], list(operands[1:])
        _expect(b, (queries_in,), (query_dtype,))
        count_d, places = queries_in.dims[1], {"queries": queries_in}
        values = {"rows": queries_in.dims[0], "d": count_d, "query_row": queries_in.strides[0]}
        for p in range(parts):
            keys, value, *masks = rest[: 2 + len(mask_dtypes)]
            rest = rest[2 + len(mask_dtypes) :]
            _expect(b, (keys, value, *masks), (kv_dtype, kv_dtype, *mask_dtypes))
            values["dv"] = value.dims[-1]
            wide = max(count_d, value.dims[-1])
            if wide > VECTOR_CAPACITY:
                raise Unsupported(f"incremental_sdpa: rows of {wide} elements, at most {VECTOR_CAPACITY}")
            values |= {f"n_{p}": keys.dims[-2], f"step_{p}": min(keys.dims[-2], VECTOR_CAPACITY // wide)}
            values |= {f"key_row_{p}": keys.strides[-2], f"value_row_{p}": value.strides[-2]}
            if heads:
                values |= {f"key_head_{p}": keys.strides[0], f"value_head_{p}": value.strides[0]}
            places |= {f"keys_{p}": keys, f"values_{p}": value}
            for k, mask in enumerate(masks):
                places[f"mask{k}_{p}"] = mask
                values |= {f"mask_row{k}_{p}": mask.strides[0], f"mask_col{k}_{p}": mask.strides[1]}
        if chained:
            running = dict(zip(("most", "total", "output"), rest[:3], strict=True))
            _expect(b, tuple(running.values()), (dtypes.F32,) * 3)
            places |= running
            values["output_row"] = running["output"].strides[0]
            rest = rest[3:]
        if last:
            (places["result"],) = rest
            _expect(b, rest, (out_dtype,))
            values["result_row"] = rest[0].strides[0]
        return b.template(values, {word: operand.address_index for word, operand in places.items()})

    return b.program(pack)


def _expect(b: Builder, operands: Sequence[Operand], wanted: tuple[int, ...]) -> None:
    if tuple(operand.dtype for operand in operands) != wanted:
        raise Unsupported(f"operands of {b.name} must have dtypes {wanted}")
