"""Small graphs of every operator that the back end takes, and how to run their blobs."""

import functools

import numpy as np
import pytest

import libnpu
from libnpu.compiler import CompileOptions
from libnpu.compiler.ir import Ending, Graph, Node, Value
from libnpu.compiler.pipeline import compile_graph

F16, F32, I32 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.int32)


class Sketch:
    """A graph under construction; every method appends a node and returns its output value."""

    def __init__(self, dtype=F16, seed=0):
        self.dtype = np.dtype(dtype)
        self.inputs, self.nodes = [], []
        self.random = np.random.default_rng(seed)

    def input(self, *shape, dtype=None):
        self.inputs.append(Value(f"x{len(self.inputs)}", shape, np.dtype(dtype or self.dtype)))
        return self.inputs[-1]

    def const(self, *shape, dtype=None, data=None):
        data = self.random.standard_normal(shape) * 0.2 if data is None else np.asarray(data)
        dtype = np.dtype(dtype or self.dtype)
        return Value(f"k{len(self.nodes)}.{self.random.integers(10**9)}", data.shape, dtype, data.astype(dtype))

    def node(self, op, inputs, shape, dtype=None, **attrs):
        name = f"{op.lower()}{len(self.nodes)}"
        out = Value(f"{name}:0", tuple(shape), np.dtype(dtype or self.dtype))
        self.nodes.append(Node(op, name, list(inputs), [out], attrs))
        return out

    def conv(self, x, channels, kernel=3, stride=1, pad=1, group=1, dilation=1, bias=True, act=None):
        (ky, kx), (py, px) = [(k, k) if isinstance(k, int) else k for k in (kernel, pad)]
        n, c, h, w = x.shape
        size = [(s + 2 * p - (k - 1) * dilation - 1) // stride + 1 for s, k, p in ((h, ky, py), (w, kx, px))]
        inputs = [x, self.const(channels, c // group, ky, kx), self.const(channels, dtype=F32) if bias else None]
        attrs = {"strides": [stride] * 2, "pads": [py, px, py, px], "dilations": [dilation] * 2, "group": group}
        return self.node("Conv", inputs, (n, channels, *size), act=act, **attrs)

    def pool(self, op, x, kernel, stride=1, pad=0, **attrs):
        ky, kx = (kernel, kernel) if isinstance(kernel, int) else kernel
        sy, sx = (stride, stride) if isinstance(stride, int) else stride
        n, c, h, w = x.shape
        shape = (n, c, (h + 2 * pad - ky) // sy + 1, (w + 2 * pad - kx) // sx + 1)
        attrs |= {"dilations": [1, 1]} if op == "MaxPool" else {}
        return self.node(op, [x], shape, kernel=[ky, kx], strides=[sy, sx], pads=[pad] * 4, **attrs)

    def matmul(self, a, b, bias=None, act=None, scale=1.0):
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return self.node("MatMul", [a, b, bias], (*batch, a.shape[-2], b.shape[-1]), act=act, scale=scale)

    def map(self, expr, *inputs, dtype=None):
        return self.node("Elementwise", inputs, np.broadcast_shapes(*(v.shape for v in inputs)), dtype, expr=expr)

    def reshape(self, x, *shape):
        return self.node("Reshape", [x], shape, x.dtype)

    def transpose(self, x, *perm):
        return self.node("Transpose", [x], [x.shape[p] for p in perm], x.dtype, perm=list(perm))

    def slice(self, x, *parts):
        found = [p.indices(n) for p, n in zip(parts, x.shape, strict=True)]
        shape = [len(range(*part)) for part in found]
        starts, stops, steps = (list(column) for column in zip(*found, strict=True))
        return self.node("Slice", [x], shape, x.dtype, starts=starts, stops=stops, steps=steps)

    def concat(self, axis, *inputs):
        shape = list(inputs[0].shape)
        shape[axis] = sum(v.shape[axis] for v in inputs)
        return self.node("Concat", inputs, shape, inputs[0].dtype, axis=axis)

    def pad(self, x, *pads, value=0.0):
        return self.node("Pad", [x], [n + sum(p) for n, p in zip(x.shape, pads, strict=True)], pads=pads, value=value)

    def reduce(self, kind, x, *axes, keepdims=False):
        shape = [1 if k in axes else n for k, n in enumerate(x.shape) if keepdims or k not in axes]
        return self.node("Reduce", [x], shape, kind=kind, axes=list(axes), keepdims=keepdims)

    def graph(self, *outputs):
        return Graph("sketch", self.inputs, list(outputs), self.nodes)


def chain(s):
    """Convolutions whose tiles need halos, a depthwise one, and a residual sum."""
    x = s.input(1, 16, 40, 24)
    a = s.conv(s.conv(x, 64, act=("relu",)), 64)
    b = s.conv(s.conv(a, 64, group=64, stride=2), 96, kernel=1, pad=0, act=("clip", -0.5, 1.0))
    c = s.conv(b, 96, kernel=1, pad=0, bias=False, act=("leaky_relu", 0.125))
    return s.graph(s.map(("relu", ("add", ("in", 0), ("in", 1))), b, c))


def residuals(s):
    """Sums and products behind convolutions: of their own input, of values still needed, into a result, into a concatenation."""
    x = s.input(1, 16, 20, 20)
    a = s.conv(x, 32, act=("relu",))
    b = s.map(("add", ("in", 0), ("in", 1)), s.conv(a, 32, kernel=1, pad=0), a)  # reads what it would write over
    c = s.map(("relu", ("add", ("in", 1), ("in", 0))), b, s.conv(s.conv(b, 32), 32, bias=False))
    d = s.map(("mul", ("in", 0), ("in", 1)), s.conv(c, 32, group=32), c)
    e = s.map(("add", ("in", 0), ("in", 1)), s.conv(d, 32, kernel=1, pad=0), b)
    column = s.conv(s.reshape(e, 1, 32, 400, 1), 16, kernel=(3, 1), pad=(1, 0))
    last = s.map(("add", ("in", 0), ("in", 1)), s.conv(column, 16, kernel=1, pad=0), column)
    twice = s.conv(e, 32, kernel=1, pad=0)
    return s.graph(last, s.concat(1, e, s.map(("add", ("in", 0), ("in", 0)), twice), twice))


def bottleneck(s):
    """Pointwise convolutions that read what goes to DDR: of a sum, and of a convolution."""
    x = s.conv(s.input(1, 16, 24, 24), 64, kernel=1, pad=0)
    a = s.conv(s.conv(x, 16, kernel=1, pad=0, act=("relu",)), 16)
    b = s.map(("relu", ("add", ("in", 0), ("in", 1))), s.conv(a, 64, kernel=1, pad=0), x)
    return s.graph(s.map(("add", ("in", 0), ("in", 1)), s.conv(s.conv(b, 16, kernel=1, pad=0), 64), b))


def pools(s):
    x = s.input(2, 3, 17, 19)
    a = s.conv(s.conv(x, 40, stride=2, act=("relu",)), 48, dilation=2, pad=2)
    b = s.pool("MaxPool", a, 3, 2, 1)
    c = s.pool("AvgPool", b, 3, 1, 1, count_include_pad=True)
    return s.graph(s.reshape(s.pool("AvgPool", c, 3, 1, 1, count_include_pad=False), 2, 48 * 25))


def groups(s):
    x = s.input(1, 24, 14, 14)
    a = s.conv(s.conv(x, 48, group=4), 96, group=48)
    whole = s.concat(1, a, s.conv(x, 48, kernel=1, pad=0))
    return s.graph(s.conv(whole, 16, kernel=1, pad=0))


def rows(s):
    """One image row: tiles have to split the other axis."""
    x = s.input(1, 32, 1, 300)
    a = s.conv(s.conv(x, 64, kernel=(1, 5), pad=(0, 2)), 64, kernel=(1, 3), pad=(0, 1), group=64)
    return s.graph(s.transpose(s.reshape(a, 1, 64, 300), 0, 2, 1))


def batched(s):
    """Rows and columns of many images: each kind becomes one image."""
    a = s.conv(s.input(9, 16, 1, 30), 40, kernel=(1, 3), pad=(0, 1), act=("relu",))
    b = s.conv(s.conv(a, 40, kernel=(1, 5), pad=(0, 2), group=40), 40, kernel=(1, 3), pad=(0, 1))
    c = s.pool("MaxPool", s.map(("add", ("in", 0), ("in", 1)), b, a), (1, 3), (1, 2))
    column = s.conv(s.input(6, 8, 21, 1), 24, kernel=(4, 1), pad=0)
    return s.graph(c, s.conv(column, 32, kernel=(3, 1), pad=(1, 0)))


def folded(s):
    """One image row without padding: four parts of it become the rows of a block."""
    x = s.input(2, 16, 1, 203)
    a = s.conv(x, 40, kernel=(1, 4), pad=0)
    return s.graph(s.conv(s.conv(a, 40, kernel=(1, 5), pad=0, group=40), 24, kernel=(1, 1), pad=0, stride=1))


def dense(s):
    x = s.input(1, 16, 7, 7)
    a = s.conv(x, 32, kernel=1, pad=0)
    h = s.matmul(s.reshape(a, 1, 32 * 49), s.const(32 * 49, 100), s.const(100, dtype=F32), ("relu",), 0.5)
    return s.graph(s.matmul(h, s.const(100, 100)))


def feedforward(s):
    """Residual sums behind matrix products: row-major, of a transposed value, and into a concatenation."""
    x = s.input(2, 24, 32)
    a = s.matmul(x, s.const(32, 48), act=("relu",))
    b = s.map(("add", ("in", 0), ("in", 1)), s.matmul(a, s.const(48, 32), s.const(32, dtype=F32)), x)
    c = s.map(("add", ("in", 0), ("in", 1)), b, s.matmul(b, s.const(32, 32)))
    e = s.matmul(c, s.const(32, 24))
    f = s.map(("mul", ("in", 0), ("in", 1)), s.matmul(c, s.const(32, 24)), s.transpose(e, 0, 2, 1))
    g = s.map(("add", ("in", 0), ("in", 1)), s.matmul(c, s.const(32, 24)), f)
    return s.graph(s.concat(1, g, f))


def attention(s):
    x = s.input(2, 20, 32)
    q, k, v = (
        s.transpose(s.reshape(s.matmul(x, s.const(32, 32), s.const(32, dtype=F32)), 2, 20, 4, 8), 0, 2, 1, 3)
        for _ in range(3)
    )
    scores = s.matmul(q, s.transpose(k, 0, 1, 3, 2), scale=0.25)
    weights = s.node("Softmax", [scores], scores.shape, axis=3, log=False)
    mixed = s.transpose(s.matmul(weights, v), 0, 2, 1, 3)
    return s.graph(s.reshape(mixed, 2, 20, 32), s.matmul(s.const(3, 1, 8, 20), s.reshape(v, 1, 8, 20, 8)))


def one_left(s):
    """Matrices between two that all of them share, as a Fourier transform in two steps has them; the first step reads two orders."""
    x = s.input(24, 40, 32)
    turned = s.node("Transpose", [s.input(24, 32, 40)], x.shape, perm=[0, 2, 1])
    steps = [s.matmul(s.const(48, 40), one) for one in (x, turned)]
    twiddled = s.map(("mul", ("in", 0), ("in", 1)), steps[0], s.const(48, 32))
    last = s.matmul(twiddled, s.const(32, 16)), s.matmul(s.input(1, 8, 48), steps[1], scale=0.25)
    return s.graph(*(s.node("Softmax", [one], one.shape, axis=2, log=False) for one in last))


def movement(s):
    x = s.input(1, 16, 20, 20)
    a = s.pad(s.slice(x, slice(1), slice(16), slice(1, 20, 2), slice(20)), (0, 0), (0, 0), (1, 1), (2, 3), value=1.5)
    c = s.conv(a, 32)
    d = s.concat(1, s.slice(c, slice(None), slice(8, 16), slice(None), slice(None)), s.slice(
        c, slice(None), slice(16, 32), slice(None), slice(None)))  # fmt: skip
    e = s.transpose(s.reshape(d, 24, 12, 25), 1, 0, 2)
    return s.graph(s.node("Expand", [e], (2, 12, 24, 25)), s.pad(d, (0, 0), (1, 1), (0, 0), (0, 0)))


def excitation(s):
    """A squeeze-and-excite block between a float32 input and float32 outputs."""
    x = s.input(1, 16, 15, 20, dtype=F32)
    a = s.map(("hard_swish", ("in", 0)), s.conv(s.map(("in", 0), x, dtype=s.dtype), 32))
    gate = s.conv(s.pool("AvgPool", a, (15, 20), count_include_pad=False), 32, kernel=1, pad=0)
    b = s.map(("mul", ("in", 0), ("in", 1)), a, s.map(("sigmoid", ("in", 0)), gate))
    scaled = ("add", ("mul", ("in", 0), ("in", 1)), ("in", 2))
    c = s.map(scaled, b, s.const(1, 32, 1, 1), s.const(15, 1))
    return s.graph(s.map(("in", 0), c, dtype=F32), s.map(("tanh", ("in", 0)), c, dtype=F32))


def broadcast(s):
    x, w = s.input(3, 1, 5, 1, 7), s.input(4, 5, 6, 1)
    a = s.map(("add", ("in", 0), ("in", 1)), x, w)
    b = s.map(("mul", ("sub", ("in", 0), ("in", 1)), ("in", 2)), a, x, s.const(6, 7))
    return s.graph(s.map(("add", ("in", 0), ("in", 1)), s.transpose(b, 4, 3, 2, 1, 0), s.const(5, 4, 3)))


def streamed(s):
    """Operands larger than CMX may hold."""
    x, w, v = s.input(2, 90, 200), s.input(2, 1, 200), s.input(90, 1)
    return s.graph(s.map(("add", ("mul", ("in", 0), ("in", 1)), ("in", 2)), x, w, v))


def crowded(s):
    """More resident operands than a small CMX holds at once; views of them, and a value that is two outputs' source."""
    x = s.input(1, 16, 20, 20)
    many = [s.conv(x, 16) for _ in range(6)]
    expr = ("in", 0)
    for k in range(1, 6):
        expr = ("add", ("mul", expr, ("const", 0.5)), ("in", k))
    total = s.map(expr, *many)
    parts = [s.slice(v, slice(None), slice(4, 12), slice(None), slice(None)) for v in (many[0], many[5])]
    return s.graph(total, s.concat(1, *parts), s.reshape(total, 16, 400))


def reductions(s):
    x = s.input(2, 8, 12, 10)
    c = s.conv(x, 16)
    outs = [
        s.reduce("sum", x, 3),
        s.reduce("mean", x, 2, 3, keepdims=True),
        s.reduce("max", x, 1),
        s.reduce("mean", c, 2, 3),
        s.reduce("min", c, 1, 3, keepdims=True),
        s.reduce("max", c, 1, keepdims=True),
        s.reduce("sum", x, 0, 1, 2, 3),
        s.node("ArgMax", [c], (2, 12, 10), I32, axis=1, keepdims=False),
        s.node("Softmax", [c], c.shape, axis=1, log=False),
        s.node("Softmax", [x], x.shape, axis=3, log=True),
    ]
    return s.graph(*outs)


def gathers(s):
    x, ids = s.input(2, 40, 3), s.input(1, 60, dtype=I32)
    where = s.const(dtype=I32, data=[[1, -1, 5], [39, 0, 7]])
    rows_ = s.node("Gather", [s.const(200, 24), ids], (1, 60, 24), axis=0)
    return s.graph(s.node("Gather", [x, where], (2, 2, 3, 3), axis=1), rows_)


def tables(s):
    """Gathers of tables beyond a small CMX: constant, of which rows are taken, and computed, that go through it piece by piece."""
    ids = s.input(2, 10, dtype=I32)
    embedded = s.node("Gather", [s.const(900, 48), ids], (2, 10, 48), axis=0)
    columns = s.node("Gather", [s.input(2, 100, 420), ids], (2, 2, 10, 420), axis=1)
    return s.graph(embedded, columns)


def integers(s):
    """Products of 8-bit integers, of both signs on either side, and what brings them back."""
    x = s.input(1, 40, 30, 31, dtype=np.uint8)
    kernels = s.const(48, 40, 3, 3, dtype=np.int8, data=s.random.integers(-99, 99, (48, 40, 3, 3)))
    attrs = {"strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1, "zeros": [3, -2], "ending": None}
    sums = s.node("ConvInteger", [x, kernels], (1, 48, 30, 31), I32, **attrs)
    factor = ("mul", ("cast_f32", ("in", 0)), ("const", 0.0001))
    back = s.map(("cast_i32", ("clip", ("round", factor), ("const", -128.0), ("const", 127.0))), sums, dtype=np.int8)
    a, b = s.input(2, 70, 90, dtype=np.uint8), s.input(2, 90, 64, dtype=np.int8)
    sums = s.node("MatMulInteger", [a, b], (2, 70, 64), I32, zeros=[0, 7], ending=None)
    scales = tuple(s.random.uniform(1e-4, 3e-4, 64).astype(np.float32).tolist())
    ending = Ending(tuple(range(-320, 320, 10)), scales, None, 3, ("clip", -90.0, 100.0))
    return s.graph(
        back, sums, s.node("MatMulInteger", [a, b], (2, 70, 64), np.dtype(np.int8), zeros=[0, 7], ending=ending)
    )


CASES = {
    f.__name__: f
    for f in (
        chain, residuals, bottleneck, pools, groups, rows, batched, folded, dense, feedforward, attention, one_left, movement, excitation, broadcast, streamed, crowded, reductions, gathers, tables, integers,
    )
}  # fmt: skip


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", sorted(CASES))


@pytest.fixture
def sketch():
    return Sketch


@pytest.fixture
def graph_of():
    """graph_of(case, dtype) -> Graph."""
    return lambda case, dtype=F16: CASES[case](Sketch(dtype))


@functools.cache
def compiled_once(case, dtype, options):
    return compile_graph(CASES[case](Sketch(dtype)), CompileOptions(**dict(options)))


@pytest.fixture
def compiled():
    """compiled(case, dtype, options...) -> what the compiler makes of it, once for all tests of a process."""
    return lambda case, dtype=F16, **options: compiled_once(case, np.dtype(dtype), tuple(sorted(options.items())))


@pytest.fixture
def feeds_of():
    """feeds_of(graph) -> input arrays by name, always the same."""

    def make(graph, seed=0):
        random = np.random.default_rng(seed)
        return {
            v.name: random.standard_normal(v.shape).astype(v.dtype)
            if v.dtype.kind == "f"
            else random.integers(0, 100, v.shape, v.dtype)
            for v in graph.inputs
        }

    return make


@pytest.fixture(scope="module")
def device():
    with libnpu.open("npu-37xx") as opened:
        yield opened


@pytest.fixture
def run(device):
    """run(blob bytes, feeds) -> outputs by name, through driver, firmware and device."""

    def execute(data, feeds):
        with device.load(data) as blob:
            return blob.run(feeds)

    return execute
