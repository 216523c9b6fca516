"""Handlers: the kernel module and its parameters. They need no open file."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from npu_abi import C

from npu_driver.error import KernelError
from npu_driver.params import parse

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel


def load_bytes(arg: Any) -> int:
    """Return how many bytes MODULE_LOAD reads: none when it will be refused."""
    return int(arg.params_bytes) if arg.params_bytes <= C.NPU_MAX_MODULE_PARAMS_BYTES else 0


def module_load(kernel: Kernel, context: Context | None, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Load the driver anew with the parameters given; the next open boots the device. EPERM for who may not, EBUSY while a file is open,
    EINVAL for a parameter.
    """
    _check(arg)
    if not kernel.current.privileged:
        raise KernelError(errno.EPERM, f"user {kernel.current.uid} may not load the module")
    if kernel.files:
        raise KernelError(errno.EBUSY, f"{len(kernel.files)} files of the device are open")
    text = bytes(segments[0]) if arg.params_bytes else b""
    kernel.load(parse(text.decode("latin-1")))
    return 0, []


def module_params(kernel: Kernel, context: Context | None, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Write the parameters in force, one "name=value" a line; params_bytes 0 tells how many bytes they have. EINVAL, ENOSPC for a buffer
    that is too small.
    """
    _check(arg)
    data = kernel.params.text().encode("ascii")
    if arg.params_bytes and arg.params_bytes < len(data):
        raise KernelError(errno.ENOSPC, f"the parameters have {len(data)} bytes, there is room for {arg.params_bytes}")
    room = arg.params_bytes
    arg.used_bytes = len(data)
    return 0, [data if room else b""]


def _check(arg: Any) -> None:
    if arg.params_bytes > C.NPU_MAX_MODULE_PARAMS_BYTES:
        limit = C.NPU_MAX_MODULE_PARAMS_BYTES
        raise KernelError(
            errno.EINVAL, f"{arg.params_bytes} bytes of parameters; NPU_MAX_MODULE_PARAMS_BYTES is {limit}"
        )
    if arg.used_bytes:
        raise KernelError(errno.EINVAL, "used_bytes is an output and must be zero")
