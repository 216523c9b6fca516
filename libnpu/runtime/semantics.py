"""The few rules in which documented runtimes differ, and three sets of them: `libnpu.open(..., semantics="cuda")`.

`ascend` and `cuda` do what these vendors document for their runtimes, and where no document says it what is marked
`chosen`. `strict` refuses calls whose outcome differs between the two, as far as one call shows it: it knows no legacy
default stream, and does not see a missing event. Everything else is the same under all three.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import instance_of


class InFlight(enum.Enum):
    """What becomes of an object that is given up while work that uses it is in flight."""

    KEEP = enum.auto()  # the call returns at once; memory or queue goes when the work has ended
    WAIT = enum.auto()  # the call waits for the work
    REFUSE = enum.auto()  # IN_USE


class Pageable(enum.Enum):
    """What an asynchronous copy does with host memory that is not pinned."""

    COMPLETE = enum.auto()  # it waits for its stream and is complete on return
    STAGED = enum.auto()  # to the device: returns when the bytes are staged; from the device: complete on return
    REFUSE = enum.auto()  # NOT_PERMITTED


@dataclass(frozen=True, slots=True)
class Semantics:
    """One set of rules."""

    name: str
    # An operation on the default stream waits for all blocking streams, and they wait for it.
    # cuda: CUDA Runtime API, "Stream synchronization behavior", legacy default stream. ascend: aclrtCreateStream and
    # its neighbours document one default stream per context; that there is no such rule is chosen.
    legacy_default_stream: bool
    # Wait for, query or synchronise with an event that was never recorded: NOT_RECORDED, instead of success.
    # cuda: cudaStreamWaitEvent, cudaEventQuery: an empty set of work. ascend: aclrtQueryEventStatus: COMPLETE.
    # strict: as XRT's HIP layer, hipStreamWaitEvent, "Event passed is not recorded".
    unrecorded_event_is_error: bool
    # Free memory that work in flight uses. ascend: aclrtFree: immediate, without synchronisation. cuda: cudaFree
    # synchronises across all streams.
    free: InFlight
    # Free NULL. cuda: cudaFree: no operation. ascend: aclrtFree: an error.
    free_null: bool
    # Allocate 0 bytes. cuda: cudaMalloc succeeds. ascend: aclrtMalloc: size 0 is illegal.
    empty_allocation: bool
    # ascend: aclrtMemcpyAsync: pageable memory makes it return after the copy is complete. cuda: "API synchronization
    # behavior": pageable memory to the device is staged first.
    pageable: Pageable
    # After an error with which the device has ended an operation every call of the context returns it again (which: npu.h,
    # "the device's errors"). cuda: cudaErrorIllegalAddress: "the process is in an inconsistent state". ascend: a
    # synchronising call reports it; that it does so once is chosen.
    sticky_errors: bool
    # A priority out of range. cuda: cudaStreamCreateWithPriority clamps it. That ascend refuses it is chosen.
    clamp_priority: bool
    # Destroy a stream with work in flight. cuda: cudaStreamDestroy returns at once, and the work drains.
    # That ascend waits for the tasks of the stream is chosen.
    destroy_stream: InFlight


ASCEND = Semantics(
    name="ascend",
    legacy_default_stream=False,
    unrecorded_event_is_error=False,
    free=InFlight.KEEP,
    free_null=False,
    empty_allocation=False,
    pageable=Pageable.COMPLETE,
    sticky_errors=False,
    clamp_priority=False,
    destroy_stream=InFlight.WAIT,
)
CUDA = Semantics(
    name="cuda",
    legacy_default_stream=True,
    unrecorded_event_is_error=False,
    free=InFlight.WAIT,
    free_null=True,
    empty_allocation=True,
    pageable=Pageable.STAGED,
    sticky_errors=True,
    clamp_priority=True,
    destroy_stream=InFlight.KEEP,
)
STRICT = Semantics(
    name="strict",
    legacy_default_stream=False,
    unrecorded_event_is_error=True,
    free=InFlight.REFUSE,
    free_null=False,
    empty_allocation=False,
    pageable=Pageable.REFUSE,
    sticky_errors=True,
    clamp_priority=False,
    destroy_stream=InFlight.REFUSE,
)
PROFILES = {rules.name: rules for rules in (ASCEND, CUDA, STRICT)}


def semantics_of(name: str) -> Semantics:
    """Return the set of rules called `name`. Raises INVALID_VALUE when there is none."""
    if instance_of(name, str, "semantics") not in PROFILES:
        known = ", ".join(map(repr, PROFILES))
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"semantics {name!r}; there are {known}")
    return PROFILES[name]
