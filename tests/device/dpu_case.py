"""A DPU task over a small memory, and what it should give by loops over single elements."""

import math
from dataclasses import dataclass, field

import ml_dtypes
import npu_abi
import numpy as np
from npu_abi import C
from npu_device import dpu_compute
from npu_device.faults import MemoryFault

BASE, SIZE = 0x2E000000, 1 << 18
NUMPY = {
    C.NPU_DT_F16: np.float16,
    C.NPU_DT_BF16: ml_dtypes.bfloat16,
    C.NPU_DT_F32: np.float32,
    C.NPU_DT_I8: np.int8,
    C.NPU_DT_U8: np.uint8,
    C.NPU_DT_I16: np.int16,
    C.NPU_DT_U16: np.uint16,
    C.NPU_DT_I32: np.int32,
}
FLOATS = [C.NPU_DT_F16, C.NPU_DT_BF16, C.NPU_DT_F32]
OPS = {
    "conv": C.NPU_DPU_CONV,
    "dwconv": C.NPU_DPU_DWCONV,
    "matmul": C.NPU_DPU_MATMUL,
    "maxpool": C.NPU_DPU_MAXPOOL,
    "avgpool": C.NPU_DPU_AVGPOOL,
    "add": C.NPU_DPU_ELTWISE_ADD,
    "mul": C.NPU_DPU_ELTWISE_MUL,
}


