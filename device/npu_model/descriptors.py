"""One DPU or DMA descriptor as checked plain integers: what footprints and engines compute from.

Records come from arrays of `npu_abi.dtype("npu_dpu_invariant")` and so on. Everything that a descriptor alone can have
wrong is refused here with DescriptorError, which names the field; addresses are checked where memory is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from npu_abi import C, name_of

from npu_model import dtypes

CONV, DWCONV, MATMUL = C.NPU_DPU_CONV, C.NPU_DPU_DWCONV, C.NPU_DPU_MATMUL
MAXPOOL, AVGPOOL = C.NPU_DPU_MAXPOOL, C.NPU_DPU_AVGPOOL
ELTWISE_ADD, ELTWISE_MUL = C.NPU_DPU_ELTWISE_ADD, C.NPU_DPU_ELTWISE_MUL
ELTWISE = (ELTWISE_ADD, ELTWISE_MUL)
WEIGHTED = (CONV, DWCONV, MATMUL)
_OPS = (*WEIGHTED, MAXPOOL, AVGPOOL, *ELTWISE)
_OPERANDS = (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.I8, dtypes.U8)
_RESULTS = (*_OPERANDS, dtypes.I16, dtypes.U16, dtypes.I32)
DPU_FLAGS = C.NPU_DPU_FLAG_COUNT_PAD | C.NPU_DPU_FLAG_WEIGHTS_4BIT

MAX_TASK_WORK = 1 << 36  # terms of one variant: more than any operands in a CMX of 2 MiB give
MAX_TAPS = 1 << 22  # positions along one axis that a variant with gaps between its windows or taps may list


class DescriptorError(ValueError):
    """A descriptor that no engine can execute; the message names the field and the limit."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a window operation; in elements. Output o reads input o * stride - pad_low + k * dilation."""

    input_size: int
    kernel: int
    stride: int
    dilation: int
    pad_low: int
    pad_high: int

    @property
    def gaps(self) -> bool:
        """Whether neighbouring windows or taps may leave inputs out between them."""
        return self.dilation != 1 or self.stride > self.kernel

    def extent(self, outputs: int) -> int:
        """Return how many input positions lie between the first and the last that `outputs` neighbours read."""
        return (outputs - 1) * self.stride + (self.kernel - 1) * self.dilation + 1


class Dma(NamedTuple):
    """struct npu_dma_descriptor; the fields in its order."""

    src: int
    dst: int
    length: int
    num_planes: int
    src_plane_stride: int
    dst_plane_stride: int
    src_width: int
    src_stride: int
    dst_width: int
    dst_stride: int

    @classmethod
    def decode(cls, record: Any) -> Dma:
        """Return a record of npu_dma_task or npu_dma_descriptor; DescriptorError when widths do not divide length."""
        return cls.of(record.tolist()[: len(cls._fields)])

    @classmethod
    def of(cls, values: Sequence[int]) -> Dma:
        """Return the descriptor with these fields; DescriptorError as `decode`."""
        dma = cls(*values)
        if not dma.length or not dma.num_planes:
            raise DescriptorError(f"DMA length {dma.length}, num_planes {dma.num_planes}: both must be at least 1")
        for end, width in (("src_width", dma.src_width), ("dst_width", dma.dst_width)):
            if not width or dma.length % width:
                raise DescriptorError(f"DMA {end} {width} does not divide length {dma.length}")
        return dma


@dataclass(frozen=True, slots=True)
class Variant:
    """struct npu_dpu_variant: the output block [start, start + size) of each axis."""

    start_x: int
    start_y: int
    start_z: int
    size_x: int
    size_y: int
    size_z: int
    pad_left: int
    pad_right: int
    pad_top: int
    pad_bottom: int

    @classmethod
    def decode(cls, record: Any) -> Variant:
        """Return a record of npu_dpu_variant."""
        return cls(*record.tolist()[:10])


