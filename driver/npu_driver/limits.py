"""What one user may have of what all users share: contexts and doorbells.

A user who is not privileged has at most half of them, so that none leaves nothing to the others; the module parameters max_contexts and
max_doorbells set another number, for everybody.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from npu_abi import C

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel
    from npu_driver.process import Process


def check_contexts(kernel: Kernel) -> None:
    """EMFILE when the caller's user has all contexts that are for one."""
    user, given = kernel.current, kernel.params.max_contexts
    limit, name = _limit(user, given, "max_contexts", "NPU_USER_CONTEXTS")
    if limit and len(_contexts(kernel, user)) >= limit:
        raise KernelError(errno.EMFILE, f"user {user.uid} has {limit} contexts; {name} is {limit}")


def check_doorbells(kernel: Kernel, context: Context) -> None:
    """EBUSY when the user of `context` has all doorbells that are for one."""
    user, given = context.owner, kernel.params.max_doorbells
    limit, name = _limit(user, given, "max_doorbells", "NPU_USER_DOORBELLS")
    if not limit:
        return
    queues = [queue for own in _contexts(kernel, user) for queue in own.queues.values()]
    if sum(queue.registered for queue in queues) >= limit:
        raise KernelError(errno.EBUSY, f"user {user.uid} has {limit} doorbells; {name} is {limit}")


def _limit(user: Process, given: int, parameter: str, share: str) -> tuple[int, str]:
    """Return how many a user may have, 0 for as many as there are, and the name of that limit."""
    if given:
        return given, parameter
    return (0, "") if user.privileged else (int(getattr(C, share)), share)


def _contexts(kernel: Kernel, user: Process) -> list[Context]:
    return [context for context in kernel.contexts.values() if context.owner.uid == user.uid]
