"""npu.h: blobs, kernels, launches. Arguments are as C passed them, handles and pointers as integers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C

from libnpu.capi.door import require
from libnpu.capi.handles import Kind
from libnpu.capi.library import BlobEntry, Library
from libnpu.capi.refusal import Refusal

if TYPE_CHECKING:
    from libnpu.runtime import TensorInfo

ALIGNMENT = 64  # of launch arguments, bytes
ARG = npu_abi.codec("npu_arg", "kind", "reserved", "value")


def npu_load_blob(library: Library, blob: int, path: int) -> None:
    """Load a blob file onto the current device and write its handle."""
    require(blob, "blob")
    require(path, "path")
    name = os.fsdecode(library.door.read_string(path, "path"))
    _load(library, blob, name)


def npu_load_blob_mem(library: Library, blob: int, data: int, size: int) -> None:
    """Load a blob from host memory and write its handle."""
    require(blob, "blob")
    require(data, "data")
    _load(library, blob, library.door.read(data, size))


def _load(library: Library, blob: int, source: str | bytearray) -> None:
    device = library.device()
    loaded = device.device.load(source)
    entry = BlobEntry(device, loaded, [*loaded.inputs, *loaded.outputs])
    handle = library.handles.insert(Kind.BLOB, entry)
    try:
        library.door.write_integer(blob, handle, 8)
    except Refusal:
        library.handles.remove(Kind.BLOB, handle)
        entry.blob.unload()
        raise


def _blob(library: Library, handle: int) -> BlobEntry:
    found = library.handles.get(Kind.BLOB, handle)
    assert isinstance(found, BlobEntry)
    return found


def _kernel(library: Library, handle: int) -> BlobEntry:
    found = library.handles.get(Kind.KERNEL, handle)
    assert isinstance(found, BlobEntry)
    return found


def npu_unload(library: Library, blob: int) -> None:
    """Unload a blob that nothing runs."""
    entry = _blob(library, blob)
    entry.blob.unload()
    library.handles.remove(Kind.BLOB, blob)
    if entry.kernel:
        library.handles.remove(Kind.KERNEL, entry.kernel)


def npu_get_kernel(library: Library, kernel: int, blob: int, name: int) -> None:
    """Write the handle of a blob's kernel; a second call gives the same one."""
    require(kernel, "kernel")
    entry = _blob(library, blob)
    if name:
        wanted = library.door.read_string(name, "name").decode("utf-8", "replace")
        if wanted != entry.blob.name:
            raise Refusal("NPU_ERROR_INVALID_VALUE", f"the blob has no kernel {wanted!r}; it has {entry.blob.name!r}")
    if not entry.kernel:
        entry.kernel = library.handles.insert(Kind.KERNEL, entry)
    library.door.write_integer(kernel, entry.kernel, 8)


def npu_get_num_args(library: Library, kernel: int, count: int) -> None:
    """Write how many arguments a kernel takes."""
    require(count, "count")
    library.door.write_integer(count, len(_kernel(library, kernel).tensors), 4)


def npu_get_arg_info(library: Library, kernel: int, index: int, info: int) -> None:
    """Write what an argument is."""
    found = library.door.new_struct("npu_arg_info", info, "info")
    entry = _kernel(library, kernel)
    if index >= len(entry.tensors):
        raise Refusal("NPU_ERROR_ARG_INDEX", f"argument {index} of {len(entry.tensors)}")
    tensor = entry.tensors[index]
    found.direction = C.NPU_ARG_IN if index < len(entry.blob.inputs) else C.NPU_ARG_OUT
    found.dtype = tensor.dtype
    found.rank = len(tensor.shape)
    found.dims = [*tensor.shape, *[0] * (C.NPU_MAX_DIMS - len(tensor.shape))]
    found.size_bytes = tensor.size_bytes
    found.name = tensor.name.encode()[:127]
    library.door.write(info, npu_abi.pack(found))


def npu_launch_kernel_async(library: Library, kernel: int, args: int, count: int, stream: int) -> None:
    """Enqueue a kernel; its arguments are copied here."""
    entry = _kernel(library, kernel)
    queue = library.stream(stream)
    if queue.device is not entry.device:
        raise Refusal(
            "NPU_ERROR_WRONG_CONTEXT",
            f"the kernel is on device {entry.device.index}, the stream on device {queue.device.index}",
        )
    if count != len(entry.tensors):
        raise Refusal(
            "NPU_ERROR_ARG_COUNT", f"{count} arguments for {entry.blob.name!r}, which takes {len(entry.tensors)}"
        )
    if count:
        require(args, "args")
    arguments = ARG.iter_unpack(library.door.read(args, count * ARG.size))
    addresses = [_address(library, entry, i, *argument) for i, argument in enumerate(arguments)]
    queue.enqueued(queue.stream.launch_addresses(entry.blob, addresses), library.call_site())


def _address(library: Library, entry: BlobEntry, index: int, kind: int, reserved: int, value: int) -> int:
    """Check the fields of one `struct npu_arg` against the kernel's tensor; return the device address."""
    tensor = entry.tensors[index]
    if kind != C.NPU_ARG_BUFFER:
        raise _refuse("NPU_ERROR_ARG_KIND", index, tensor, f"has kind {kind}, and the kernel takes NPU_ARG_BUFFER")
    if reserved:
        raise _refuse("NPU_ERROR_INVALID_VALUE", index, tensor, f"has reserved {reserved}, not 0")
    allocation = library.allocations.find(entry.device.index, value, unknown="NPU_ERROR_ARG_KIND")
    left = allocation.end - value
    if left < tensor.size_bytes:
        raise _refuse(
            "NPU_ERROR_ARG_SIZE", index, tensor, f"needs {tensor.size_bytes} bytes, and {left} are left at {value:#x}"
        )
    if value % ALIGNMENT:
        raise _refuse("NPU_ERROR_MISALIGNED", index, tensor, f"is at {value:#x}, not a multiple of {ALIGNMENT}")
    return allocation.device_address(value)


def _refuse(result: str, index: int, tensor: TensorInfo, problem: str) -> Refusal:
    return Refusal(result, f"argument {index} ({tensor.name!r}) {problem}")