@dataclass(frozen=True, slots=True)
class Invariant:
    """struct npu_dpu_invariant without synchronisation. MATMUL and ELTWISE have kernel, stride and dilation 1."""

    act_addr: int
    act2_addr: int
    wt_addr: int
    wt_table_addr: int
    out_addr: int
    in_x: int
    in_y: int
    in_z: int
    out_x: int
    out_y: int
    out_z: int
    act_stride_x: int
    act_stride_y: int
    act2_stride_x: int
    act2_stride_y: int
    out_stride_x: int
    out_stride_y: int
    groups: int
    kernel_x: int
    kernel_y: int
    stride_x: int
    stride_y: int
    dilation_x: int
    dilation_y: int
    op: int
    flags: int
    act_dtype: int
    wt_dtype: int
    out_dtype: int
    ppe_fn: int
    act_zero_point: int
    wt_zero_point: int
    out_zero_point: int
    ppe_scale: float
    ppe_bias: float
    clamp_low: float
    clamp_high: float
    lrelu_slope: float
    out_tiles: int

    @classmethod
    def decode(cls, record: Any) -> Invariant:
        """Return a checked record of npu_dpu_invariant; DescriptorError names the field that is wrong."""
        values = dict(zip(record.dtype.names, record.tolist(), strict=True))
        if values["op"] in (MATMUL, *ELTWISE):
            values |= dict.fromkeys(_WINDOW_FIELDS, 1)
        if values["op"] not in (CONV, MATMUL):
            values["groups"] = 1
        elif values["op"] == MATMUL:
            values["groups"] = values["groups"] or 1
        found = cls(**{name: values[name] for name in INVARIANT_FIELDS})
        found._check()
        return found

    @property
    def is_float(self) -> bool:
        """Whether operands are floating point."""
        return dtypes.is_float(self.act_dtype)

    @property
    def has_small_weights(self) -> bool:
        """Whether weights are 4 bits, two to a byte."""
        return bool(self.flags & C.NPU_DPU_FLAG_WEIGHTS_4BIT)

    @property
    def filter_bytes(self) -> int:
        """Bytes of the weights of an output channel, in CONV and MATMUL."""
        size = self.kernel_y * self.kernel_x * self.group_in_z * dtypes.size_bytes(self.wt_dtype)
        return size // 2 if self.has_small_weights else size

    @property
    def out_shifts(self) -> list[int]:
        """How far from `out_addr` the output is written: 0, and the distances of the other tiles of `out_tiles`."""
        own = (self.out_addr - C.NPU_CMX_BASE) // C.NPU_CMX_TILE_STRIDE
        others = (tile - own for tile in range(self.out_tiles.bit_length()) if self.out_tiles >> tile & 1)
        return [0, *(int(C.NPU_CMX_TILE_STRIDE) * distance for distance in others if distance)]

    @property
    def has_weights(self) -> bool:
        """Whether the operation reads weights."""
        return self.op in WEIGHTED

    @property
    def group_in_z(self) -> int:
        """Input channels per group."""
        return self.in_z // self.groups

    @property
    def group_out_z(self) -> int:
        """Output channels per group."""
        return self.out_z // self.groups

    def axis_x(self, variant: Variant) -> Axis:
        """Return the horizontal axis as `variant` pads it."""
        return Axis(self.in_x, self.kernel_x, self.stride_x, self.dilation_x, variant.pad_left, variant.pad_right)

    def axis_y(self, variant: Variant) -> Axis:
        """Return the vertical axis as `variant` pads it."""
        return Axis(self.in_y, self.kernel_y, self.stride_y, self.dilation_y, variant.pad_top, variant.pad_bottom)

    def input_channels(self, variant: Variant) -> tuple[int, int]:
        """Return the first input channel that `variant` reads and the one after the last."""
        if self.op not in (CONV, MATMUL):
            return variant.start_z, variant.start_z + variant.size_z
        first = variant.start_z // self.group_out_z
        last = (variant.start_z + variant.size_z - 1) // self.group_out_z
        return first * self.group_in_z, (last + 1) * self.group_in_z

    def check_variant(self, variant: Variant) -> None:
        """Raise DescriptorError unless `variant` lies in the output and its windows in the padded input."""
        for axis, start, size, limit in (
            ("x", variant.start_x, variant.size_x, self.out_x),
            ("y", variant.start_y, variant.size_y, self.out_y),
            ("z", variant.start_z, variant.size_z, self.out_z),
        ):
            if not size or start + size > limit:
                raise DescriptorError(f"DPU variant {axis} [{start}, +{size}) is not inside out_{axis} {limit}")
        depth = self.group_in_z if self.op in (CONV, MATMUL) else 1
        work = variant.size_x * variant.size_y * variant.size_z * self.kernel_x * self.kernel_y * depth
        if work > MAX_TASK_WORK:
            raise DescriptorError(f"DPU variant asks for {work} terms, the limit is {MAX_TASK_WORK}")
        for name, axis_, first, last in (
            ("x", self.axis_x(variant), variant.start_x, variant.start_x + variant.size_x),
            ("y", self.axis_y(variant), variant.start_y, variant.start_y + variant.size_y),
        ):
            if axis_.gaps and (last - first) * axis_.kernel > MAX_TAPS:
                raise DescriptorError(
                    f"DPU variant of {last - first} outputs under a kernel of {axis_.kernel} along {name} "
                    f"lists more than {MAX_TAPS} inputs"
                )
            padded = axis_.input_size + axis_.pad_low + axis_.pad_high
            if axis_.extent(last) > padded:
                raise DescriptorError(
                    f"DPU variant needs {axis_.extent(last)} inputs along {name}, input and padding have {padded}"
                )

    def check_rows(self) -> None:
        """Raise DescriptorError when rows of the input or of the output share bytes, which the firmware refuses. The second
        operand of two may repeat its rows.
        """
        for what, x, y, z, dtype, stride_x, stride_y in (
            ("act", self.in_x, self.in_y, self.in_z, self.act_dtype, self.act_stride_x, self.act_stride_y),
            ("out", self.out_x, self.out_y, self.out_z, self.out_dtype, self.out_stride_x, self.out_stride_y),
        ):
            check_disjoint(f"DPU {what}", z * dtypes.size_bytes(dtype), (x, stride_x), (y, stride_y))

    def _check(self) -> None:
        if self.op not in _OPS:
            raise DescriptorError(f"DPU op {self.op} is not in enum npu_dpu_op")
        if self.act_dtype not in _OPERANDS:
            raise DescriptorError(f"DPU act_dtype {name_of('npu_dtype', self.act_dtype)} is not a DPU operand type")
        if self.out_dtype not in _RESULTS:
            raise DescriptorError(f"DPU out_dtype {name_of('npu_dtype', self.out_dtype)} is not a DPU result type")
        for field in ("in_x", "in_y", "in_z", "out_x", "out_y", "out_z", *_WINDOW_FIELDS):
            if not getattr(self, field):
                raise DescriptorError(f"DPU {field} is 0; it must be at least 1")
        if self.ppe_fn not in (C.NPU_PPE_NONE, C.NPU_PPE_RELU, C.NPU_PPE_LRELU):
            raise DescriptorError(f"DPU ppe_fn {self.ppe_fn} is not in enum npu_ppe_fn")
        if self.op in (CONV, MATMUL):
            if not self.groups or self.in_z % self.groups or self.out_z % self.groups:
                raise DescriptorError(
                    f"DPU groups {self.groups} does not divide in_z {self.in_z} and out_z {self.out_z}"
                )
        elif self.in_z != self.out_z:
            raise DescriptorError(
                f"DPU in_z {self.in_z} and out_z {self.out_z} differ in {name_of('npu_dpu_op', self.op)}"
            )
        if self.has_weights:
            same = self.wt_dtype == self.act_dtype if self.is_float else self.wt_dtype in (dtypes.I8, dtypes.U8)
            if not same:
                raise DescriptorError(
                    f"DPU wt_dtype {name_of('npu_dtype', self.wt_dtype)} does not go with act_dtype "
                    f"{name_of('npu_dtype', self.act_dtype)}"
                )
        if self.has_small_weights:
            elements = self.kernel_y * self.kernel_x * self.group_in_z
            if self.op not in (CONV, MATMUL) or self.is_float or elements % 2:
                raise DescriptorError(
                    f"DPU weights of 4 bits: {name_of('npu_dpu_op', self.op)} of {name_of('npu_dtype', self.act_dtype)} with {elements} weights "
                    "a channel; integers of CONV and MATMUL have them, an even number a channel"
                )
        if not self.is_float:
            second = self.wt_dtype if self.has_weights else self.act_dtype
            for field, dtype in (("act_zero_point", self.act_dtype), ("wt_zero_point", second)):
                low, high = dtypes.integer_range(dtype)
                if not low <= getattr(self, field) <= high:
                    raise DescriptorError(f"DPU {field} {getattr(self, field)} is not in [{low}, {high}]")


def check_disjoint(what: str, width: int, *dims: tuple[int, int]) -> None:
    """Raise DescriptorError when runs of `width` bytes at all (count, stride) of `dims` could share a byte."""
    extent = width
    for stride, count in sorted([(abs(stride), count) for count, stride in dims if count > 1]):
        if stride < extent:
            raise DescriptorError(f"{what} stride {stride} is smaller than the {extent} bytes inside it")
        extent += (count - 1) * stride


_WINDOW_FIELDS = ("kernel_x", "kernel_y", "stride_x", "stride_y", "dilation_x", "dilation_y")
INVARIANT_FIELDS = tuple(field.name for field in fields(Invariant))
VARIANT_FIELDS = tuple(field.name for field in fields(Variant))
