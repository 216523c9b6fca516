"""Buffer objects in other contexts: BO_EXPORT names one by a token, BO_IMPORT maps its memory once more.

A token is a number that nobody guesses: who has it was given it. It holds until the exporter frees the object; the memory lives
as long as one context has it. Each context maps it for itself, at an address of its own, with the access of the object's flags.
"""

from __future__ import annotations

import errno
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from npu_abi import C

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.bo import BufferObject
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel


class Exports:
    """The tokens of one device. `key`, secret, is what makes them hard to guess; without one they are the same in every run."""

    __slots__ = ("_by_token", "_count", "_room", "key")

    def __init__(self) -> None:
        self.key = b""
        self._by_token: dict[int, tuple[Context, BufferObject]] = {}
        self._count = 0
        self._room = 64  # with so many tokens, those of freed objects are looked for

    def token_of(self, context: Context, bo: BufferObject) -> int:
        """Return the token of an object, the same each time."""
        if bo.token:
            return bo.token
        if len(self._by_token) >= self._room:
            self._by_token = {token: entry for token, entry in self._by_token.items() if _holds(*entry)}
            self._room = 2 * len(self._by_token) + 64
        token = 0
        while not token or token in self._by_token:
            self._count += 1
            digest = blake2b(self._count.to_bytes(8, "little"), digest_size=8, key=self.key).digest()
            token = int.from_bytes(digest, "little")
        self._by_token[token] = context, bo
        bo.token = token
        return token

    def find(self, token: int) -> BufferObject:
        """Return the object of a token. ENOENT when there is none, or its owner has freed it."""
        owner, bo = self._by_token.get(token, (None, None))
        if owner is None or bo is None or not _holds(owner, bo):
            raise KernelError(errno.ENOENT, f"no exported buffer object has token {token:#x}")
        return bo


def _holds(owner: Context, bo: BufferObject) -> bool:
    return owner.objects.get(bo.handle) is bo


def bo_export(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Name an object by a token. ENOENT for an unknown handle, EOPNOTSUPP for one that BO_CREATE has not made with
    NPU_BO_SHAREABLE, EINVAL when the output is not zero.
    """
    if arg.token:
        raise KernelError(errno.EINVAL, "token is an output and must be zero")
    bo = context.object(arg.handle)
    context.check_usable()
    if not bo.owned:
        raise KernelError(errno.EOPNOTSUPP, "export of a buffer object that was imported or is of user memory")
    if not bo.flags & C.NPU_BO_SHAREABLE:
        raise KernelError(errno.EOPNOTSUPP, f"export of buffer object {bo.handle}, made without NPU_BO_SHAREABLE")
    arg.token = kernel.exports.token_of(context, bo)
    return 0, []


def bo_import(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Map the object of a token in this context. ENOENT, ENOSPC, ENOMEM for page tables; EINVAL when an output is not zero."""
    if arg.handle or arg.flags or arg.npu_va or arg.size:
        raise KernelError(errno.EINVAL, "handle, flags, npu_va and size are outputs and must be zero")
    context.check_usable()
    source = kernel.exports.find(arg.token)
    bo = context.create_object(source.size, source.flags, source=source)
    arg.handle, arg.flags, arg.npu_va, arg.size = bo.handle, bo.flags, bo.va, bo.size
    return 0, []
