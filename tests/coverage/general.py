"""What a function may return besides the results that its comment lists: what the head of npu.h says, for whom and why."""

from __future__ import annotations

import functools

from tests.coverage.generated import called_functions
from tests.coverage.pairs import device_errors


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ENQUEUES = _names(
    """
    npu_free_async npu_malloc_async npu_memcpy_async npu_memcpy_2d_async npu_memset_async npu_stream_add_host_function
    npu_record_event npu_stream_wait_event npu_reset_event npu_record_notify npu_wait_notify
    npu_launch_kernel_async npu_launch_kernel_grid_async npu_submit_kernel npu_submit_kernel_sized
    npu_cmdlist_submit npu_graph_launch
    """
)
WAITS_OR_QUERIES = _names(
    """
    npu_synchronize_device npu_synchronize_context npu_wait_for_completion npu_wait_for_completion_timeout
    npu_synchronize_stream npu_synchronize_stream_timeout npu_query_stream npu_destroy_stream
    npu_synchronize_event npu_synchronize_event_timeout npu_query_event npu_event_elapsed_time npu_event_get_timestamp
    npu_memcpy npu_memcpy_2d npu_memcpy_peer npu_memset npu_free_sync npu_set_schedule
    """
)
CREATES = _names(
    """
    npu_malloc npu_malloc_async npu_malloc_host npu_host_register npu_map npu_create_stream npu_create_stream_with_priority
    npu_create_event npu_create_notify npu_ipc_get_mem_handle npu_ipc_open_mem_handle npu_ipc_get_event_handle npu_ipc_open_event_handle npu_load_blob npu_load_blob_mem npu_get_builtin_kernel
    npu_cmdlist_create npu_graph_instantiate
    """
)
FREES = _names("npu_ipc_close_mem_handle npu_free npu_free_sync npu_free_host npu_host_unregister npu_unmap npu_unload")
# "pageable copies, waits, queries and notifies cannot be captured" (npu_stream_begin_capture)
CANNOT_BE_CAPTURED = _names("npu_memcpy_async npu_memcpy_2d_async npu_record_notify npu_wait_notify")


@functools.cache
def general() -> dict[str, frozenset[str]]:
    """Return the functions that may have a result in general, by result."""
    everywhere = frozenset(function.name for function in called_functions())
    found = dict.fromkeys(("NOT_INITIALIZED", "NOT_PERMITTED", "OUT_OF_HOST_MEMORY"), everywhere)
    # under cuda and strict an error sticks to the context: who gives it work, waits, asks or makes something there gets it again
    found |= dict.fromkeys(device_errors(), ENQUEUES | WAITS_OR_QUERIES | CREATES)
    found["OUT_OF_RESOURCES"] = (
        ENQUEUES | CREATES
    )  # the stream's queue is full; what is made on first use finds none left
    found["OUT_OF_DEVICE_MEMORY"] = ENQUEUES | CREATES  # for commands, queues, kernels
    found["STALE_HANDLE"] = WAITS_OR_QUERIES  # another thread has broken the work off
    found["CAPTURE_UNSUPPORTED"] = WAITS_OR_QUERIES | FREES | CANNOT_BE_CAPTURED
    return found


def surprises(seen: set[tuple[str, str]], listed: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return the pairs (function, result) of `seen` that neither the function's comment nor the head lists."""
    return [
        (function, result)
        for function, result in sorted(seen)
        if result not in listed[function] and function not in general().get(result, ())
    ]
