"""The watchdog: finds jobs that do not end, in virtual time.

While jobs are in flight it looks once in each `tdr_timeout_ms` (a thousand of these under a seed, which stretches tasks):

1. It serves interrupts that were lost.
2. The oldest job of a queue that was its oldest at the look before, too, is late. When there is one, the firmware is asked for its heartbeat.
3. No answer: full reset. It grew: the device works, and the job may take its time, up to HEARTBEAT_RETRIES looks.
4. Else the firmware is asked what it does about the late ones. It waits for a fence: that is the host's affair. It has not seen the job in the
   ring: the doorbell got lost, and is rung again. It knows of no job: the message of its end got lost, and the job ends as ABORTED.
5. Else its task hangs: engine reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.job import Job
    from npu_driver.kernel import Kernel
    from npu_driver.queue import CommandQueue
    from npu_driver.state_dump import QueueState

NEVER_PS = 1 << 64
DRAIN_STRETCH = 10**6  # of npu_device.schedule: the most that a seed stretches a task, and what waits for its end
SEED_STRETCH = (
    1000  # chosen: under NPU_SCHEDULE_SEED tasks last up to a million times as long; a look then is that much later
)
HEARTBEAT_RETRIES = 30  # chosen: a minute at the default of 2 s, after which a device that only looks busy is reset


class Watchdog:
    """The timer of one device; the kernel runs `fire` at `Kernel.due_ps`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._usual_ps = self._period_ps = kernel.params.tdr_timeout_ms * 10**9
        self.drain_stretch = 1  # how much longer the engines take to drain
        self._seen: dict[CommandQueue, Job] = {}  # the oldest job of each queue at the last look
        self._heartbeat = -1
        self._retries = 0
        self._rung: Job | None = None  # whose doorbell was rung again

    def follow_schedule(self, kind: int) -> None:
        """Be as patient as the schedule of the device, enum npu_schedule, asks for. A running timer goes on as it is."""
        is_seeded = kind == C.NPU_SCHEDULE_SEED
        self._period_ps = self._usual_ps * (SEED_STRETCH if is_seeded else 1)
        self.drain_stretch = DRAIN_STRETCH if is_seeded else 1

    def arm(self) -> None:
        """Start the timer, if it does not run: jobs are in flight."""
        kernel = self._kernel
        if kernel.due_ps == NEVER_PS and self._period_ps and kernel.firmware.running and not kernel.removed:
            self._seen = {queue: queue.jobs[0] for _, queue in self._busy()}
            kernel.due_ps = kernel.device.now_ps + self._period_ps

    def _busy(self) -> list[tuple[Context, CommandQueue]]:
        contexts = self._kernel.contexts.values()
        return [(context, queue) for context in contexts for queue in context.queues.values() if queue.jobs]

    def fire(self) -> None:
        """Look at the jobs, and start the timer again while there is something to see."""
        kernel = self._kernel
        kernel.due_ps = NEVER_PS
        kernel.recovery.poll()
        if kernel.pending:
            kernel.after_interrupts()
        late = [(context, queue) for context, queue in self._busy() if self._seen.get(queue) is queue.jobs[0]]
        if not late:
            self._retries = 0
        elif not self._examine(late):
            return  # all of them wait for the host: whoever waits for them, and the next submit, start the timer again
        if kernel.due_ps == NEVER_PS and any(context.jobs for context in kernel.contexts.values()):
            self.arm()

    def _examine(self, late: list[tuple[Context, CommandQueue]]) -> bool:
        """Look into late jobs; False when there is nothing to do about them."""
        kernel = self._kernel
        try:
            heartbeat = kernel.firmware.heartbeat()
            grew, self._heartbeat = heartbeat != self._heartbeat, heartbeat
            states = {state.db_idx: state for state in kernel.firmware.queues()}
        except KernelError as error:
            kernel.note(f"watchdog: {error}")
            kernel.recovery.want("the firmware does not answer")
            kernel.after_interrupts()
            return not kernel.params.disable_recovery
        late = [(context, queue) for context, queue in late if queue.jobs and self._seen.get(queue) is queue.jobs[0]]
        hung = [queue for context, queue in late if self._judge(context, queue, states.get(queue.doorbell))]
        if kernel.pending:
            kernel.after_interrupts()
        if not hung:
            return any(not _waits(states.get(queue.doorbell)) for _, queue in late)
        if grew and self._retries < HEARTBEAT_RETRIES:
            self._retries += 1
            return True
        why = "heartbeat limit" if grew else "no progress"
        self._retries = 0
        job_id = hung[0].jobs[0].job_id if hung[0].jobs else 0
        text = f"{why}: job {job_id:#x} has not ended for {self._period_ps // 10**9} ms"
        if kernel.params.disable_recovery:
            kernel.note(f"{text}; recovery is disabled")
            return False
        for line in kernel.firmware.last_state():
            kernel.note(line)
        try:
            kernel.recovery.engine(text, hung=True)
        except KernelError as error:
            kernel.note(f"recovery failed: {error}")
        return True

    def _judge(self, context: Context, queue: CommandQueue, state: QueueState | None) -> bool:
        """Say whether the oldest job of a queue hangs. What got lost is made good."""
        kernel = self._kernel
        job = queue.jobs[0]
        if state is None:
            return True  # the firmware does not know a queue that it should
        if state.job_id == job.job_id:
            return not _waits(state)
        if state.job_id == 0 and queue.is_untouched():
            if self._rung is job:
                return True
            self._rung = job
            kernel.note(f"the doorbell {queue.doorbell} of job {job.job_id:#x} was lost")
            queue.ring(kernel.registers)
        elif state.job_id == 0:
            kernel.note(f"the end of job {job.job_id:#x} was not reported")
            kernel.abort_job(context, job, C.NPU_ABORT_NOT_REPORTED)
        else:
            kernel.note(f"the end of job {job.job_id:#x} was not reported: the firmware has job {state.job_id:#x}")
            kernel.abort_job(context, job, C.NPU_ABORT_NOT_REPORTED)
        return False

    def await_hang(self, deadline_ps: int) -> bool:
        """Let time pass until the watchdog looks at jobs that nothing in the device will end, for a wait that gets no further.

        False when that is after the deadline, and when the jobs wait for the host.
        """
        kernel = self._kernel
        if not self._period_ps or kernel.removed or not self._hangs():
            return False
        self.arm()
        if kernel.due_ps > deadline_ps:
            return False
        kernel.run_to(kernel.due_ps)
        return True

    def _hangs(self) -> bool:
        """Whether a job in flight waits for something else than the host. The firmware answers, or is found silent."""
        kernel = self._kernel
        try:
            states = {state.db_idx: state for state in kernel.firmware.queues()}
        except KernelError as error:
            kernel.note(f"watchdog: {error}")
            return kernel.pending and not kernel.params.disable_recovery
        if kernel.params.disable_recovery:
            return any(queue.is_untouched() for _, queue in self._busy())
        return any(not _waits(states.get(queue.doorbell)) for _, queue in self._busy())

    @property
    def sees_a_hang(self) -> bool:
        """Whether the registers alone show that the idle device is not done: an engine or the core that stands still, a message that waits."""
        kernel = self._kernel
        if kernel.due_ps == NEVER_PS or kernel.removed or kernel.params.disable_recovery:
            return False
        return not kernel.registers.peek(C.NPU_REG_NPU_STATUS) & C.NPU_STATUS_IDLE or kernel.interrupts.is_due()


def _waits(state: QueueState | None) -> bool:
    """Whether the job of a queue waits for the host."""
    return state is not None and state.job_id != 0 and state.stage == C.NPU_STAGE_FENCE
