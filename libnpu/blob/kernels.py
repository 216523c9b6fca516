"""The kernel table of a library: struct npu_kernel_table, npu_kernel_desc[] and npu_kernel_param[], both directions.

`kernel_library` makes the file of a library from programs; names and parameters are whatever their author chose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

import npu_abi
from npu_abi import C

from libnpu.blob import elf
from libnpu.blob.image import BlobError, BlobImage, Kernel, KernelParam
from libnpu.blob.netdesc import pack_name, u32, unpack_name

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

LIBRARY_PROFILE = "any"
TEXT_ALIGNMENT = 64  # of a program in .text.shave
MAX_PARAMS = C.NPU_MAX_KERNEL_ARGS_BYTES // 8
_KINDS = (C.NPU_ARG_BUFFER, C.NPU_ARG_INT, C.NPU_ARG_FLOAT)
_DIRECTIONS = (C.NPU_ARG_IN, C.NPU_ARG_OUT, C.NPU_ARG_INOUT)
_SCALAR_DTYPES = {C.NPU_ARG_INT: C.NPU_DT_I64, C.NPU_ARG_FLOAT: C.NPU_DT_F32}


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel on its way into a library. `text` is its program, as assembly or assembled."""

    text: str | bytes
    params: tuple[KernelParam, ...]
    flags: int = 0
    max_grid: int = 0


