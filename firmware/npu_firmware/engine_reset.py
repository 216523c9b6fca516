"""Engine reset: finds the jobs whose tasks hang, without harm to the others.

1. ENGINE_RESET: the core starts nothing more and recalls the tasks and blocks that have not started. Those that run go on to their ends.
2. What has not ended after `core.drain_cycles` and waits for no task that it started itself hangs: its job is taken
   off the engines. Others may have waited for that engine: they get as long again.
3. The reply names the contexts. The jobs of the others stand at a task boundary, with their CMX and barriers: nothing is lost.
4. ENGINE_RESUME: the recalled tasks go back in their FIFOs, and the core goes on. Nothing is done twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C, new, pack

if TYPE_CHECKING:
    from npu_firmware.core import Core
    from npu_firmware.hal import Hal, Slot, Task
    from npu_firmware.job import Job

GUILTY = int(C.NPU_IMPACTED_GUILTY)


class EngineReset:
    """`halted`: from ENGINE_RESET to ENGINE_RESUME; `request` is the message to answer while the engines drain, else -1."""

    def __init__(self, hal: Hal, core: Core) -> None:
        self._hal = hal
        self._core = core
        costs = hal.profile.core
        self._drain_ps = -(-costs.drain_cycles * 10**12 // costs.clock_hz)
        self.halted = False
        self.request = -1
        self._deadline_ps = 0
        self._recalled: list[tuple[Slot, list[Task]]] = []
        self._impacted: dict[int, int] = {}  # flags by SSID
        self._hung: list[
            Job
        ] = []  # for the driver to end, with their contexts; what is left of them ends at ENGINE_RESUME

    def begin(self, request_id: int) -> None:
        """Stop the engines at their next task boundary."""
        self.halted = True
        self.request = request_id
        self._impacted = {}
        for job in self._core.jobs:
            if job.walk is not None:
                self._recalled.append((job.walk.slot, job.walk.slot.recall()))
            elif job.launch is not None:
                self._core.recall_blocks(job)
            if job.walk is not None or job.launch is not None:
                self._impacted[job.ssid] = 0
        self._wait()

    def _wait(self) -> None:
        self._deadline_ps = self._hal.alarm(self._drain_ps)

    def pick(self) -> bool:
        """Say whether `act` has something to do."""
        return self.request >= 0 and (
            self._hal.now_ps() >= self._deadline_ps or not any(map(_running, self._core.jobs))
        )

    def act(self, _: Any) -> None:
        """Answer when nothing runs any more; else take what hangs off the engines."""
        core = self._core
        running = [job for job in core.jobs if _running(job)]
        hung = [job for job in running if any(slot.holding() for slot in _slots(job))] or running
        for job in hung:
            self._impacted[job.ssid] = GUILTY
            core.take_off(job)
        self._hung += hung
        if any(map(_running, core.jobs)):
            self._wait()
            return
        request, self.request = self.request, -1
        order = sorted(self._impacted.items(), key=lambda entry: -entry[1])[: C.NPU_MAX_IMPACTED]
        done = new("npu_jsm_engine_reset_done", impacted_count=len(order))
        for entry, (ssid, flags) in zip(done.impacted, order, strict=False):
            entry.host_ssid, entry.flags = ssid, flags
        core.attention = True
        core.ipc.send(C.NPU_JSM_ENGINE_RESET_DONE, pack(done), request, C.NPU_JSM_OK)

    def resume(self) -> None:
        """Let everything go on."""
        self.halted = False
        hung, self._hung = self._hung, []
        for job in hung:
            if job in self._core.jobs:
                self._core.abort(job)
        for slot, tasks in self._recalled:
            if slot in self._core.by_slot:  # else its job has ended
                for task in tasks:
                    task.channel.push(task)
        self._recalled = []
        self._core.attention = True


def _slots(job: Job) -> list[Slot]:
    if job.walk is not None:
        return [job.walk.slot]
    return list(job.launch.blocks) if job.launch is not None else []


def _running(job: Job) -> bool:
    return any(slot.running and not slot.failed for slot in _slots(job))