@dataclass
class Case:
    """One invariant over a small memory, with the same facts for the loops."""

    op: str
    shape: tuple[int, int, int]  # in_y, in_x, in_z
    out_z: int = 0
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)  # left, right, top, bottom
    groups: int = 1
    act: int = C.NPU_DT_F16
    wt: int = C.NPU_DT_F16
    out: int = C.NPU_DT_F16
    seed: int = 1
    table: bool = False
    offset: int | None = None  # of all channels
    small: bool = False  # weights of 4 bits
    fields: dict = field(default_factory=dict)

    def __post_init__(self):
        in_y, in_x, in_z = self.shape
        self.out_z = self.out_z or in_z
        left, right, top, bottom = self.pad
        self.out_y = (in_y + top + bottom - (self.kernel[0] - 1) * self.dilation[0] - 1) // self.stride[0] + 1
        self.out_x = (in_x + left + right - (self.kernel[1] - 1) * self.dilation[1] - 1) // self.stride[1] + 1
        rng = np.random.default_rng(self.seed)
        taps = self.kernel[0] * self.kernel[1]
        wt_shape = (taps, self.out_z) if self.op == "dwconv" else (self.out_z, *self.kernel, in_z // self.groups)
        self.act_values = draw(rng, self.act, self.shape)
        self.act2_values = draw(rng, self.act, self.shape)
        self.wt_values = draw(rng, self.wt, wt_shape)
        if self.small:
            self.wt_values //= 16
            self.fields = {"flags": C.NPU_DPU_FLAG_WEIGHTS_4BIT} | self.fields
        self.scales = rng.uniform(0.5, 2, self.out_z).astype(np.float32)
        self.biases = rng.uniform(-2, 2, self.out_z).astype(np.float32)
        # Floats and sums of two values take no notice of them.
        self.offsets = rng.integers(-(1 << 20), 1 << 20, self.out_z)
        if self.offset is not None:
            self.offsets[:] = self.offset
        self.fields = {"ppe_scale": 1.0, "clamp_low": -np.inf, "clamp_high": np.inf} | self.fields

    def memory(self):
        memory = np.full(SIZE, 0xFF, np.uint8)
        self.addr = {}
        at = 64
        entries = np.zeros((self.out_z, 4), np.float32)
        entries[:, 0], entries[:, 1] = self.scales, self.biases
        entries.view(np.int32)[:, 2] = self.offsets
        for name, values in (
            ("act", self.act_values),
            ("act2", self.act2_values),
            ("wt", packed(self.wt_values) if self.small else self.wt_values),
            ("table", entries),
        ):
            raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
            memory[at : at + raw.size] = raw
            self.addr[name] = BASE + at
            at += -(-raw.size // 64) * 64
        self.addr["out"] = BASE + at
        assert at + self.out_y * self.out_x * self.out_z * 4 < SIZE
        return memory

    def record(self):
        in_y, in_x, in_z = self.shape
        size, out_size = np.dtype(NUMPY[self.act]).itemsize, np.dtype(NUMPY[self.out]).itemsize
        values = {
            "act_addr": self.addr["act"],
            "act2_addr": self.addr["act2"],
            "wt_addr": self.addr["wt"],
            "wt_table_addr": self.addr["table"] if self.table else 0,
            "out_addr": self.addr["out"],
            "in_x": in_x, "in_y": in_y, "in_z": in_z, "out_x": self.out_x, "out_y": self.out_y, "out_z": self.out_z,
            "act_stride_x": in_z * size, "act_stride_y": in_x * in_z * size,
            "act2_stride_x": in_z * size, "act2_stride_y": in_x * in_z * size,
            "out_stride_x": self.out_z * out_size, "out_stride_y": self.out_x * self.out_z * out_size,
            "groups": self.groups, "kernel_y": self.kernel[0], "kernel_x": self.kernel[1],
            "stride_y": self.stride[0], "stride_x": self.stride[1],
            "dilation_y": self.dilation[0], "dilation_x": self.dilation[1], "op": OPS[self.op],
            "act_dtype": self.act, "wt_dtype": self.wt, "out_dtype": self.out,
        }  # fmt: skip
        one = np.zeros(1, npu_abi.dtype("npu_dpu_invariant"))
        for name, value in (values | self.fields).items():
            one[name] = value
        return one[0]

    def variants(self, *blocks):
        """Return records; a block is (y, size, x, size, z, size); none = the whole output."""
        blocks = blocks or ((0, self.out_y, 0, self.out_x, 0, self.out_z),)
        found = np.zeros(len(blocks), npu_abi.dtype("npu_dpu_variant"))
        for one, (y, size_y, x, size_x, z, size_z) in zip(found, blocks, strict=True):
            one["start_y"], one["start_x"], one["start_z"] = y, x, z
            one["size_y"], one["size_x"], one["size_z"] = size_y, size_x, size_z
            one["pad_left"], one["pad_right"], one["pad_top"], one["pad_bottom"] = self.pad
        return found

    def run(self, helper=None, blocks=(), numerics="exact", apart=False):
        """Return the output of one task with a variant per block, or of a task per block."""
        memory = self.memory()
        for variants in [(block,) for block in blocks] if apart else [blocks]:
            for target, bits in dpu_compute.execute(
                self.record(), self.variants(*variants), over(memory), numerics, helper
            ):
                target[...] = bits
        start = self.addr["out"] - BASE
        count = self.out_y * self.out_x * self.out_z
        bits = memory[start : start + count * np.dtype(NUMPY[self.out]).itemsize].copy()
        return bits.view(NUMPY[self.out]).reshape(self.out_y, self.out_x, self.out_z)

    # The same by loops over single elements.

    def taps(self, y, x):
        for ky in range(self.kernel[0]):
            for kx in range(self.kernel[1]):
                iy = y * self.stride[0] - self.pad[2] + ky * self.dilation[0]
                ix = x * self.stride[1] - self.pad[0] + kx * self.dilation[1]
                if 0 <= iy < self.shape[0] and 0 <= ix < self.shape[1]:
                    yield ky, kx, iy, ix

    def accumulate(self, y, x, z):
        exact = int if self.act in (C.NPU_DT_I8, C.NPU_DT_U8) else float
        zero, wt_zero = self.fields.get("act_zero_point", 0), self.fields.get("wt_zero_point", 0)
        act = lambda iy, ix, iz: exact(self.act_values[iy, ix, iz]) - zero  # noqa: E731
        weights = self.wt_values.reshape(self.out_z, *self.kernel, -1) if self.op != "dwconv" else self.wt_values
        total = (lambda terms: sum(terms)) if exact is int else math.fsum
        if self.op in ("conv", "matmul"):
            depth = self.shape[2] // self.groups
            first = z // (self.out_z // self.groups) * depth
            return total(
                act(iy, ix, first + i) * (exact(weights[z, ky, kx, i]) - wt_zero)
                for ky, kx, iy, ix in self.taps(y, x)
                for i in range(depth)
            )
        if self.op == "dwconv":
            return total(
                act(iy, ix, z) * (exact(weights[ky * self.kernel[1] + kx, z]) - wt_zero)
                for ky, kx, iy, ix in self.taps(y, x)
            )
        inside = [act(iy, ix, z) for _, _, iy, ix in self.taps(y, x)]
        if self.op == "maxpool":
            return max(inside)
        if self.op == "avgpool":
            padded = self.fields.get("flags", 0) & C.NPU_DPU_FLAG_COUNT_PAD
            return total(inside) / (self.kernel[0] * self.kernel[1] if padded else len(inside))
        other = exact(self.act2_values[y, x, z]) - wt_zero
        return act(y, x, z) + other if self.op == "add" else act(y, x, z) * other

    def with_offset(self, total, z):
        """The sum and the channel's offset, wrapped at 32 bits, where there is one."""
        if not self.table or self.act in FLOATS or self.op not in ("conv", "dwconv", "matmul"):
            return total
        return (int(total) + int(self.offsets[z]) + 2**31) % 2**32 - 2**31

    def expected(self):
        f32 = np.float32
        out = np.empty((self.out_y, self.out_x, self.out_z), NUMPY[self.out])
        for y, x, z in np.ndindex(out.shape):
            v = f32(self.with_offset(self.accumulate(y, x, z), z))
            v = f32(v * (self.scales[z] if self.table else f32(self.fields["ppe_scale"])))
            v = f32(v + (self.biases[z] if self.table else f32(self.fields.get("ppe_bias", 0))))
            fn = self.fields.get("ppe_fn", C.NPU_PPE_NONE)
            if v < 0 and fn != C.NPU_PPE_NONE:
                v = f32(0) if fn == C.NPU_PPE_RELU else f32(v * f32(self.fields["lrelu_slope"]))
            v = min(max(v, f32(self.fields["clamp_low"])), f32(self.fields["clamp_high"]))
            if self.out in FLOATS:
                out[y, x, z] = v
            else:
                info = np.iinfo(NUMPY[self.out])
                whole = round(float(v)) + self.fields.get("out_zero_point", 0)  # half to even
                out[y, x, z] = min(max(whole, info.min), info.max)
        return out


def draw(rng, dtype, shape):
    if dtype in FLOATS:
        return rng.standard_normal(shape).astype(NUMPY[dtype])
    info = np.iinfo(NUMPY[dtype])
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(NUMPY[dtype])


def packed(values):
    flat = values.reshape(-1).astype(int) % 16
    return (flat[::2] + 16 * flat[1::2]).astype(np.uint8)


def over(memory):
    def view(address, shape, strides, dtype, write):
        try:
            return np.ndarray(shape, dtype, memory, address - BASE, strides)
        except (TypeError, ValueError):
            raise MemoryFault(address, write=write) from None

    return view


def assert_same_bits(got, want):
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))
