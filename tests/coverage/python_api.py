"""The counterparts of npu.h in Python, and why some results of C have none there.

`names` are dotted from `libnpu`. Where functions of C share one, `when` says by the call's arguments which of them it stands for.
A reason stands for a result that no call in Python can have; test_coverage.py fails when one of them comes all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Reasons, with the results that they take away from each function below.
RETURNED = "what C writes to an address, Python returns: there is no address that could be wrong"
OBJECT = "objects are passed, not numbers: a handle or address cannot be made up"
NO_NULL = "None where an object belongs is a TypeError of Python, before the library is asked"
NO_SIZE_FIELD = "there is no structure that says its own size"
NO_FLAGS = "options are keyword arguments: there are no flags with undefined bits"
TWICE = "ending a thing twice is allowed in Python, as closing a file is"
KNOWS_CONTEXT = "a method of the object itself: it knows its context"
NOTHING_KEPT = "errors are raised: no last error is kept"
NO_CURRENT = "there is no current device or context: calls are methods of the one that is meant"
ATTRIBUTE = "a plain attribute: reading it calls nothing that could fail or be recorded"
OPENED = "a device is there once it is opened: there is no number that could be wrong"
WHOLE = "it sets all of the memory that it is given, and a part of memory cannot leave its allocation"
DROPPED = "errors of the work that `close` waits for are dropped; `synchronize` is for those who want them"
TWO_CALLS = "two calls in Python: Context.synchronize, then Buffer.free"
AT_OPEN = "chosen by `libnpu.open`, so never too late"
NO_HEADER = "no header was compiled into a program in Python"
IMPORT = "a library that cannot start fails to be imported"
TYPED = "structures of parameters are C's: a kernel's arguments are those of the call"
IS_MEMORY = "only pinned memory and mappings have the method"
NO_CAPACITY = "the result has the size that it needs: there is no capacity that could be too small"
IN_PYTHON_TYPE_ERROR = "a value of another type than the call takes is a TypeError or ValueError of Python"


When = Callable[[Mapping[str, Any]], bool]  # a predicate of a call's arguments, by the names of the parameters


@dataclass(frozen=True, slots=True)
class Python:
    """How a function of npu.h is called in Python: by `names`, when the arguments are such that `when` (None: always).

    `statuses`: what returned values stand for, when not SUCCESS.
    """

    names: tuple[str, ...]
    impossible: dict[str, str]
    when: When | None = None
    statuses: dict[Any, str] = field(default_factory=dict)


def _python(
    names: str, *reasons: tuple[str, str], when: When | None = None, statuses: dict[Any, str] | None = None
) -> Python:
    """`reasons`: (results, reason)."""
    impossible = {result: reason for results, reason in reasons for result in results.split()}
    return Python(tuple(names.split()), impossible, when, statuses or {})


def _given(*names: str) -> When:
    """One of these arguments is given, and is not None."""
    return lambda arguments: any(arguments.get(name) is not None for name in names)


def _without(*names: str) -> When:
    """None of these arguments is given."""
    return lambda arguments: not _given(*names)(arguments)


def _by_path(arguments: Mapping[str, Any]) -> bool:
    return isinstance(arguments["source"], (str, Path))


def _by_bytes(arguments: Mapping[str, Any]) -> bool:
    return not _by_path(arguments)


_OUT = ("NULL_POINTER BAD_ADDRESS", RETURNED)
_HANDLE = ("INVALID_HANDLE", OBJECT)
_QUERIED = {False: "NOT_READY"}
_COPY = ("NULL_POINTER BAD_ADDRESS", OBJECT)

PYTHON = {
    # errors, initialisation
    "npu_get_last_error": _python("", ("SUCCESS", NOTHING_KEPT)),
    "npu_peek_last_error": _python("", ("SUCCESS", NOTHING_KEPT)),
    "npu_get_last_error_detail": _python("", ("SUCCESS NULL_POINTER INVALID_SIZE BAD_ADDRESS", NOTHING_KEPT)),
    "npu_init": _python("open", ("VERSION_MISMATCH", NO_HEADER), ("NOT_INITIALIZED", IMPORT)),
    "npu_shutdown": _python("Device.close"),
    "npu_get_version": _python("", ("SUCCESS", ATTRIBUTE), _OUT),
    "npu_set_semantics": _python("open", ("BAD_STATE", AT_OPEN), when=_given("semantics")),
    "npu_get_semantics": _python("", ("SUCCESS", ATTRIBUTE), _OUT),
    # devices
    "npu_get_device_count": _python("", ("SUCCESS", OPENED), _OUT),
    "npu_set_device": _python("", ("SUCCESS INVALID_VALUE", NO_CURRENT)),
    "npu_get_device": _python("", ("SUCCESS", NO_CURRENT), _OUT),
    "npu_get_device_properties": _python(
        "Device.info", _OUT, ("INVALID_VALUE", OPENED), ("INVALID_SIZE", NO_SIZE_FIELD)
    ),
    "npu_device_get_attribute": _python("Device.info", _OUT, ("INVALID_VALUE", OPENED)),
    "npu_reset_device": _python("Device.reset"),
    "npu_synchronize_device": _python("Device.synchronize"),
    # contexts
    "npu_create_context": _python("Device.create_context", _OUT, ("INVALID_VALUE", NO_FLAGS)),
    "npu_destroy_context": _python("Context.destroy", _HANDLE, ("STALE_HANDLE", TWICE), ("INVALID_VALUE", NO_FLAGS)),
    "npu_set_current_context": _python("", ("SUCCESS INVALID_HANDLE STALE_HANDLE", NO_CURRENT)),
    "npu_get_current_context": _python("", ("SUCCESS", NO_CURRENT), _OUT),
    "npu_synchronize_context": _python("Context.synchronize", when=_without("timeout_ns")),
    # virtual time, schedules, threads
    "npu_get_time_ps": _python("Device.now_ps", _OUT),
    "npu_host_delay": _python("Device.host_delay"),
    "npu_get_host_times": _python("Device.host_times", _OUT),
    "npu_set_schedule": _python("Device.set_schedule"),
    "npu_team_begin": _python("Device.team"),
    "npu_team_enter": _python("runtime.host_team.Team.enter"),
    "npu_team_leave": _python("runtime.host_team.Team.leave"),
    "npu_team_end": _python("runtime.host_team.Team.end"),
    "npu_suspend_host_thread": _python("Device.suspend_host_thread"),
    "npu_is_reproducible": _python("Device.reproducible", _OUT),
    # device memory
    "npu_malloc": _python("Context.alloc Device.alloc", _OUT, ("INVALID_VALUE", NO_FLAGS)),
    "npu_free": _python(
        "Buffer.free",
        ("STALE_HANDLE", TWICE),
        ("INVALID_VALUE", "parts of memory have no `free`"),
        ("WRONG_CONTEXT", KNOWS_CONTEXT),
        ("NULL_POINTER", NO_NULL),
    ),
    "npu_free_sync": _python(
        "",
        ("SUCCESS STALE_HANDLE INVALID_VALUE WRONG_CONTEXT NULL_POINTER", TWO_CALLS),
        (
            "DEVICE_PAGE_FAULT KERNEL_FAULT BARRIER_DEADLOCK BARRIER_UNDERFLOW ABORTED_BY_PRIOR_ERROR HOST_FUNCTION",
            TWO_CALLS,
        ),
    ),
    "npu_malloc_async": _python("Context.alloc_async", _OUT, _HANDLE),
    "npu_free_async": _python(
        "Buffer.free_async",
        _HANDLE,
        ("INVALID_VALUE", "parts of memory have no `free_async`"),
        ("NULL_POINTER", NO_NULL),
    ),
    "npu_mem_get_info": _python("Device.memory_info", _OUT),
    "npu_pointer_get_attributes": _python("Context.find", _OUT, ("INVALID_SIZE", NO_SIZE_FIELD)),
    # host memory
    "npu_malloc_host": _python("Context.alloc_host", _OUT),
    "npu_free_host": _python(
        "HostBuffer.free",
        ("STALE_HANDLE", TWICE),
        ("INVALID_VALUE", "parts of memory have no `free`"),
        ("WRONG_CONTEXT", KNOWS_CONTEXT),
        ("NULL_POINTER", NO_NULL),
    ),
    "npu_host_register": _python(
        "Context.register", ("NULL_POINTER", "address 0 is one that is not mapped: BAD_ADDRESS")
    ),
    "npu_host_unregister": _python(
        "Registered.unregister", ("WRONG_CONTEXT", KNOWS_CONTEXT), ("NULL_POINTER", NO_NULL)
    ),
    "npu_host_get_device_pointer": _python(
        "", ("SUCCESS", ATTRIBUTE), _OUT, ("NOT_REGISTERED", IS_MEMORY), ("INVALID_VALUE", NO_FLAGS)
    ),
    "npu_map": _python("Buffer.map", _OUT, ("WRONG_CONTEXT", KNOWS_CONTEXT)),
    "npu_unmap": _python(
        "runtime.Mapping.unmap", ("INVALID_VALUE", "only a mapping has an `unmap`"), ("NULL_POINTER", NO_NULL)
    ),
    "npu_flush": _python("HostBuffer.flush runtime.Mapping.flush", ("NULL_POINTER NOT_REGISTERED", IS_MEMORY)),
    "npu_invalidate": _python(
        "HostBuffer.invalidate runtime.Mapping.invalidate", ("NULL_POINTER NOT_REGISTERED", IS_MEMORY)
    ),
    "npu_annotate_host_read": _python(
        "HostBuffer.annotate_read runtime.Mapping.annotate_read", ("NULL_POINTER NOT_REGISTERED", IS_MEMORY)
    ),
    "npu_annotate_host_write": _python(
        "HostBuffer.annotate_write runtime.Mapping.annotate_write", ("NULL_POINTER NOT_REGISTERED", IS_MEMORY)
    ),
    # copies
    "npu_memcpy": _python("Context.copy", _COPY),
    "npu_memset": _python("Context.fill", ("NULL_POINTER", OBJECT), ("OUT_OF_RANGE", WHOLE)),
    "npu_memcpy_2d": _python("Context.copy_2d", _COPY),
    "npu_memcpy_peer": _python("Context.copy_peer", ("NULL_POINTER", OBJECT)),
    # streams
    "npu_create_stream": _python(
        "Context.create_stream Device.create_stream", _OUT, when=_without("blocking", "priority")
    ),
    "npu_create_stream_with_priority": _python(
        "Context.create_stream Device.create_stream", _OUT, when=_given("blocking", "priority")
    ),
    "npu_destroy_stream": _python(
        "Stream.close",
        _HANDLE,
        ("STALE_HANDLE", TWICE),
        (
            "DEVICE_PAGE_FAULT KERNEL_FAULT BARRIER_DEADLOCK BARRIER_UNDERFLOW ABORTED_BY_PRIOR_ERROR HOST_FUNCTION",
            DROPPED,
        ),
    ),
    "npu_synchronize_stream": _python("Stream.synchronize", _HANDLE, when=_without("timeout_ns")),
    "npu_synchronize_stream_timeout": _python("Stream.synchronize", _HANDLE, when=_given("timeout_ns")),
    "npu_query_stream": _python("Stream.query", _HANDLE, statuses=_QUERIED),
    "npu_get_stream_id": _python("", ("SUCCESS STALE_HANDLE", ATTRIBUTE), _HANDLE, _OUT),
    "npu_stream_add_host_function": _python("Stream.add_host_function", _HANDLE, ("NULL_POINTER", NO_NULL)),
    "npu_stream_set_failure_mode": _python("Stream.set_failure_mode", _HANDLE, ("INVALID_VALUE", IN_PYTHON_TYPE_ERROR)),
    "npu_stream_abort": _python("Stream.abort", _HANDLE),
    "npu_memcpy_async": _python("Stream.copy", _HANDLE, _COPY),
    "npu_memcpy_2d_async": _python("Stream.copy_2d", _HANDLE, _COPY),
    "npu_memset_async": _python("Stream.fill", _HANDLE, ("NULL_POINTER", OBJECT), ("OUT_OF_RANGE", WHOLE)),
    # events and notifies
    "npu_create_event": _python("Context.create_event Device.create_event", _OUT),
    "npu_destroy_event": _python("Event.destroy", _HANDLE, ("STALE_HANDLE", TWICE)),
    "npu_record_event": _python("Event.record", _HANDLE),
    "npu_stream_wait_event": _python("Stream.wait_event", _HANDLE),
    "npu_ipc_get_mem_handle": _python("Buffer.ipc_handle", _OUT, ("WRONG_CONTEXT", KNOWS_CONTEXT)),
    "npu_ipc_open_mem_handle": _python("Context.open_ipc_memory Device.open_ipc_memory", _OUT),
    "npu_ipc_close_mem_handle": _python(
        "ImportedBuffer.close",
        ("NULL_POINTER", NO_NULL),
        ("STALE_HANDLE", TWICE),
        ("WRONG_CONTEXT", KNOWS_CONTEXT),
        ("INVALID_VALUE", "parts of memory, and other memory, have no `close`"),
    ),
    "npu_ipc_get_event_handle": _python("IpcEvent.ipc_handle", _OUT, _HANDLE),
    "npu_ipc_open_event_handle": _python("Context.open_ipc_event Device.open_ipc_event", _OUT),
    "npu_reset_event": _python(
        "Event.reset", _HANDLE, ("WRONG_CONTEXT", "it names no stream: it holds from the call on")
    ),
    "npu_synchronize_event": _python("Event.synchronize", _HANDLE, when=_without("timeout_ns")),
    "npu_synchronize_event_timeout": _python("Event.synchronize", _HANDLE, when=_given("timeout_ns")),
    "npu_query_event": _python("Event.query", _HANDLE, statuses=_QUERIED),
    "npu_event_elapsed_time": _python("Event.elapsed_ns", _HANDLE, _OUT),
    "npu_event_get_timestamp": _python("Event.timestamp_ps", _HANDLE, _OUT),
    "npu_create_notify": _python("Context.create_notify Device.create_notify", _OUT, ("INVALID_VALUE", NO_FLAGS)),
    "npu_destroy_notify": _python("Notify.destroy", _HANDLE, ("STALE_HANDLE", TWICE)),
    "npu_record_notify": _python("Notify.record", _HANDLE),
    "npu_wait_notify": _python("Notify.wait", _HANDLE),
    # blobs and kernels
    "npu_load_blob": _python("Context.load Device.load", _OUT, when=_by_path),
    "npu_load_blob_mem": _python("Context.load Device.load", _OUT, when=_by_bytes),
    "npu_unload": _python("Module.unload", _HANDLE, ("STALE_HANDLE", TWICE)),
    "npu_blob_get_log": _python("", ("SUCCESS STALE_HANDLE", ATTRIBUTE), _HANDLE, _OUT, ("OUT_OF_RANGE", NO_CAPACITY)),
    "npu_get_kernel": _python("Module.__getitem__", _HANDLE, _OUT),
    "npu_get_builtin_kernel": _python("Context.kernel Device.kernel", _OUT),
    "npu_get_kernel_info": _python(
        "", ("SUCCESS STALE_HANDLE", ATTRIBUTE), _HANDLE, _OUT, ("INVALID_SIZE", NO_SIZE_FIELD)
    ),
    "npu_get_num_args": _python("", ("SUCCESS STALE_HANDLE", ATTRIBUTE), _HANDLE, _OUT),
    "npu_get_arg_info": _python(
        "",
        ("SUCCESS STALE_HANDLE", ATTRIBUTE),
        _HANDLE,
        _OUT,
        ("INVALID_SIZE", NO_SIZE_FIELD),
        ("ARG_INDEX", "`Kernel.params` is a tuple: an IndexError of Python"),
    ),
    # launch
    "npu_launch_kernel_async": _python(
        "Kernel.launch", _HANDLE, ("NULL_POINTER BAD_ADDRESS", OBJECT), when=_without("grid")
    ),
    "npu_launch_kernel_grid_async": _python(
        "Kernel.launch", _HANDLE, ("NULL_POINTER BAD_ADDRESS", OBJECT), when=_given("grid")
    ),
    "npu_submit_kernel_sized": _python(
        "",
        ("SUCCESS NULL_POINTER BAD_ADDRESS INVALID_VALUE INVALID_SIZE VERSION_MISMATCH", TYPED),
        ("ARG_KIND ARG_SIZE MISALIGNED STALE_HANDLE WRONG_CONTEXT", TYPED),
    ),
    "npu_submit_kernel": _python(
        "",
        ("SUCCESS NULL_POINTER BAD_ADDRESS INVALID_VALUE", TYPED),
        ("ARG_KIND ARG_SIZE MISALIGNED STALE_HANDLE WRONG_CONTEXT", TYPED),
    ),
    "npu_wait_for_completion": _python("Context.synchronize", when=_without("timeout_ns")),
    "npu_wait_for_completion_timeout": _python("Context.synchronize", when=_given("timeout_ns")),
    # command lists
    "npu_cmdlist_create": _python("Context.create_command_list", _OUT, ("INVALID_VALUE", NO_FLAGS)),
    "npu_cmdlist_append_kernel": _python(
        "runtime.command_list.CommandList.append", _HANDLE, ("NULL_POINTER BAD_ADDRESS", OBJECT)
    ),
    "npu_cmdlist_append_memcpy": _python(
        "runtime.command_list.CommandList.append_copy", _HANDLE, ("NULL_POINTER", OBJECT)
    ),
    "npu_cmdlist_append_memset": _python(
        "runtime.command_list.CommandList.append_fill", _HANDLE, ("NULL_POINTER", OBJECT), ("OUT_OF_RANGE", WHOLE)
    ),
    "npu_cmdlist_close": _python("runtime.command_list.CommandList.close", _HANDLE),
    "npu_cmdlist_reset": _python("runtime.command_list.CommandList.reset", _HANDLE),
    "npu_cmdlist_submit": _python("runtime.command_list.CommandList.submit", _HANDLE),
    "npu_cmdlist_destroy": _python("runtime.command_list.CommandList.destroy", _HANDLE, ("STALE_HANDLE", TWICE)),
    # graphs
    "npu_stream_begin_capture": _python("Stream.capture", _HANDLE),
    "npu_stream_end_capture": _python("Stream.end_capture", _HANDLE, _OUT),
    "npu_stream_is_capturing": _python("Stream.capture_status", ("STALE_HANDLE", ATTRIBUTE), _HANDLE, _OUT),
    "npu_graph_get_node_count": _python("", ("SUCCESS STALE_HANDLE", ATTRIBUTE), _HANDLE, _OUT),
    "npu_graph_instantiate": _python("runtime.graph.Graph.instantiate", _HANDLE, _OUT),
    "npu_graph_launch": _python("runtime.graph_exec.GraphExec.launch", _HANDLE),
    "npu_graph_update": _python("runtime.graph_exec.GraphExec.update", _HANDLE),
    "npu_graph_destroy": _python("runtime.graph.Graph.destroy", _HANDLE, ("STALE_HANDLE", TWICE)),
    "npu_graph_exec_destroy": _python("runtime.graph_exec.GraphExec.destroy", _HANDLE, ("STALE_HANDLE", TWICE)),
    # profiling
    "npu_profiler_start": _python("runtime.profiler.Profiler.start"),
    "npu_profiler_stop": _python("runtime.profiler.Profiler.stop"),
    "npu_get_op_records": _python("runtime.profiler.Profiler.records", _OUT),
    "npu_get_counters": _python("Device.counters", _OUT),
    "npu_export_trace": _python("Device.export_trace", ("NULL_POINTER BAD_ADDRESS", NO_NULL)),
    "npu_get_overflows": _python("Context.overflows Device.overflows", _OUT),
}
