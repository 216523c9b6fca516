"""npu.h: launches, and waiting for all work. Arguments are as C passed them, handles and pointers as integers."""

from __future__ import annotations

import struct

import npu_abi
from npu_abi import C

from libnpu.capi.arguments import read_arguments, values_of
from libnpu.capi.calls_kernel import kernel_of
from libnpu.capi.calls_stream import timeout_of
from libnpu.capi.door import require
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal

KERNEL_PARAMS = struct.Struct("<3Q4I")  # struct kernel_params
CONV2D_PARAMS = struct.Struct("<4Q12I")  # struct npu_conv2d_params
assert KERNEL_PARAMS.size == npu_abi.sizeof("kernel_params")
assert CONV2D_PARAMS.size == npu_abi.sizeof("npu_conv2d_params")
MAX_STRUCTURE_BYTES = max(KERNEL_PARAMS.size, CONV2D_PARAMS.size)
VERSION = int(C.NPU_VERSION_MAJOR) << 16 | int(C.NPU_VERSION_MINOR)


def npu_launch_kernel_async(library: Library, kernel: int, args: int, count: int, stream: int) -> None:
    """Enqueue a kernel in the default grid; its arguments are copied here."""
    npu_launch_kernel_grid_async(library, kernel, 0, args, count, stream)


def npu_launch_kernel_grid_async(library: Library, kernel: int, grid: int, args: int, count: int, stream: int) -> None:
    """Enqueue a kernel in `grid` blocks; its arguments are copied here."""
    found = kernel_of(library, kernel)
    queue = library.stream(stream)
    if queue.context is not found.module.context:
        raise Refusal("NPU_ERROR_WRONG_CONTEXT", "the kernel and the stream are of two contexts")
    values = read_arguments(library, found, args, count)
    found.launch_in(queue, values, grid or None)


def npu_submit_kernel(library: Library, name: int, params: int) -> None:
    """Enqueue a built-in kernel with kernel_params_t."""
    npu_submit_kernel_sized(library, name, params, KERNEL_PARAMS.size, VERSION)


def npu_submit_kernel_sized(library: Library, name: int, params: int, params_bytes: int, version: int) -> None:
    """Enqueue a built-in kernel with one of the structures of npu.h on the default stream."""
    require(name, "name")
    if version > VERSION:
        text = f"{version >> 16}.{version & 0xFFFF}"
        raise Refusal("NPU_ERROR_VERSION_MISMATCH", f"the structure is of npu.h {text}, newer than the library's")
    wanted = library.door.read_string(name, "name").decode("utf-8", "replace")
    context = library.context().context
    kernel = context.kernel(wanted)
    require(params, "params")
    numbers = _numbers(wanted, params_bytes, library.door.read(params, min(params_bytes, MAX_STRUCTURE_BYTES)))
    kernel.launch(context.default_stream, *values_of(library, kernel, numbers))


def _numbers(name: str, size: int, content: bytearray) -> tuple[int | float, ...]:
    """Return the kernel's arguments that a structure of `size` bytes stands for, addresses as C has them."""
    from libnpu.kernels.params import KernelArgumentError, from_conv2d_params, from_kernel_params

    try:
        if size == KERNEL_PARAMS.size:
            return from_kernel_params(name, *KERNEL_PARAMS.unpack(content))
        if size == CONV2D_PARAMS.size:
            if name.partition(".")[0] != "conv2d":
                raise KernelArgumentError(f"{name}: does not take npu_conv2d_params_t")
            *addresses, relu = CONV2D_PARAMS.unpack(content)
            if relu > 1:
                raise KernelArgumentError(f"{name}: relu is {relu}; expected 0 or 1")
            return from_conv2d_params(tuple(addresses[:4]), addresses[4:], relu)
    except KernelArgumentError as error:
        raise Refusal("NPU_ERROR_INVALID_VALUE", str(error)) from None
    raise Refusal("NPU_ERROR_INVALID_SIZE", f"params_bytes is {size}, the size of none of the structures")


def npu_wait_for_completion(library: Library) -> None:
    """Wait for all work of the current context."""
    library.context().context.synchronize()


def npu_wait_for_completion_timeout(library: Library, timeout_ns: int) -> None:
    """Wait for all work of the current context, for at most `timeout_ns`."""
    library.context().context.synchronize(timeout_of(timeout_ns))
