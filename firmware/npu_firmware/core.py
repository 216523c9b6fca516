"""The firmware's state machine. `step` performs the pending action, picks the next one and returns its cost in cycles.

What is picked, in this order: barriers to reload, failed jobs, a message to read, doorbells, a block that has ended, a message to send,
a job to take from a ring, then the jobs in turn: each gets one action (a command, a task to dispatch, a block to place, its end).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npu_abi import C

from npu_firmware import preemption
from npu_firmware.commands import FENCES
from npu_firmware.engine_reset import EngineReset
from npu_firmware.execution import ENGINES, UNITS, Execution
from npu_firmware.hal import Hal
from npu_firmware.job import Job, State
from npu_firmware.jobs import COMMAND, CORE
from npu_firmware.messages import Messages
from npu_firmware.structs import read
from npu_firmware.walk import Walk

NOTHING = -1
FETCH, DISPATCH = int(C.NPU_TRACE_FETCH), int(C.NPU_TRACE_DISPATCH)
BARRIERS, FENCE = State.BARRIERS, State.FENCE


class Core(Execution):
    """Everything that the firmware knows, and what it does next."""

    def __init__(self, hal: Hal) -> None:
        super().__init__(hal, read("npu_boot_params", hal.params))
        self._inputs = hal.inputs
        self._messages = Messages(hal, self)
        self.reset = EngineReset(hal, self)
        self._turn = 0
        self._action: Callable[[Any], None] | None = None
        self._argument: Any = None
        self._reload_action = self._reload  # bound once: it is planned often
        self._walk: Walk | None = None  # instead of _action: the walk whose list _list gives a task
        self._list = 0
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
