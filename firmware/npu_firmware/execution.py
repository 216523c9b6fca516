"""What a job does: its commands one after the other, on the engines, as blocks of kernels, and the way of a preempted inference."""

from __future__ import annotations

from typing import Any

from npu_abi import C

from npu_firmware import inference, preemption
from npu_firmware.commands import INFERENCES, Command, parse
from npu_firmware.errors import ParseError
from npu_firmware.hal import Block, Hal, Slot
from npu_firmware.job import Job, State
from npu_firmware.jobs import CORE, Jobs
from npu_firmware.queues import Entry, Queue
from npu_firmware.transfers import Transfers
from npu_firmware.walk import NO_BARRIERS, Walk

ENGINES, UNITS = State.ENGINES, State.UNITS


class Execution(Jobs):
    """The actions that the core plans for jobs."""

    def __init__(self, hal: Hal, params: Any) -> None:
        super().__init__(hal, params)
        self.inferences = inference.Inferences(hal, len(self.tiles.free))
        self.transfers = Transfers(hal)

    # ---- begin, faults ----

    def _take(self, argument: tuple[Queue, Entry]) -> None:
        queue, entry = argument
        hal = self._hal
        queue.advance(hal, entry.slot)
        self.heartbeat += 1
        job = Job(queue, entry.job_id, queue.ssid, hal.now_ps())
        job.band, job.served_ps = self.bands.of_ring(queue), job.start_ps
        job.preempt_va, job.preempt_bytes = entry.preempt_va, entry.preempt_bytes
        queue.since_ps = -1
        queue.job = job
        self.jobs.append(job)
        if hal.trace is not None:
            hal.trace(C.NPU_TRACE_JOB_START, CORE, 0, 0, job.job_id, 0)
        refusal: tuple[int, int] | None = None
        if not entry.clean:
            refusal = C.NPU_PARSE_RESERVED_NOT_ZERO, 0
        elif entry.job_id >> 8 != queue.ssid:
            refusal = C.NPU_PARSE_BAD_COMMAND_BUFFER, 0
        else:
            job.commands, refusal = parse(hal, queue.ssid, entry.batch_va)
        if queue.ssid in self.stopped:
            self._cut(job)
        elif refusal is not None:
            job.position = -1  # none has begun
            self._end(job, C.NPU_JOB_PARSING_ERR, *refusal)

    def _fail(self, slots: list[Slot]) -> None:
        for slot in slots:
            job = self.by_slot.get(slot)
            if job is not None and slot.fault is not None:
                self._end(job, *slot.fault)

    def _deadlock(self, job: Job) -> None:
        assert job.walk is not None
        self._end(job, C.NPU_JOB_DEADLOCK, *job.walk.blocked())

    # ---- commands ----

    def _run(self, argument: tuple[Job, Command]) -> None:
        """Run a command; a failure ends the job."""
        job, command = argument
        hal = self._hal
        try:
            self._run_command(job, command)
        except ParseError as error:
            self._end(job, C.NPU_JOB_PARSING_ERR, error.code, error.info)
        except hal.Fault:
            self._end(job, C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_ADDRESS, command.number)

    def _run_command(self, job: Job, command: Command) -> None:
        hal, kind = self._hal, command.type
        if kind in INFERENCES:
            job.dynamic = kind == C.NPU_CMD_INFERENCE_DYNAMIC
            job.inference = self.inferences.load(job.ssid, command.address)
            job.tile_count = job.inference.tile_count
            job.state = State.TILES
            self.tiles.wait(job)
            self._serve_tiles()
            return
        if command.kernel is not None:
            self._kernels.check(job.ssid, command.kernel, command.number)
            self._kernels.begin(job, command.kernel)
            job.state = UNITS
            return
        if kind in (C.NPU_CMD_COPY, C.NPU_CMD_MEMORY_FILL):
            plans = self.transfers.load(job.ssid, command)
            self._enter_engines(job, inference.Inference(0, 0, plans, None, None, NO_BARRIERS))
            return
        if kind == C.NPU_CMD_FENCE_WAIT:
            job.state = State.FENCE
            hal.load(job.ssid, command.address, 8)
            return
        if kind == C.NPU_CMD_FENCE_SIGNAL:
            self._signal(job, command)
        elif kind == C.NPU_CMD_TIMESTAMP:
            hal.store(job.ssid, command.address, hal.now_ps().to_bytes(8, "little"))
        self._next_command(job)  # NOP and BARRIER: every command ends before the next begins

    def _next_command(self, job: Job) -> None:
        job.position += 1
        job.state = State.COMMAND
        self.heartbeat += 1
        if job.band != job.queue.band:  # it had waited long
            self.bands.set(job, job.queue.band)

    def _succeed(self, job: Job) -> None:
        self.finish(job, C.NPU_JOB_SUCCESS)

    def _lose_fence(self, argument: tuple[Job, Command]) -> None:
        job, command = argument
        self._end(job, C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_ADDRESS, command.number)

    def _load_barriers(self, job: Job) -> None:
        assert job.walk is not None
        job.walk.load_first()
        job.state = State.ENGINES

    def _leave_engines(self, job: Job) -> None:
        self._release(job)
        job.tile_count, job.work = 0, None
        self._next_command(job)

    # ---- blocks of kernels ----

    def _place(self, job: Job) -> None:
        assert job.launch is not None
        self.heartbeat += 1
        self._kernels.place(job)
        launch = job.launch
        for block in launch.blocks:
            self.by_slot[block] = job
        waiting = self.tiles.waiting
        over = launch.next == launch.kernel.grid and not launch.returned
        if job in waiting and (
            over or waiting[-1].band == job.band
        ):  # else it keeps what it waits for from lower bands
            self.tiles.waiting.remove(job)
            self._serve_tiles()

    def recall_blocks(self, job: Job) -> None:
        """Take the blocks of a launch off their SHAVEs that have not begun; they are placed again."""
        for block in self._kernels.recall(job):
            del self.by_slot[block]
        if job.launch is not None and not job.launch.blocks:
            self.tiles.wait_again(job)

    def _end_block(self, block: Block) -> None:
        """Take note that a block has ended; unless its job was cancelled meanwhile."""
        job = self.by_slot.pop(block, None)
        if job is None:
            return
        try:
            launch = self._kernels.end(job, block)
            if launch.over:
                job.launch = None
                self._next_command(job)
            elif not launch.blocks:
                self.tiles.wait_again(job)
        except self._hal.Fault:  # the record's memory is gone
            self._end(job, C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_ADDRESS, job.position)
        self._serve_tiles()

    # ---- preemption ----

    def _preempt(self, job: Job) -> None:
        """Let the running tasks of an inference end, as urgently as what waits for its tiles."""
        if job.state is not ENGINES or job.walk is None or not job.tiles or not self.tiles.waiting:
            return
        job.walk.stop()
        job.walk.slot.band = max(job.band, self.tiles.waiting[0].band)
        job.state = State.DRAIN

    def _save(self, job: Job) -> None:
        hal, walk, work = self._hal, job.walk, job.work
        assert walk is not None
        assert work is not None
        try:
            preemption.save_barriers(hal, job, walk.slot)
        except hal.Fault:
            self._end(job, C.NPU_JOB_CTX_VIOLATION, job.preempt_va)
            return
        job.saved = preemption.Saved(walk, work)
        job.walk = Walk(hal, walk.slot, preemption.copies(hal, job, walk.slot, False), NO_BARRIERS)
        job.state = State.SAVE

    def _leave_tiles(self, job: Job) -> None:
        assert job.walk is not None
        saved, slot = job.saved, job.walk.slot
        self._hal.close_slot(slot)
        del self.by_slot[slot]
        job.walk = None
        if self._trace is not None:
            self._trace(C.NPU_TRACE_PREEMPT, CORE, 0, 0, job.job_id, len(job.tiles))
        self.tiles.give_back(job)
        job.saved, job.state = saved, State.SAVED
        self.tiles.wait_again(job)
        self._serve_tiles()

    def _go_on(self, job: Job) -> None:
        hal, saved = self._hal, job.saved
        assert job.walk is not None
        assert saved is not None
        slot = job.walk.slot
        job.walk = saved.walk.continued(hal, slot, self._lists(slot, saved.work))
        job.saved = None
        try:
            good = preemption.load_barriers(hal, job, slot, saved.walk.barrier_count())
        except hal.Fault:
            self._end(job, C.NPU_JOB_CTX_VIOLATION, job.preempt_va)
            return
        if not good:  # somebody wrote to the buffer
            self._end(job, C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_BARRIER)
            return
        job.state = ENGINES
