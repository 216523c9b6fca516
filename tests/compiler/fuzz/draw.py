"""Random models: grown node by node from values that are known, so that each operator gets operands that it takes.

A recipe of `recipes.py` draws operands and attributes of one operator; the oracle computes its outputs at once, and a node that it refuses, or
whose outputs leave the ranges below, is drawn again.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.compiler.fuzz.model import BFLOAT16, Model, Node, is_float
from tests.compiler.fuzz.oracle import Refused, evaluate

FLOATS = (*map(np.dtype, ("float32", "float16", "float64")), BFLOAT16)
INTEGERS = tuple(map(np.dtype, ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")))
BOOL = np.dtype(np.bool_)
TYPES = (*FLOATS, *INTEGERS, BOOL)
COMMON = (np.dtype(np.float32),) * 6 + FLOATS + INTEGERS[:4] + (BOOL,)
OPSETS = tuple(range(7, 25))
MAX_ELEMENTS = 6000  # of a value
MAX_FLOAT = (
    2000.0  # products of two such values are within float16's range less often than not; larger ones are drawn again
)
MAX_INTEGER = 2**31 - 1  # of int64, which has 32 bits inside; of uint64 twice that


class Reject(Exception):
    """What was drawn so far does not lead to a node."""


class Draw:
    """One model that grows. Recipes call what is below; all choices come from `rng`."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.model = Model(int(self.choice(OPSETS)))
        self.fresh = {}  # operands of the node that is being drawn: name -> (array, is a constant)
        self.count = 0

    @property
    def opset(self):
        return self.model.opset

    # Numbers

    def choice(self, items):
        return items[int(self.rng.integers(len(items)))]

    def chance(self, share):
        return self.rng.random() < share

    def whole(self, low, high):
        """Return an integer of low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    def number(self, low, high):
        return float(np.float32(self.rng.uniform(low, high)))

    def shape(self, rank=None, largest=17):
        """Return a shape, of which few sizes are 0 or large; of given rank or any up to 5."""
        rank = self.choice((0, 1, 2, 2, 3, 3, 4, 4, 5)) if rank is None else rank
        sizes = [d for d in (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17) if d <= largest]
        shape = [0 if self.chance(0.01) else self.choice(sizes) for _ in range(rank)]
        while np.prod(shape) > MAX_ELEMENTS // 4:
            shape[int(np.argmax(shape))] = 2
        return tuple(shape)

    def array(self, dtype, shape, low=None, high=None):
        """Return numbers of a type, in low..high if given; floats are often such that sums and halves are exact."""
        rng = self.rng
        if dtype == BOOL:
            return np.asarray(rng.random(shape) < 0.5)
        if is_float(dtype):
            span = float(self.choice((0.5, 1.0, 3.0)))
            array = rng.normal(0, span, shape)
            if low is not None or high is not None:
                low = -3 if low is None else max(low, -MAX_FLOAT)
                high = 3 if high is None else min(high, MAX_FLOAT)
                array = rng.uniform(low, high, shape)
            if self.chance(0.3):
                array = np.clip(np.round(array * 4) / 4, low, high) if low is not None else np.round(array * 4) / 4
            return np.asarray(array, dtype)
        limits = np.iinfo(dtype)
        small = max(limits.min, -9), 9
        wide = max(limits.min, -MAX_INTEGER - 1), min(limits.max, MAX_INTEGER)
        least, most = self.choice((small, small, wide))
        least, most = (
            least if low is None else max(int(low), limits.min),
            most if high is None else min(int(high), limits.max),
        )
        return np.asarray(rng.integers(min(least, most), most, shape, endpoint=True), dtype)

    # Operands

    def known(self, name):
        """Return the array of an operand."""
        return self.fresh[name][0] if name in self.fresh else self.model.values[name]

    def new(self, array, constant=None):
        """Return the name of a new constant or input with these numbers."""
        self.count += 1
        constant = self.chance(0.4) if constant is None else constant
        name = f"{'k' if constant else 'x'}{self.count}"
        self.fresh[name] = np.asarray(array), constant
        return name

    def constant(self, array, dtype=None):
        return self.new(np.asarray(array, dtype), True)

    def operand(self, dtypes, fits=lambda array: True, shape=None, low=None, high=None, constant=None, fresh=0.15):
        """Return a value of one of some types with a shape that `fits`, mostly one that was computed; else a new one of `shape`."""
        pool = {} if constant else self.model.values
        found = [
            name
            for name, array in pool.items()
            if array.dtype in dtypes
            and fits(array)
            and within(array, low, high)
            and (shape is None or array.shape == shape)
        ]
        if found and not self.chance(fresh):
            return found[max(self.whole(0, len(found) - 1), self.whole(0, len(found) - 1))]  # rather later ones
        for _ in range(20):
            dtype = self.choice([d for d in COMMON if d in dtypes] or list(dtypes))
            array = self.array(dtype, self.shape() if shape is None else shape, low, high)
            if fits(array):
                return self.new(array, constant)
        raise Reject

    def like(self, name, shape=None, low=None, high=None, constant=None):
        """Return another operand of the type of one."""
        return self.operand([self.known(name).dtype], shape=shape, low=low, high=high, constant=constant)

    def partner(self, name, dtypes=None, low=None, high=None, one_way=False):
        """Return an operand that broadcasts with one; with `one_way` to it."""
        shape = self.known(name).shape
        dtypes = [self.known(name).dtype] if dtypes is None else dtypes

        def fits(array):
            try:
                result = np.broadcast_shapes(array.shape, shape)
            except ValueError:
                return False
            return result == shape if one_way else np.prod(result) <= MAX_ELEMENTS

        kept = shape[self.whole(0, len(shape)) if self.chance(0.3) else 0 :]
        new = tuple(1 if self.chance(0.25) else size for size in kept)
        if not one_way and self.chance(0.1):
            new = (self.choice((1, 2, 3)), *shape)
        found = [n for n, a in self.model.values.items() if a.dtype in dtypes and fits(a) and within(a, low, high)]
        if found and self.chance(0.7):
            return self.choice(found)
        return self.operand(dtypes, fits, new, low, high, fresh=1.0)

    def axis(self, rank):
        """Return an axis, counted from either end."""
        if not rank:
            raise Reject
        return self.whole(-rank, rank - 1)

    def axes(self, rank, least=1):
        """Return some distinct axes, each counted from either end."""
        if rank < least:
            raise Reject
        taken = self.rng.permutation(rank)[: self.whole(least, rank)]
        return [int(axis) - rank * self.chance(0.4) for axis in taken]

    def turned(self, names):
        """Return operands in any order."""
        return [names[index] for index in self.rng.permutation(len(names))]

    # Schemas

    def schema(self, op):
        if not onnx.defs.has(op, self.opset, ""):
            raise Reject
        schema = onnx.defs.get_schema(op, self.opset, "")
        if schema.deprecated:
            raise Reject
        return schema

    def dtypes(self, op, index=0, among=TYPES):
        """Return the types that operand `index` may have."""
        allowed = self.schema(op).inputs[index].types
        kept = [
            d
            for d in among
            if f"tensor({helper.tensor_dtype_to_string(helper.np_dtype_to_tensor_dtype(d)).split('.')[-1].lower()})"
            in allowed
        ]
        if not kept:
            raise Reject
        return kept

    def has_input(self, op, name):
        return any(parameter.name == name for parameter in self.schema(op).inputs)

    def has_attribute(self, op, name):
        return name in self.schema(op).attributes

    def integers(self, op, name, values, attrs):
        """Give integers as what the opset has them, a constant input or an attribute; return the inputs to add."""
        if self.has_input(op, name):
            return [self.constant(values, np.int64)]
        attrs[name] = list(values)
        return []

    # Nodes

    def add(self, op, inputs, attrs, outputs=1, domain=""):
        """Append a node; raise Reject when the oracle refuses it or a result leaves the ranges."""
        if not domain:
            self.schema(op)
        names = tuple(f"v{self.count + 1 + i}" for i in range(outputs))
        self.count += outputs
        node = Node(op, tuple(inputs), names, attrs, domain)
        operands = [self.known(name) if name else None for name in inputs]
        try:
            results = evaluate(node, operands, self.opset)
        except Refused:
            raise Reject from None
        if not all(map(bearable, results)):
            raise Reject
        for name in inputs:
            if name in self.fresh:
                array, constant = self.fresh[name]
                (self.model.constants if constant else self.model.feeds)[name] = array
                self.model.values[name] = array
        self.model.values.update(zip(names, results, strict=True))
        self.model.nodes.append(node)


def within(array, low, high):
    """Whether all numbers are in low..high, of which each may be None."""
    return (low is None or not (array < low).any()) and (high is None or not (array > high).any())


def bearable(array):
    if array.size > MAX_ELEMENTS:
        return False
    if is_float(array.dtype):
        return bool(np.isfinite(array).all()) and float(np.abs(array.astype(np.float64)).max(initial=0)) <= MAX_FLOAT
    if array.dtype.name in ("int64", "uint64") and array.size:
        return int(array.min()) >= -MAX_INTEGER - 1 and int(array.max()) <= MAX_INTEGER * (
            1 + (array.dtype.kind == "u")
        )
    return True
