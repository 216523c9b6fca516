"""npu.h: command lists and graphs. Arguments are as C passed them, handles and pointers as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from npu_abi import C

from libnpu.capi.arguments import read_arguments
from libnpu.capi.calls_copy import Side, check_bound, check_copy, ends_of, filled
from libnpu.capi.calls_kernel import kernel_of
from libnpu.capi.door import require
from libnpu.capi.handles import Kind
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from libnpu.runtime.command_list import CommandList
    from libnpu.runtime.graph import Graph
    from libnpu.runtime.graph_exec import GraphExec

HANDLE_BYTES = 8


def npu_cmdlist_create(library: Library, list: int, flags: int) -> None:
    """Create an open list in the current context and write its handle."""
    library.door.probe(list, HANDLE_BYTES, "list")
    if flags:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, and none is defined")
    made = library.context().context.create_command_list()
    library.give_handle(list, Kind.CMDLIST, made, made.context, made.destroy)


def npu_cmdlist_append_kernel(library: Library, list: int, kernel: int, args: int, count: int) -> None:
    """Append a kernel; its arguments are copied here."""
    into = _list(library, list)
    found = kernel_of(library, kernel)
    into.append(found, *read_arguments(library, found, args, count))


def npu_cmdlist_append_memcpy(
    library: Library, list: int, dst: int, dst_max: int, src: int, size: int, kind: int
) -> None:
    """Append a copy of memory that the device sees."""
    into = _list(library, list)
    target, source = Side(dst, size), Side(src, size)
    said = check_copy(library, target, source, dst_max, size, 1, kind)
    if said == C.NPU_MEMCPY_HOST_TO_HOST and not library.memory.host(src):
        raise Unsupported("a copy of pageable memory in a command list")
    written, read = ends_of(library, into.context, target, source, size, 1, said)
    into.append_copy(written, read, size)


def npu_cmdlist_append_memset(library: Library, list: int, dst: int, dst_max: int, value: int, size: int) -> None:
    """Append a memset."""
    into = _list(library, list)
    require(dst, "dst")
    check_bound(library, dst, size, dst_max)
    into.append_fill(filled(library, into.context, dst, size), value)


def npu_cmdlist_close(library: Library, list: int) -> None:
    """Close it."""
    _list(library, list).close()


def npu_cmdlist_reset(library: Library, list: int) -> None:
    """Empty and open it."""
    _list(library, list).reset()


def npu_cmdlist_submit(library: Library, list: int, stream: int) -> None:
    """Enqueue it."""
    found = _list(library, list)
    found.submit(library.stream(stream))


def npu_cmdlist_destroy(library: Library, list: int) -> None:
    """Destroy it."""
    found = _list(library, list)
    library.handles.remove(Kind.CMDLIST, list)
    found.destroy()


def npu_stream_begin_capture(library: Library, stream: int) -> None:
    """Begin to capture a stream."""
    library.stream(stream).capture()


def npu_stream_end_capture(library: Library, stream: int, graph: int) -> None:
    """End the capture that began on this stream, and write the handle of its graph."""
    library.door.probe(graph, HANDLE_BYTES, "graph")
    made = library.stream(stream).end_capture()
    library.give_handle(graph, Kind.GRAPH, made, made.context, made.destroy)


def npu_stream_is_capturing(library: Library, stream: int, status: int) -> None:
    """Write whether a stream is being captured."""
    library.door.probe(status, 4, "status")
    library.door.write_integer(status, library.stream(stream).capture_status.value, 4)


def npu_graph_get_node_count(library: Library, graph: int, count: int) -> None:
    """Write how many operations a graph has."""
    library.door.probe(count, 8, "count")
    library.door.write_integer(count, len(_graph(library, graph).nodes), 8)


def npu_graph_instantiate(library: Library, exec: int, graph: int) -> None:
    """Make a graph ready to launch and write the handle of that."""
    library.door.probe(exec, HANDLE_BYTES, "exec")
    made = _graph(library, graph).instantiate()
    library.give_handle(exec, Kind.GRAPH_EXEC, made, made.context, made.destroy)


def npu_graph_launch(library: Library, exec: int, stream: int) -> None:
    """Enqueue it."""
    found = _exec(library, exec)
    found.launch(library.stream(stream))


def npu_graph_update(library: Library, exec: int, graph: int) -> None:
    """Take the parameters of another graph."""
    _exec(library, exec).update(_graph(library, graph))


def npu_graph_destroy(library: Library, graph: int) -> None:
    """Destroy a graph."""
    found = _graph(library, graph)
    library.handles.remove(Kind.GRAPH, graph)
    found.destroy()


def npu_graph_exec_destroy(library: Library, exec: int) -> None:
    """Destroy an executable graph."""
    found = _exec(library, exec)
    library.handles.remove(Kind.GRAPH_EXEC, exec)
    found.destroy()


def _list(library: Library, handle: int) -> CommandList:
    return cast("CommandList", library.handles.get(Kind.CMDLIST, handle))


def _graph(library: Library, handle: int) -> Graph:
    return cast("Graph", library.handles.get(Kind.GRAPH, handle))


def _exec(library: Library, handle: int) -> GraphExec:
    return cast("GraphExec", library.handles.get(Kind.GRAPH_EXEC, handle))
