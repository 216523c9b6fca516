"""The jobs that the core has taken from their rings: how they enter and leave the engines, and how they end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from npu_abi import C, codec

from npu_firmware import inference, preemption
from npu_firmware.bands import Bands
from npu_firmware.commands import Command, parse
from npu_firmware.dynamic import DynamicWalk
from npu_firmware.hal import Hal, Slot
from npu_firmware.ipc import Ipc
from npu_firmware.job import Job, State
from npu_firmware.kernels import Kernels
from npu_firmware.queues import Queue
from npu_firmware.tiles import Tiles
from npu_firmware.walk import NO_BARRIERS, Walk

CORE = int(C.NPU_ENGINE_CORE)
STOP_ON_FAILURE = int(C.NPU_JOBQ_STOP_ON_FAILURE)
JOB_RETURN = int(C.NPU_IPC_CHAN_JOB_RET)
COMMAND = State.COMMAND
JOB_DONE = codec(
    "npu_jsm_job_done",
    "db_idx",
    "job_id",
    "job_status",
    "host_ssid",
    "error_detail",
    "error_info",
    "start_ps",
    "end_ps",
)


class Jobs:
    """Jobs, rings and tiles. `params` is a view of struct npu_boot_params."""

    def __init__(self, hal: Hal, params: Any) -> None:
        self._hal = hal
        self._costs = hal.profile.core
        self._trace = hal.trace
        self.ipc = Ipc(hal, params)
        self.queues: dict[int, Queue] = {}  # by doorbell
        self.jobs: list[Job] = []  # in the order of their start
        self.heartbeat = 0
        self.attention = True  # a message or a ring waits, as far as known
        self.tiles = Tiles(tile for tile in range(hal.profile.tiles) if params.tile_config >> tile & 1)
        self.bands = Bands(hal, self.tiles)
        self._kernels = Kernels(hal, self.tiles)
        self.stopped: set[int] = set()  # contexts whose jobs no longer run, until SSID_RELEASE
        self.by_slot: dict[Slot, Job] = {}

    # ---- their ends ----

    def finish(self, job: Job, status: int, detail: int = 0, info: int = 0) -> None:
        """Report a job that has left the engines, and let its queue go on."""
        self.jobs.remove(job)
        job.queue.job = None
        job.queue.rung = True
        self.attention = True
        end_ps = self._hal.now_ps()
        if self._hal.trace is not None:
            self._hal.trace(C.NPU_TRACE_JOB_END, CORE, 0, 0, job.job_id, status)
        done = JOB_DONE.pack(job.queue.doorbell, job.job_id, status, job.ssid, detail, info, job.start_ps, end_ps)
        self.ipc.send(C.NPU_JSM_JOB_DONE, done, channel=JOB_RETURN)

    def abort(self, job: Job) -> None:
        """End a job that somebody takes away. Its fences are signalled at once: what waits for them must not wait for ever."""
        if job.failure is None:
            self._cut(job)
        while job in self.jobs:
            self._signal_failed(job)

    def drain(self, queue: Queue) -> None:
        """Take every entry out of the ring of a queue that goes away: only the fences of its jobs are still signalled."""
        hal = self._hal
        while (entry := queue.peek(hal)) is not None:
            queue.advance(hal, entry.slot)
            job = Job(queue, entry.job_id, queue.ssid, hal.now_ps(), parse(hal, queue.ssid, entry.batch_va)[0])
            for command in job.commands:
                if command.type == C.NPU_CMD_FENCE_SIGNAL:
                    with suppress(hal.Fault):
                        self._signal(job, command)

    def take_off(self, job: Job) -> None:
        """Take a job off the engines; it does nothing until somebody ends it."""
        self._leave(job)
        job.state = State.TILES

    def _cut(self, job: Job) -> None:
        """End a job that did not fail as ABORTED."""
        if job.state is COMMAND:  # the next command has not begun: when it is a fence, it is still signalled
            job.position -= 1
        self._end(job, C.NPU_JOB_ABORTED)

    def _end(self, job: Job, status: int, detail: int = 0, info: int = 0) -> None:
        """End a job that failed at its current command: off the engines now, reported when its fences are signalled."""
        if job.queue.flags & STOP_ON_FAILURE and status != C.NPU_JOB_ABORTED:
            self.stopped.add(job.ssid)
        self._leave(job)
        job.position += 1
        job.skip_to_fence()
        job.failure = (status, detail, info)
        job.state = COMMAND
        if job.position >= len(job.commands):
            self.finish(job, status, detail, info)

    def _signal_failed(self, job: Job) -> None:
        """Carry out the FENCE_SIGNAL at the position of a failed job, and report the job after its last one."""
        command = job.commands[job.position]
        with suppress(self._hal.Fault):  # a fence whose memory is gone: nobody waits there
            self._signal(job, command)
        job.position += 1
        job.skip_to_fence()
        if job.position >= len(job.commands):
            assert job.failure is not None
            self.finish(job, *job.failure)

    def _signal(self, job: Job, command: Command) -> None:
        """Write the value of a fence. Raises Fault."""
        hal, value = self._hal, command.value
        hal.store(job.ssid, command.address, value.to_bytes(8, "little"))
        if hal.trace is not None:
            hal.trace(C.NPU_TRACE_FENCE_WRITE, CORE, 0, 0, job.job_id, value)

    def _leave(self, job: Job) -> None:
        """Take a job off the engines, and out of what it waits for."""
        self._release(job)
        if job in self.tiles.waiting:
            self.tiles.waiting.remove(job)
            self._serve_tiles()
        job.inference = job.work = job.saved = None
        job.tile_count = 0

    def _release(self, job: Job) -> None:
        if job.walk is not None:
            slot = job.walk.slot
            self._hal.close_slot(slot)
            del self.by_slot[slot]
            job.walk = None
        if job.launch is not None:
            for block in self._kernels.cancel(job):
                del self.by_slot[block]
            job.launch = None
            self._serve_tiles()
        if job.tiles:
            self.tiles.give_back(job)
            self._serve_tiles()

    # ---- tiles and engines ----

    def _serve_tiles(self) -> None:
        """Give tiles to the inferences that wait for them, as far as there are enough."""
        while self.tiles.waiting and (job := self.tiles.serve()) is not None:
            if job.saved is not None:
                self._restore(job, job.saved)
            else:
                assert job.inference is not None
                self._enter_engines(job, job.inference)

    def _enter_engines(self, job: Job, work: inference.Inference) -> None:
        """Open a slot for an inference, or for the DMA tasks of a command, and let it load its first barriers."""
        hal = self._hal
        slot = hal.open_slot(job.ssid, job.job_id, job.tiles, work.barrier_count)
        slot.band = job.band
        walk = DynamicWalk if job.dynamic and job.inference is not None else Walk
        job.walk = walk(hal, slot, self._lists(slot, work), work.barriers)
        job.inference, job.work = None, work
        self.by_slot[slot] = job
        job.state = State.BARRIERS

    def _lists(self, slot: Slot, work: inference.Inference) -> list[Any]:
        """Return fresh tasks of an inference, by list."""
        hal = self._hal
        lists: list[Any] = [
            hal.dma_tasks(slot, port, port, plan) for port, plan in enumerate(work.dma) if plan is not None
        ]
        if work.dpu is not None:
            lists.append(hal.dpu_tasks(slot, inference.INVARIANTS, work.dpu))
        if work.shave is not None:
            lists.append(hal.shave_tasks(slot, inference.SHAVE_INVOCATIONS, work.shave))
        return lists

    def _restore(self, job: Job, saved: preemption.Saved) -> None:
        """Begin to give an inference back what it had, on the tiles that it has now."""
        hal = self._hal
        slot = hal.open_slot(job.ssid, job.job_id, job.tiles, saved.work.barrier_count)
        slot.band = job.band
        self.by_slot[slot] = job
        job.walk = Walk(hal, slot, preemption.copies(hal, job, slot, True), NO_BARRIERS)
        job.state = State.RESTORE
        if self._trace is not None:
            self._trace(C.NPU_TRACE_RESUME, CORE, 0, 0, job.job_id, len(job.tiles))
