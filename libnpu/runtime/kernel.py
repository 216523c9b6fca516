"""Kernels: what a module has that can be launched, with checked arguments.

A compiled model is one kernel of the model's name, whose arguments are its inputs and then its outputs. A kernel of a
library is a SHAVE program that runs in blocks and takes device memory and numbers.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import shown, whole
from libnpu.runtime.guard import public
from libnpu.runtime.operation import KernelLaunch, ModuleLaunch
from libnpu.runtime.spans import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.blob import Kernel as ImageKernel
    from libnpu.errors import Asked
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.guard import Guard
    from libnpu.runtime.job import Job
    from libnpu.runtime.module import Module
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.spans import DeviceSpan
    from libnpu.runtime.stream import Stream

MODEL_ALIGNMENT, LIBRARY_ALIGNMENT = 64, 4  # of memory arguments, bytes
INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: `kind` of enum npu_arg_kind, `direction` of enum npu_arg_direction, `dtype` of enum npu_dtype.

    Of a model's tensors `shape` and `size_bytes` are known; () and 0 elsewhere.
    """

    name: str
    kind: int
    direction: int
    dtype: int
    shape: tuple[int, ...] = ()
    size_bytes: int = 0


class Kernel(ABC):
    """Belongs to `module` and lives as long; `max_grid` is the most blocks that it runs in, 0 = any number.

    `code_bytes` go through a SHAVE's instruction cache. `alignment` of memory arguments is in bytes. `is_cooperative`:
    all blocks run at the same time.

    >>> relu = device.kernel("relu")
    >>> [param.name for param in relu.params]
    ['input', 'output', 'count']
    >>> memory = device.to_device(np.array([-1, 2], np.float32))
    >>> relu.launch(None, memory, memory, 2, grid=1).wait()
    >>> memory.read(np.float32).tolist()
    [0.0, 2.0]
    """

    max_grid: int
    code_bytes: int
    alignment: ClassVar[int]
    is_cooperative = False
    takes_absent_memory: ClassVar[bool] = False  # None, which is address 0

    def __init__(self, module: Module, name: str, params: Sequence[Param]) -> None:
        self.module = module
        self.guard: Guard = module.guard
        self.name = name
        self.params = tuple(params)

    @abstractmethod
    def operation(self, arguments: Sequence[Any], grid: int | None = None) -> Operation:
        """Return the launch as an operation, checked; see `launch`."""

    @public
    def launch(self, stream: Stream | None, *arguments: Any, grid: int | None = None) -> Job:
        """Enqueue the kernel in `stream` (None: the default stream) in `grid` blocks, and return at once.

        Arguments are memory (buffers or parts of them), integers and floats, as `params` says; they are copied, the
        memory must stay until the job is done. `grid` None is the default, for which C has 0. Raises ARG_COUNT, ARG_KIND, ARG_SIZE, MISALIGNED, STALE_HANDLE for freed
        memory, WRONG_CONTEXT, INVALID_VALUE for a grid or a number out of range.
        """
        context = self.module.context
        stream = context.stream_of(stream, f"kernel {self.name!r}")
        stream.check_open()
        return self.launch_in(stream, arguments, grid)

    def launch_in(self, stream: Stream, arguments: Sequence[Any], grid: int | None = None) -> Job:
        """Enqueue the kernel in a stream of its context, checked; see `launch`."""
        return stream.enqueue(self.operation(arguments, grid))

    def check_count(self, arguments: Sequence[Any]) -> None:
        """Raise ARG_COUNT unless there are as many arguments as parameters."""
        if len(arguments) != len(self.params):
            raise NpuError(
                C.NPU_ERROR_ARG_COUNT, f"{len(arguments)} arguments for {self.name!r}, which takes {len(self.params)}"
            )

    def check_memory(self, param: Param, value: Any) -> Buffer | DeviceSpan:
        """Return `value`, memory that `param` can take."""
        if not isinstance(value, Memory):
            raise self.refusal(C.NPU_ERROR_ARG_KIND, param, f"is device memory, not {type(value).__name__}")
        span: Buffer | DeviceSpan = value  # type: ignore[assignment]
        if span.buffer.context is not self.module.context:
            raise self.refusal(C.NPU_ERROR_WRONG_CONTEXT, param, "has memory of another context")
        _ = span.buffer.handle  # raises STALE_HANDLE
        if span.size < param.size_bytes:
            raise self.too_small(param, span, param.size_bytes)
        if span.device_address % self.alignment:
            raise self.refusal(
                C.NPU_ERROR_MISALIGNED,
                param,
                f"is at {span.device_address:#x}, which is not a multiple of {self.alignment}",
            )
        return span

    def refusal(self, result: int, param: Param, problem: str, asked: Asked | None = None) -> NpuError:
        """Return the error of an argument."""
        return NpuError(result, f"argument {param.name!r} of {self.name!r} {problem}", asked=asked)

    def too_small(self, param: Param, span: Memory, needed: int) -> NpuError:
        """Return the error of memory that does not have the `needed` bytes of an argument."""
        problem = f"needs {needed} bytes, and has {span.size}"
        return self.refusal(C.NPU_ERROR_ARG_SIZE, param, problem, span.asked(0, needed))


