"""Records of operations, counters, traces."""

from __future__ import annotations

import json
from pathlib import Path

from npu_abi import C

from tests.coverage.expect import blob, expect, open_device

device = open_device()
profiler = device.primary.profiler
spin = device.load(blob("library"))["spin"]
with expect("BAD_STATE"):
    profiler.stop()
profiler.start()
with expect("BAD_STATE"):
    profiler.start()
spin.launch(None, grid=2)
device.synchronize()
profiler.stop()
(record,) = profiler.records
assert (record.kind, record.name, record.blocks, record.result) == (C.NPU_OP_KERNEL, "spin", 2, C.NPU_SUCCESS)
assert record.enqueue_site
assert device.counters()["CYCLES"] > 0
assert device.overflows() == []
device.export_trace("trace.json")
assert "traceEvents" in json.loads(Path("trace.json").read_text())
with expect("FILE"):
    device.export_trace("no/such/folder/trace.json")
device.close()
