"""The firmware's state machine. `step` performs the pending action, picks the next one and returns its cost in cycles.

What is picked, in this order: barriers to reload, failed jobs, a message to read, doorbells, a block that has ended, a message to send,
a job to take from a ring, then the jobs in turn: each gets one action (a command, a task to dispatch, a block to place, its end).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from npu_abi import C, codec

from npu_firmware import inference, preemption
from npu_firmware.bands import Bands
from npu_firmware.commands import FENCES, INFERENCES, Command, parse
from npu_firmware.dynamic import DynamicWalk
from npu_firmware.engine_reset import EngineReset
from npu_firmware.errors import ParseError
from npu_firmware.hal import Block, Hal, Slot
from npu_firmware.ipc import Ipc
from npu_firmware.job import Job, State
from npu_firmware.kernels import Kernels
from npu_firmware.messages import Messages
from npu_firmware.queues import Entry, Queue
from npu_firmware.structs import read
from npu_firmware.tiles import Tiles
from npu_firmware.transfers import Transfers
from npu_firmware.walk import NO_BARRIERS, Walk

NOTHING = -1
FETCH, DISPATCH = int(C.NPU_TRACE_FETCH), int(C.NPU_TRACE_DISPATCH)
CORE = int(C.NPU_ENGINE_CORE)
STOP_ON_FAILURE = int(C.NPU_JOBQ_STOP_ON_FAILURE)
JOB_RETURN = int(C.NPU_IPC_CHAN_JOB_RET)
ENGINES, COMMAND, BARRIERS, FENCE, UNITS = State.ENGINES, State.COMMAND, State.BARRIERS, State.FENCE, State.UNITS
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


class Core:
    """Everything that the firmware knows."""

    def __init__(self, hal: Hal) -> None:
        self._hal = hal
        self._inputs = hal.inputs
        params = read("npu_boot_params", hal.params)
        self.ipc = Ipc(hal, params)
        self.queues: dict[int, Queue] = {}  # by doorbell
        self.jobs: list[Job] = []  # in the order of their start
        self.heartbeat = 0
        self._messages = Messages(hal, self)
        self._costs = hal.profile.core
        self.tiles = Tiles(tile for tile in range(hal.profile.tiles) if params.tile_config >> tile & 1)
        self.bands = Bands(hal, self.tiles)
        self.reset = EngineReset(hal, self)
        self.inferences = inference.Inferences(hal, len(self.tiles.free))
        self.transfers = Transfers(hal)
        self._kernels = Kernels(hal, self.tiles)
        self.stopped: set[int] = set()  # contexts whose jobs no longer run, until SSID_RELEASE
        self.by_slot: dict[Slot, Job] = {}
        self._turn = 0
        self._action: Callable[[Any], None] | None = None
        self._argument: Any = None
        self._trace = hal.trace
        self._reload_action = self._reload  # bound once: it is planned often
        self._walk: Walk | None = None  # instead of _action: the walk whose list _list gives a task
        self._list = 0
        self.attention = True  # a message or a ring waits, as far as known
        self._messages.announce_boot()

    # ---- the machine ----

    def step(self) -> int:
        """Perform the pending action, then return the cost of the next one; 0 when there is none."""
        inputs = self._inputs
        while True:
            walk, action = self._walk, self._action
            if walk is not None:
                self._walk = None
                self.heartbeat += 1
                if self._trace is not None:
                    self._trace(DISPATCH, CORE, 0, walk.head_id(self._list), walk.slot.job_id, 0)
                walk.dispatch(self._list)
            elif action is not None:
                self._action = None
                action(self._argument)
            if inputs.retired:
                retired = inputs.retired
                self._action, self._argument = self._reload_action, retired
                inputs.retired = []
                cost = self._costs.barrier_cycles * len(retired)
                if cost:
                    return cost
                continue
            if inputs.pending or self.attention:
                cost = self._pick_input()
                if cost > 0:
                    return cost
                if not cost:
                    continue
            if self.reset.halted:
                cost = self._plan(self.reset.act, None, self._costs.message_cycles) if self.reset.pick() else NOTHING
            elif self.bands.mixed:
                cost = self._pick_by_band()
            else:
                cost = self._pick_job()
            if cost > 0:
                return cost
            if cost:
                return 0

    def _plan(self, action: Callable[[Any], None], argument: Any, cost: int) -> int:
        self._action = action
        self._argument = argument
        return cost

    def _perform(self, action: Callable[[Any], None], argument: Any) -> int:
        """Do at once what costs nothing."""
        action(argument)
        return 0

    def _pick_input(self) -> int:
        """Plan the answer to an input. When there is none, `pending` and `attention` go down."""
        hal, costs = self._hal, self._costs
        if self._inputs.pending:
            failed = hal.faulted()
            if failed:
                self._fail(failed)
                return 0
            address = hal.pop_message()
            if address:
                return self._plan(self._messages.handle, address, costs.message_cycles)
            while doorbell := hal.pop_doorbell():
                self._ring(doorbell)
            block = hal.pop_ended()
            if block is not None:
                return self._plan(self._end_block, block, costs.block_cycles)
            self._inputs.pending = False
        if self.ipc.outbox and self.ipc.can_send():
            return self._plan(self._send, None, costs.message_cycles)
        for queue in () if self.bands.mixed or self.reset.halted else self.queues.values():
            if queue.rung and queue.job is None and not queue.broken:
                entry = queue.peek(hal)
                if entry is not None:
                    return self._plan(self._take, (queue, entry), costs.job_cycles)
                queue.rung = False
        self.attention = bool(self.ipc.outbox)  # a message that waits for the driver to free its slot
        return NOTHING

    def _pick_by_band(self) -> int:
        """As `_pick_job` and the rings of `_pick_input`, where queues have several bands: the highest one that has something to do."""
        bands, queues = self.bands, self.queues.values()
        bands.age(self.jobs, queues)
        first = self.tiles.waiting[0].band if self.tiles.waiting else 0
        if first:
            victim = preemption.victim(self._hal, self.tiles, self.jobs, self._hal.profile.shaves_per_tile)
            if victim is not None:
                return self._plan(self._preempt, victim, self._costs.command_cycles)
        rings = [queue for queue in queues if queue.rung and queue.job is None and not queue.broken]
        for band in range(C.NPU_PRIORITY_BANDS - 1, -1, -1):
            for queue in rings:
                if bands.of_ring(queue) == band:
                    entry = queue.peek(self._hal)
                    if entry is not None:
                        return self._plan(self._take, (queue, entry), self._costs.job_cycles)
                    queue.rung = False
            cost = self._pick_job(band)
            if cost != NOTHING:
                return cost
        return NOTHING

    def _pick_job(self, band: int = -1) -> int:
        """Plan something for the next job in turn: of all, or of those that count as of `band`."""
        jobs = self.jobs
        count = len(jobs)
        index = self._turn
        for _ in jobs:
            if index >= count:
                index = 0
            job = jobs[index]
            index += 1
            if band >= 0 and job.band != band:
                continue
            if job.state is ENGINES:
                walk = job.walk
                assert walk is not None
                number = walk.pick()
                if number >= 0:
                    self._turn = index
                    if band >= 0:
                        job.served_ps = self._hal.now_ps()
                    if self._trace is not None:
                        self._trace(FETCH, CORE, 0, walk.head_id(number), job.job_id, 0)
                    self._walk = walk
                    self._list = number
                    return walk.cycles
                cost = self._pick_end(job, walk)
            else:
                cost = self._pick_of(job)
            if cost != NOTHING:
                self._turn = index
                if band >= 0:
                    job.served_ps = self._hal.now_ps()
                return cost
        return NOTHING

    def _pick_end(self, job: Job, walk: Walk) -> int:
        """Plan the end of a walk that cannot dispatch: it is complete, or it is stuck."""
        if walk.idle_cycles:
            cost, walk.idle_cycles = walk.idle_cycles, 0
            return self._plan(self._look, None, cost)
        slot = walk.slot
        if slot.running or slot.failed or self._inputs.retired:
            return NOTHING
        if not walk.remaining and not slot.outstanding:
            return self._perform(self._leave_engines, job)
        if slot.quiet():
            return self._plan(self._deadlock, job, 0)
        return NOTHING

    def _pick_of(self, job: Job) -> int:
        state = job.state
        if state is COMMAND:
            if job.failure is not None:
                return self._plan(self._signal_failed, job, self._costs.fence_cycles)
            if job.position >= len(job.commands):
                return self._perform(self._succeed, job)
            command = job.commands[job.position]
            if command.kernel is not None:
                job.taken_ps = self._hal.now_ps()
            cost = self._costs.fence_cycles if command.type in FENCES else self._costs.command_cycles
            return self._plan(self._run, (job, command), cost)
        if state is BARRIERS:
            assert job.walk is not None
            return self._plan(self._load_barriers, job, self._costs.barrier_cycles * job.walk.first_count())
        if state is UNITS:
            count = self._kernels.ready(job)
            return self._plan(self._place, job, count * self._costs.block_cycles) if count else NOTHING
        if state is FENCE:
            return self._pick_fence(job)
        return self._pick_preempted(job) if state in (State.DRAIN, State.SAVE, State.RESTORE) else NOTHING

    def _pick_preempted(self, job: Job) -> int:
        """Plan the next step of an inference out of its tiles or back."""
        walk = job.walk
        assert walk is not None
        slot, saved = walk.slot, job.saved
        barriers = self._costs.barrier_cycles * len(self._hal.barriers(slot))
        if job.state is State.DRAIN:
            done = not slot.running and not slot.failed and not self._inputs.retired
            return self._plan(self._save, job, barriers) if done else NOTHING
        number = walk.pick()
        if number >= 0:
            self._walk, self._list = walk, number
            return walk.cycles
        if walk.remaining or slot.outstanding or slot.failed or saved is None:
            return NOTHING
        if job.state is State.SAVE:
            return self._perform(self._leave_tiles, job)
        return self._plan(self._go_on, job, barriers)

    def _pick_fence(self, job: Job) -> int:
        """Plan what follows a fence: the next command when it has its value, the end of the job when its memory is gone."""
        command = job.commands[job.position]
        try:
            value = int.from_bytes(self._hal.load(job.ssid, command.address, 8), "little")
        except self._hal.Fault:
            return self._plan(self._lose_fence, (job, command), self._costs.fence_cycles)
        if value < command.value:
            return NOTHING
        return self._plan(self._next_command, job, self._costs.fence_cycles)

    # ---- simple actions ----

    def _send(self, _: Any) -> None:
        self.ipc.flush_one()

    def _look(self, _: Any) -> None:
        """Nothing: the core looked at tasks of a dynamic inference in vain."""

    def _ring(self, doorbell: int) -> None:
        queue = self.queues.get(doorbell)
        if queue is not None:
            queue.rung = True
            self.attention = True

    def _reload(self, retired: list[Any]) -> None:
        by_slot = self.by_slot
        for barrier in retired:
            job = by_slot.get(barrier.slot)
            if job is not None and job.walk is not None:
                job.walk.retire(barrier)

    def _fail(self, slots: list[Slot]) -> None:
        for slot in slots:
            job = self.by_slot.get(slot)
            if job is not None and slot.fault is not None:
                self._end(job, *slot.fault)

    def _deadlock(self, job: Job) -> None:
        assert job.walk is not None
        self._end(job, C.NPU_JOB_DEADLOCK, *job.walk.blocked())

    # ---- jobs ----

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

    def take_off(self, job: Job) -> None:
        """Take a job off the engines; it does nothing until somebody ends it."""
        self._leave(job)
        job.state = State.TILES

    def _leave(self, job: Job) -> None:
        """Take a job off the engines, and out of what it waits for."""
        self._release(job)
        if job in self.tiles.waiting:
            self.tiles.waiting.remove(job)
            self._serve_tiles()
        job.inference = job.work = job.saved = None
        job.tile_count = 0

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

    def _serve_tiles(self) -> None:
        """Give tiles to the inferences that wait for them, as far as there are enough."""
        while self.tiles.waiting and (job := self.tiles.serve()) is not None:
            if job.saved is not None:
                self._restore(job, job.saved)
            else:
                assert job.inference is not None
                self._enter_engines(job, job.inference)

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

    # ---- commands ----

    def _succeed(self, job: Job) -> None:
        self.finish(job, C.NPU_JOB_SUCCESS)

    def _next_command(self, job: Job) -> None:
        job.position += 1
        job.state = State.COMMAND
        self.heartbeat += 1
        if job.band != job.queue.band:  # it had waited long
            self.bands.set(job, job.queue.band)

    def _lose_fence(self, argument: tuple[Job, Command]) -> None:
        job, command = argument
        self._end(job, C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_ADDRESS, command.number)

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

    def _signal(self, job: Job, command: Command) -> None:
        """Write the value of a fence. Raises Fault."""
        hal, value = self._hal, command.value
        hal.store(job.ssid, command.address, value.to_bytes(8, "little"))
        if hal.trace is not None:
            hal.trace(C.NPU_TRACE_FENCE_WRITE, CORE, 0, 0, job.job_id, value)

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

    def _load_barriers(self, job: Job) -> None:
        assert job.walk is not None
        job.walk.load_first()
        job.state = State.ENGINES

    def _leave_engines(self, job: Job) -> None:
        self._release(job)
        job.tile_count, job.work = 0, None
        self._next_command(job)