def kernel_library(name: str, kernels: Mapping[str, KernelSource]) -> bytes:
    """Return the file of a library of `kernels` by name. Raises BlobError naming the kernel that is wrong, TypeError for what
    has another type than its place asks for.

    >>> out = KernelParam("out", C.NPU_ARG_BUFFER, C.NPU_ARG_OUT, C.NPU_DT_I64)
    >>> text = "ld.i64 r6, r1, 0\\nst.i64 r2, r6, 0\\nhalt"
    >>> kernel_library("mine", {"store_block": KernelSource(text, (out,), max_grid=1)})[:4]
    b'\\x7fELF'
    """
    from npu_model import shave_isa

    from libnpu.blob.writer import write

    _check_types(name, kernels)
    nop = shave_isa.assemble("nop")
    code = bytearray()
    found = []
    for kernel, source in kernels.items():
        try:
            program = shave_isa.assemble(source.text) if isinstance(source.text, str) else source.text
        except shave_isa.AssemblyError as error:
            raise BlobError(f"kernel {kernel!r}: {error}") from None
        if not program:
            raise BlobError(f"kernel {kernel!r}: no instruction in its text; expected at least 1")
        code += nop * (-len(code) % TEXT_ALIGNMENT // len(nop))
        found.append(Kernel(kernel, tuple(source.params), len(code), len(program), source.flags, source.max_grid))
        code += program
    if not found:
        raise BlobError(f"library {name!r}: no kernels; expected at least 1")
    return write(BlobImage(name, LIBRARY_PROFILE, 0, 0, 0, [], [], {}, text=bytes(code), kernels=found))


def _check_types(name: object, kernels: object) -> None:
    """Raise TypeError unless the arguments of `kernel_library` are of the types that it says."""
    _expect(name, str, "the name of a library", "a str")
    _expect(kernels, Mapping, "kernels", "a mapping of names to KernelSource")
    for kernel, source in kernels.items():  # type: ignore[attr-defined]
        _expect(kernel, str, "the name of a kernel", "a str")
        where = f"of kernel {kernel!r}"
        _expect(source, KernelSource, f"kernel {kernel!r}", "a KernelSource")
        _expect(source.text, (str, bytes, bytearray), f"the text {where}", "a str or bytes")
        _expect(source.params, (tuple, list), f"the params {where}", "a tuple of KernelParam")
        _expect(source.flags, SupportsIndex, f"the flags {where}", "an integer")
        _expect(source.max_grid, SupportsIndex, f"max_grid {where}", "an integer")
        for param in source.params:
            _expect(param, KernelParam, f"a parameter {where}", "a KernelParam")
            _expect(param.name, str, f"the name of a parameter {where}", "a str")


def _expect(value: object, kind: type | tuple[type, ...], what: str, wanted: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be {wanted}, not {type(value).__name__}")


def check_library(sections: Collection[str], profile: str, resources: tuple[int, int, int]) -> None:
    """Raise BlobError when a kernel library has anything but kernels. `resources`: tiles, CMX bytes, barriers."""
    extra = [name for name in sections if name not in elf.LIBRARY]
    if extra:
        raise BlobError(f"{extra[0]}: a kernel library has none; expected {', '.join(elf.LIBRARY)} only")
    if profile != LIBRARY_PROFILE:
        raise BlobError(f"{elf.PLATFORM}: profile {profile!r}; expected {LIBRARY_PROFILE!r} of a kernel library")
    if any(resources):
        raise BlobError(f"{elf.PLATFORM}: tiles, CMX bytes, barriers are {resources}; expected 0 of a kernel library")


def pack_kernels(kernels: Sequence[Kernel], text_bytes: int) -> bytes:
    """Return the content of .npu.kernels. Raises BlobError when `unpack_kernels` would."""
    _check(kernels, text_bytes)
    params = [param for kernel in kernels for param in kernel.params]
    parts = [npu_abi.pack(npu_abi.new("npu_kernel_table", kernel_count=len(kernels), param_count=len(params)))]
    first = 0
    for kernel in kernels:
        descriptor = npu_abi.new(
            "npu_kernel_desc",
            name=pack_name(elf.KERNELS, "kernel name", kernel.name),
            text_offset=kernel.text_offset,
            code_bytes=kernel.code_bytes,
            param_first=first,
            param_count=len(kernel.params),
            flags=kernel.flags,
            max_grid=kernel.max_grid,
        )
        parts.append(npu_abi.pack(descriptor))
        first += len(kernel.params)
    for param in params:
        name = pack_name(elf.KERNELS, "parameter name", param.name)
        record = npu_abi.new(
            "npu_kernel_param", name=name, kind=param.kind, direction=param.direction, dtype=param.dtype
        )
        parts.append(npu_abi.pack(record))
    return b"".join(parts)


def unpack_kernels(data: bytes, text_bytes: int) -> list[Kernel]:
    """Return the kernels of a table. Raises BlobError on a size, a range, a name, a kind or a reserved field that is wrong."""
    table_bytes, desc_bytes, param_bytes = map(
        npu_abi.sizeof, ("npu_kernel_table", "npu_kernel_desc", "npu_kernel_param")
    )
    if len(data) < table_bytes:
        raise BlobError(f"{elf.KERNELS}: {len(data)} bytes; expected at least {table_bytes}")
    table = npu_abi.view("npu_kernel_table", data)
    _expect_zero("npu_kernel_table", 0, [*table.reserved])
    kernel_count, param_count = int(table.kernel_count), int(table.param_count)
    if not 1 <= kernel_count <= elf.MAX_KERNELS:
        raise BlobError(f"{elf.KERNELS}: kernel_count is {kernel_count}; expected 1 to {elf.MAX_KERNELS}")
    expected = table_bytes + kernel_count * desc_bytes + param_count * param_bytes
    if len(data) != expected:
        raise BlobError(f"{elf.KERNELS}: {len(data)} bytes; expected {expected}")
    params = []
    for at in range(table_bytes + kernel_count * desc_bytes, expected, param_bytes):
        record = npu_abi.view("npu_kernel_param", data, at)
        _expect_zero("npu_kernel_param", at, [record.reserved])
        name = unpack_name(elf.KERNELS, at, data[at : at + C.NPU_NAME_BYTES])
        params.append(KernelParam(name, int(record.kind), int(record.direction), int(record.dtype)))
    kernels = []
    first = 0
    for at in range(table_bytes, table_bytes + kernel_count * desc_bytes, desc_bytes):
        record = npu_abi.view("npu_kernel_desc", data, at)
        _expect_zero("npu_kernel_desc", at, [*record.reserved])
        name = unpack_name(elf.KERNELS, at, data[at : at + C.NPU_NAME_BYTES])
        count = int(record.param_count)
        if record.param_first != first or first + count > param_count:
            raise BlobError(
                f"{elf.KERNELS}+{at:#x}: kernel {name!r} has {count} parameters from {record.param_first}; "
                f"expected them from {first}, within {param_count}"
            )
        own = tuple(params[first : first + count])
        first += count
        kernels.append(
            Kernel(name, own, int(record.text_offset), int(record.code_bytes), int(record.flags), int(record.max_grid))
        )
    if first != param_count:
        raise BlobError(f"{elf.KERNELS}: param_count is {param_count}; the kernels have {first} parameters")
    _check(kernels, text_bytes)
    return kernels


def _expect_zero(struct: str, at: int, reserved: list[int]) -> None:
    if any(reserved):
        place = at + npu_abi.offsetof(struct, "reserved")
        raise BlobError(f"{elf.KERNELS}+{place:#x}: reserved field is {reserved}; expected 0")


def _check(kernels: Sequence[Kernel], text_bytes: int) -> None:
    """Raise BlobError unless names are unique, programs lie in the text without overlap, and every field is in its range."""
    if len(kernels) > elf.MAX_KERNELS:
        raise BlobError(f"{elf.KERNELS}: {len(kernels)} kernels; expected at most {elf.MAX_KERNELS}")
    seen: set[str] = set()
    end = 0
    for kernel in kernels:
        where = f"{elf.KERNELS}: kernel {kernel.name!r}"
        if kernel.name in seen:
            raise BlobError(f"{elf.KERNELS}: two kernels are named {kernel.name!r}")
        seen.add(kernel.name)
        start, size = kernel.text_offset, kernel.code_bytes
        if start % TEXT_ALIGNMENT or size % 16 or size <= 0 or start < end or start + size > text_bytes:
            raise BlobError(
                f"{where}: {size} bytes at {start:#x}; expected a multiple of 16 at a multiple of {TEXT_ALIGNMENT}, "
                f"behind {end:#x} and within the {text_bytes} bytes of {elf.TEXT}"
            )
        if size > C.NPU_MAX_KERNEL_CODE_BYTES:
            raise BlobError(f"{where}: {size} bytes of code; expected at most {C.NPU_MAX_KERNEL_CODE_BYTES}")
        end = start + size
        if kernel.flags & ~C.NPU_KERNEL_COOPERATIVE or kernel.flags < 0:
            raise BlobError(f"{where}: flags {kernel.flags:#x}; expected bits of enum npu_kernel_flag")
        if not 0 <= u32(elf.KERNELS, "max_grid", kernel.max_grid) <= C.NPU_MAX_KERNEL_GRID:
            raise BlobError(f"{where}: max_grid {kernel.max_grid}; expected 0 to {C.NPU_MAX_KERNEL_GRID}")
        if len(kernel.params) > MAX_PARAMS:
            raise BlobError(f"{where}: {len(kernel.params)} parameters; expected at most {MAX_PARAMS}")
        if len({param.name for param in kernel.params}) < len(kernel.params):
            raise BlobError(f"{where}: two parameters have one name")
        for param in kernel.params:
            _check_param(f"{where}: parameter {param.name!r}", param)


def _check_param(where: str, param: KernelParam) -> None:
    if param.kind not in _KINDS:
        raise BlobError(f"{where}: kind {param.kind}; expected an enum npu_arg_kind")
    if param.direction not in _DIRECTIONS:
        raise BlobError(f"{where}: direction {param.direction}; expected an enum npu_arg_direction")
    if param.kind in _SCALAR_DTYPES:
        expected = _SCALAR_DTYPES[param.kind]
        if param.direction != C.NPU_ARG_IN or param.dtype != expected:
            raise BlobError(
                f"{where}: direction {param.direction}, dtype {param.dtype}; expected {C.NPU_ARG_IN} and {expected} of a scalar"
            )
    elif not 0 <= param.dtype < C.NPU_DT_COUNT:
        raise BlobError(f"{where}: dtype {param.dtype}; expected an enum npu_dtype below {C.NPU_DT_COUNT}")
