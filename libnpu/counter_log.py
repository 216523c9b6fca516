"""What the PMU counters of a process's devices grew by while it used them: NPU_TRACE=pmu, on stderr or in NPU_TRACE_FILE.

A line of JSON for each device when the process ends: `ps`, how far the clock went from the first open on, and `counters` by name. Counters
are read through the process's own files, which costs no virtual time: after each open, before each close, around resets, and at the end. So what
a device does for the last close is not in them. A device of npud counts what other processes ask of it, too.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import npu_abi
from npu_abi import C, ffi, ioctl_request

from libnpu.at_end import at_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.ioctl_trace import Syscall

READ = ioctl_request(C.NPU_IOCTL_EMU_COUNTERS, "npu_emu_counters")
OPEN, CLOSE = (ioctl_request(number, None) & 0xFF for number in (C.NPU_SYS_OPEN, C.NPU_SYS_CLOSE))
BEFORE = (CLOSE, C.NPU_IOCTL_RECOVER)  # calls after which counters have begun anew, or nobody can read them


class CounterLog:
    """A door that adds up what counters grow by between the calls that go through it."""

    def __init__(self, door: Syscall) -> None:
        self._door = door
        self._files: set[int] = set()
        self._last: list[int] = []  # values at the last look
        self._grown = [0] * C.NPU_PMU_COUNT
        self._begin_ps = self._now_ps = 0

    def __call__(
        self, number: int, arg: bytes, segments: list[bytes], now_ps: int
    ) -> tuple[int, bytes, list[Any], int]:
        """As `npu_driver.kernel.Kernel.syscall`."""
        call, file = number & 0xFF, number >> 32
        if call in BEFORE and file in self._files:
            self._look(file, now_ps)
        answer = ret, _, _, after_ps = self._door(number, arg, segments, now_ps)
        self._now_ps = max(self._now_ps, after_ps)
        if call == CLOSE:
            self._files.discard(file)
        elif call == OPEN and ret >= 0:
            self._files.add(ret)
            self._look(ret, after_ps)
        elif call == C.NPU_IOCTL_RECOVER and file in self._files:
            self._look(file, after_ps)
        return answer

    def _look(self, file: int, now_ps: int) -> None:
        """Read the counters through an open file. Those that have begun anew since the last look grew by what they are."""
        request = ffi.new("struct npu_emu_counters *", {"count": C.NPU_PMU_COUNT, "buffer_ptr": 1})
        ret, _, replies, _ = self._door(file << 32 | READ, bytes(ffi.buffer(request)), [], now_ps)
        if ret < 0:  # the device is gone
            return
        values = list(memoryview(replies[0]).cast("Q"))
        if self._last:
            anew = values[C.NPU_PMU_CYCLES] < self._last[C.NPU_PMU_CYCLES]
            before = [0] * len(values) if anew else self._last
            self._grown = [grown + now - old for grown, now, old in zip(self._grown, values, before, strict=True)]
        else:
            self._begin_ps = now_ps
        self._last = values

    def report(self) -> str:
        """Look once more, where a file is open, and return the line; "" when none ever was."""
        if not self._last:
            return ""
        if self._files:
            self._look(min(self._files), self._now_ps)
        kinds = npu_abi.enum("npu_pmu")
        counters = {kinds(n).name.removeprefix("NPU_PMU_"): value for n, value in enumerate(self._grown)}
        return json.dumps({"ps": self._now_ps - self._begin_ps, "counters": counters})


def counted(door: Syscall, write: Callable[[str], object]) -> Syscall:
    """Return `door` with a count of what the device does; `write` takes the line when this process ends, not a child of it."""
    log, pid = CounterLog(door), os.getpid()

    def report() -> None:
        if os.getpid() == pid and (line := log.report()):
            write(line)

    at_end(report)
    return log
