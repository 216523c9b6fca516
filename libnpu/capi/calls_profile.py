"""npu.h: records of operations, counters, traces, overflows. Arguments are as C passed them, pointers as integers."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING

import npu_abi

from libnpu.capi.door import require
from libnpu.capi.library import Library

if TYPE_CHECKING:
    from libnpu.runtime.profiler import OperationRecord

NAME_BYTES = 63  # of a record's name, without the NUL
LAYER_BYTES = 127
RECORD_BYTES = npu_abi.sizeof("npu_op_record")
OVERFLOW_BYTES = npu_abi.sizeof("npu_overflow")


def npu_profiler_start(library: Library) -> None:
    """Keep a record of every operation in the current context from now on."""
    library.context().context.profiler.start()


def npu_profiler_stop(library: Library) -> None:
    """Keep no more records."""
    library.context().context.profiler.stop()


def npu_get_op_records(library: Library, records: int, capacity: int, count: int) -> None:
    """Hand the oldest records out, or say how many there are."""
    library.door.probe(count, 8, "count")
    entry = library.context()
    profiler = entry.context.profiler
    found = len(profiler)
    if records:
        library.door.probe(records, min(capacity, max(found, 1)) * RECORD_BYTES, "records")
        found = min(found, capacity)
        content = b"".join(_packed(record, entry.number) for record in profiler.take(found))
        library.door.write(records, content)
    library.door.write_integer(count, found, 8)


def _packed(record: OperationRecord, context_number: int) -> bytes:
    """Return an npu_op_record_t; `context_number` makes the stream's number one of the process, as npu_get_stream_id."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    values["stream_id"] |= context_number << 32
    values["name"] = record.name.encode("utf-8", "replace")[:NAME_BYTES]
    if isinstance(record.enqueue_site, str):
        values["enqueue_site"] = 0  # a line of Python in the same process
    return bytes(npu_abi.pack(npu_abi.new("npu_op_record", **values)))


def npu_get_counters(library: Library, values: int, capacity: int, count: int) -> None:
    """Write the current device's counters, as many as fit, or say how many there are."""
    library.door.probe(count, 8, "count")
    found = list(library.device().device.counters().values())
    if values:
        found = found[:capacity]
        library.door.write(values, b"".join(value.to_bytes(8, "little") for value in found))
    library.door.write_integer(count, len(found), 8)


def npu_export_trace(library: Library, path: int) -> None:
    """Write the current device's trace and operation records as a Chrome trace."""
    require(path, "path")
    library.device().device.export_trace(os.fsdecode(library.door.read_string(path, "path", "NPU_ERROR_FILE")))


def npu_get_overflows(library: Library, overflows: int, capacity: int, count: int) -> None:
    """Hand out which layers have rounded finite values to infinity, or say how many there are."""
    library.door.probe(count, 8, "count")
    context = library.context().context
    waiting = library.overflows.setdefault(context, [])
    waiting += context.overflows()
    found = len(waiting)
    if overflows:
        library.door.probe(overflows, min(capacity, max(found, 1)) * OVERFLOW_BYTES, "overflows")
        found = min(found, capacity)
        records = [
            npu_abi.new("npu_overflow", layer=layer.encode("utf-8", "replace")[:LAYER_BYTES], values=number)
            for layer, number in waiting[:found]
        ]
        library.door.write(overflows, b"".join(map(npu_abi.pack, records)))
        del waiting[:found]
    library.door.write_integer(count, found, 8)