class ModelKernel(Kernel):
    """A compiled model."""

    max_grid = 1
    alignment = MODEL_ALIGNMENT

    def __init__(self, module: Module) -> None:
        self.code_bytes = module.code_bytes
        params = [
            Param(tensor.name, int(C.NPU_ARG_BUFFER), int(direction), tensor.dtype, tensor.shape, tensor.size_bytes)
            for direction, tensors in ((C.NPU_ARG_IN, module.inputs), (C.NPU_ARG_OUT, module.outputs))
            for tensor in tensors
        ]
        super().__init__(module, module.name, params)

    def operation(self, arguments: Sequence[Any], grid: int | None = None) -> Operation:
        """Return the launch. Raises INVALID_VALUE for a grid other than 1."""
        spans = self.checked_memory(arguments, grid)
        return ModuleLaunch(self.module, spans, tuple(span.device_address for span in spans))

    def checked_memory(self, arguments: Sequence[Any], grid: int | None) -> list[Buffer | DeviceSpan]:
        """Return the arguments. Raises as `launch`."""
        self.check_count(arguments)
        if grid not in (None, 1):
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"grid {grid} for {self.name!r}: a compiled model has one block")
        return [self.check_memory(p, value) for p, value in zip(self.params, arguments, strict=True)]


class LibraryKernel(Kernel):
    """A program of a kernel library."""

    alignment = LIBRARY_ALIGNMENT
    takes_absent_memory = True

    def __init__(self, module: Module, kernel: ImageKernel) -> None:
        super().__init__(module, kernel.name, [Param(p.name, p.kind, p.direction, p.dtype) for p in kernel.params])
        self.code_bytes = kernel.code_bytes
        self.flags = kernel.flags
        self.is_cooperative = bool(kernel.flags & C.NPU_KERNEL_COOPERATIVE)
        self.max_grid = kernel.max_grid
        self._text_offset = kernel.text_offset

    def text(self) -> tuple[int, list[int]]:
        """Return the address of its first instruction, and the buffer objects that the program needs."""
        base, handle = self.module.text()
        return base + self._text_offset, [handle]

    def operation(self, arguments: Sequence[Any], grid: int | None = None) -> Operation:
        """Return the launch; the default grid is a block for each SHAVE, as far as `max_grid` allows."""
        packed, spans = self.pack(arguments)
        return self.packed_launch(packed, spans, grid)

    def packed_launch(self, packed: bytes, spans: list[Buffer | DeviceSpan], grid: int | None) -> KernelLaunch:
        """Return the launch with what `pack` has returned."""
        return KernelLaunch(self, packed, spans, self._grid(grid))

    def _grid(self, grid: int | None) -> int:
        profile = self.module.context.profile
        units = profile.tiles * profile.shaves_per_tile
        limit = self.max_grid or int(C.NPU_MAX_KERNEL_GRID)
        if self.is_cooperative:
            limit = min(limit, units)
        if grid is None:
            return min(units, limit)
        grid = whole(grid, "grid")
        if not 0 < grid <= limit:
            why = (
                ": it is cooperative, each block has a SHAVE of its own"
                if limit == units and self.is_cooperative
                else ""
            )
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"grid {grid} for {self.name!r}; 1 to {limit} are allowed{why}")
        return grid

    def pack(self, arguments: Sequence[Any]) -> tuple[bytes, list[Buffer | DeviceSpan]]:
        """Return the bytes of the arguments, eight for each, and the memory among them.

        Raises ARG_COUNT, ARG_KIND for memory where a number belongs, and so on.
        """
        self.check_count(arguments)
        spans: list[Buffer | DeviceSpan] = []
        return b"".join([self._pack(p, value, spans) for p, value in zip(self.params, arguments, strict=True)]), spans

    def _pack(self, param: Param, value: Any, spans: list[Buffer | DeviceSpan]) -> bytes:
        """Return the eight bytes of an argument. Memory may be absent: None is address 0."""
        if param.kind == C.NPU_ARG_BUFFER:
            if value is None:
                return bytes(8)
            span = self.check_memory(param, value)
            spans.append(span)
            return struct.pack("<Q", span.device_address)
        if param.kind == C.NPU_ARG_INT:
            try:
                number = index(value)
            except TypeError:  # arrays have __index__ too
                raise self.refusal(C.NPU_ERROR_ARG_KIND, param, f"is an integer, not {type(value).__name__}") from None
            if not -INT64 <= number < INT64:
                raise self.refusal(C.NPU_ERROR_INVALID_VALUE, param, f"is {shown(number)}, beyond 64 bits")
            return struct.pack("<q", number)
        if isinstance(value, Memory) or not hasattr(value, "__float__"):
            raise self.refusal(C.NPU_ERROR_ARG_KIND, param, f"is a float, not {type(value).__name__}")
        try:
            return struct.pack("<f4x", value)
        except OverflowError:
            raise self.refusal(C.NPU_ERROR_INVALID_VALUE, param, f"is {value}, beyond fp32") from None
        except (struct.error, TypeError):  # an array of several; an integer that is too long for a float
            if isinstance(value, int):
                raise self.refusal(C.NPU_ERROR_INVALID_VALUE, param, f"is {shown(value)}, beyond fp32") from None
            raise self.refusal(C.NPU_ERROR_ARG_KIND, param, f"is a float, not {type(value).__name__}") from None
