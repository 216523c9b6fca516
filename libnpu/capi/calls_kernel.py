"""npu.h: blobs and what is known about their kernels. Arguments are as C passed them, handles and pointers as integers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import npu_abi
from npu_abi import C

from libnpu.capi.door import require
from libnpu.capi.handles import Kind
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal
from libnpu.errors import NpuError

if TYPE_CHECKING:
    from libnpu.runtime import Kernel, Module

HANDLE_BYTES = 8


def npu_load_blob(library: Library, blob: int, path: int) -> None:
    """Load a blob file into the current context and write its handle."""
    library.door.probe(blob, HANDLE_BYTES, "blob")
    require(path, "path")
    name = os.fsdecode(library.door.read_string(path, "path", "NPU_ERROR_FILE"))
    _load(library, blob, name)


def npu_load_blob_mem(library: Library, blob: int, data: int, size: int) -> None:
    """Load a blob from host memory and write its handle."""
    library.door.probe(blob, HANDLE_BYTES, "blob")
    require(data, "data")
    _load(library, blob, library.door.read(data, size))


def _load(library: Library, blob: int, source: str | bytearray) -> None:
    try:
        loaded = library.context().context.load(source)
    except NpuError as error:
        what = source if isinstance(source, str) else f"{len(source)} bytes in memory"
        library.of_thread.failed_load = f"{what} was not loaded\n{error}\n"
        raise
    library.give_handle(blob, Kind.BLOB, loaded, loaded.context, loaded.unload)


def npu_unload(library: Library, blob: int) -> None:
    """Unload a blob that nothing runs."""
    module = blob_of(library, blob)
    module.unload()
    library.handles.remove(Kind.BLOB, blob)
    for kernel in module.kernels.values():
        handle = library.handles.find(Kind.KERNEL, kernel)
        if handle:
            library.handles.remove(Kind.KERNEL, handle)


def npu_blob_get_log(library: Library, blob: int, text: int, capacity: int, needed: int) -> None:
    """Write what the loader says about a blob, or about the thread's last load that failed."""
    library.door.probe(needed, 8, "needed")
    found = _log(blob_of(library, blob)) if blob else getattr(library.of_thread, "failed_load", "")
    content = found.encode("utf-8", "replace") + b"\0"
    if text and capacity >= len(content):
        library.door.write(text, content)
    library.door.write_integer(needed, len(content), 8)
    if text and capacity < len(content):
        raise Refusal("NPU_ERROR_OUT_OF_RANGE", f"capacity is {capacity}, and the text has {len(content)} bytes")


def _log(module: Module) -> str:
    kind = "kernel library" if module.is_library else "compiled model"
    lines = [f"{module.name}: {kind} in {module.memory_bytes} bytes of device memory"]
    for kernel in module.kernels.values():
        params = ", ".join(f"{param.name}: {_kind(param.kind)}" for param in kernel.params)
        lines.append(f"kernel {kernel.name}({params}): {kernel.code_bytes} bytes of SHAVE code")
    return "".join(f"{line}\n" for line in lines)


def _kind(kind: int) -> str:
    return npu_abi.name_of("npu_arg_kind", kind).removeprefix("NPU_ARG_").lower()


def npu_get_kernel(library: Library, kernel: int, blob: int, name: int) -> None:
    """Write the handle of a blob's kernel; a second call gives the same one."""
    library.door.probe(kernel, HANDLE_BYTES, "kernel")
    module = blob_of(library, blob)
    known = tuple(module.kernels)
    if name:
        wanted = library.door.read_string(name, "name").decode("utf-8", "replace")
    elif len(known) == 1:
        wanted = known[0]
    else:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"name is NULL, and the blob has {len(known)} kernels")
    if wanted not in known:
        names = ", ".join(map(repr, known))
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"the blob has no kernel {wanted!r}; it has {names}")
    _write_kernel(library, kernel, module.kernels[wanted])


def npu_get_builtin_kernel(library: Library, kernel: int, name: int) -> None:
    """Write the handle of a kernel of the built-in library in the current context."""
    library.door.probe(kernel, HANDLE_BYTES, "kernel")
    require(name, "name")
    wanted = library.door.read_string(name, "name").decode("utf-8", "replace")
    _write_kernel(library, kernel, library.context().context.kernel(wanted))


def _write_kernel(library: Library, address: int, kernel: Kernel) -> None:
    handle = library.handles.find(Kind.KERNEL, kernel)
    if not handle:
        handle = library.handles.insert(Kind.KERNEL, kernel, kernel.module.context)
    library.door.write_integer(address, handle, HANDLE_BYTES)


def npu_get_kernel_info(library: Library, kernel: int, info: int) -> None:
    """Write what a kernel is."""
    found = library.door.new_struct("npu_kernel_info", info, "info")
    known = kernel_of(library, kernel)
    found.arg_count = len(known.params)
    found.code_bytes = known.code_bytes
    found.max_grid = known.max_grid
    found.cooperative = known.is_cooperative
    found.name = known.name.encode()[:127]
    library.door.write(info, npu_abi.pack(found))


def npu_get_num_args(library: Library, kernel: int, count: int) -> None:
    """Write how many arguments a kernel takes."""
    library.door.probe(count, 4, "count")
    library.door.write_integer(count, len(kernel_of(library, kernel).params), 4)


def npu_get_arg_info(library: Library, kernel: int, index: int, info: int) -> None:
    """Write what an argument is."""
    found = library.door.new_struct("npu_arg_info", info, "info")
    params = kernel_of(library, kernel).params
    if index >= len(params):
        raise Refusal("NPU_ERROR_ARG_INDEX", f"argument {index} of {len(params)}")
    param = params[index]
    found.direction = param.direction
    found.dtype = param.dtype
    found.rank = len(param.shape)
    found.dims = [*(max(dim, 0) for dim in param.shape), *[0] * (C.NPU_MAX_DIMS - len(param.shape))]
    found.size_bytes = param.size_bytes
    found.name = param.name.encode()[:127]
    found.kind = param.kind
    library.door.write(info, npu_abi.pack(found))


def blob_of(library: Library, handle: int) -> Module:
    """Return the module behind a handle."""
    return cast("Module", library.handles.get(Kind.BLOB, handle))


def kernel_of(library: Library, handle: int) -> Kernel:
    """Return the kernel behind a handle."""
    return cast("Kernel", library.handles.get(Kind.KERNEL, handle))
