"""The kernel-mode driver of one device: system calls in, registers and DRAM out.

`syscall` is the only door. It runs the device up to the caller's position on the clock, does the call, adds what the
call costs the host, and runs the device to the new position. A blocking call moves the position to what it waited
for. Interrupts arrive while the device runs; what they ask for beyond bookkeeping (killing a context) is done
afterwards, outside the handler.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

from npu_abi import C, codec, ffi
from npu_abi import enum as abi_enum

from npu_driver.cpu_cache import CpuCaches
from npu_driver.dma import dma_alloc_coherent, dma_free_coherent
from npu_driver.error import KernelError
from npu_driver.export import Exports
from npu_driver.file import Context
from npu_driver.firmware import STRIDE_PS, Firmware
from npu_driver.inject import Faults
from npu_driver.interrupts import InterruptHandler
from npu_driver.ioctls import NUMBERS, TABLE
from npu_driver.job import Job
from npu_driver.limits import check_contexts, check_doorbells
from npu_driver.memory import Memory
from npu_driver.params import Params
from npu_driver.process import Process, this_process
from npu_driver.queue import RING_BYTES, CommandQueue, priority_band
from npu_driver.recovery import Recovery
from npu_driver.registers import Registers
from npu_driver.watchdog import NEVER_PS, Watchdog

if TYPE_CHECKING:
    from typing import Any

    from npu_model.profile import Profile

    from npu_driver.bo import BufferObject
    from npu_driver.device_api import DeviceApi
    from npu_driver.ipc import Ipc
    from npu_driver.mappings import Mappings
    from npu_driver.mmu import Mmu

DRAIN_TIMEOUT_PS = 2000 * 10**9  # 2000 ms: as the public driver's watchdog; how long close waits for jobs
FIRST_FD = 3
DEFAULTS = Params()


BOOT_DONE = int(C.NPU_JSM_BOOT_DONE)
_JOB_DONE = codec(
    "npu_jsm_job_done", "db_idx", "job_id", "job_status", "host_ssid", "error_detail", "error_info", "start_ps", "end_ps"
)  # fmt: skip
STATUSES = frozenset(int(status) for status in abi_enum("npu_job_status"))


class Completion(Protocol):
    """Something that an interrupt finishes: a job, a request."""

    @property
    def finished(self) -> bool: ...


class Kernel:
    """One device node.

    `firmware` replaces the installed image (None = the installed one). `log` is the kernel's message buffer.
    """

    def __init__(self, device: DeviceApi, firmware: bytes | None = None, params: Params = DEFAULTS) -> None:
        profile = device.profile
        host = profile.host
        self.device: DeviceApi = device
        self.params: Params = params
        self.profile: Profile = profile
        self.log: deque[str] = deque(maxlen=256)
        self.registers: Registers = Registers(device.bus)
        self.memory: Memory = Memory(device.dram, profile.ddr.capacity_bytes)
        self.caches = CpuCaches(self.memory, params)
        self.now_ps = 0  # the calling process's position, during a call
        self.current: Process = this_process()  # who calls
        self.exports = Exports()
        self.firmware_header: Any = None
        self.tile_config: int = 0
        self.frequency_hz: int = 0
        self.inference_ids: int = 0
        self.jobs_done = self.jobs_failed = self.mmu_faults = 0  # of all contexts that there were
        self.module_loads = 1
        self.trace = bytearray()
        self.files: dict[int, Context] = {}
        self.contexts: dict[int, Context] = {}  # by SSID
        self.doorbells: dict[int, CommandQueue] = {}
        self.mmu: Mmu
        self.ipc: Ipc
        self.interrupts: InterruptHandler
        self.firmware = Firmware(self, firmware)
        self.recovery = Recovery(self)
        self.watchdog = Watchdog(self)
        self.injection = Faults(self)
        self.faults: Faults | None = None  # while one is armed in the driver
        self.due_ps = NEVER_PS  # when the watchdog wants to look
        self.pending = False  # there is work for after the interrupt
        self.removed = False  # the device is gone
        self.rows = TABLE
        self._run = device.run_until
        self._call_ps = max(1000, round(host.ioctl_ns * 1000))
        self._mmio_ps = round(host.mmio_ns * 1000)
        self.interrupt_ps = round(host.interrupt_ns * 1000)
        self._lock = threading.Lock()
        self._banned: list[Context] = []  # contexts whose jobs must go, work for after the interrupt
        self.unmapped: deque[BufferObject] = deque()  # objects of which a mapping has ended
        self.mapped: dict[int, Mappings] = {}  # what each process has mapped, by pid
        self._released: list[Any] = []  # (context, freed buffer object) that the last job let go

    # ---- the seam ----

    def syscall(self, number: int, arg: bytes, segments: list[bytes], now_ps: int) -> tuple[int, bytes, list[Any], int]:
        """Do one system call and return (result >= 0 or -errno, structure, segments, caller's new position).

        `number` is fd << 32 | request word (npu_uapi.h). `segments` are the contents behind the structure's [in]
        pointers, in the order of the ioctl table, and on return those behind its [out] pointers; mmap returns its
        memory as the only segment.
        """
        with self._lock:
            self.now_ps = now_ps
            if now_ps < self.due_ps:
                self._run(now_ps)
            else:
                self.run_to(now_ps)
            if self.pending:
                self.after_interrupts()
            if self.caches.active:
                self.caches.enter(self.current)
            request = number & 0xFFFFFFFF
            out, replies = arg, _NONE
            row = self.rows.get(request)
            try:
                if row is None:
                    if self.removed:
                        raise KernelError(errno.ENODEV, "the device is gone")
                    known = request & 0xFF in NUMBERS
                    why = "structure size" if known else "ioctl number"
                    raise KernelError(errno.EINVAL if known else errno.ENOTTY, f"unknown {why} in request {request:#x}")
                struct = row.copy_in(arg, segments)
                context = self.files.get(number >> 32)
                if context is None and row.needs_file:
                    raise KernelError(errno.EBADF, f"file descriptor {number >> 32} is not open")
                ret, replies = row.handler(self, context, struct, segments)
                if struct is not None:
                    out = bytes(ffi.buffer(struct))
            except KernelError as error:
                ret = -error.code
                self.note(f"{row.name if row else request}: {error}")
            now = self.now_ps
            registers = self.registers
            if row is None or not row.free:
                now += self._call_ps + registers.accesses * self._mmio_ps
            registers.accesses = 0
            if now < self.due_ps:
                self._run(now)
            else:
                self.run_to(now)
            if self.pending:
                self.after_interrupts()
            if self.caches.active:
                self.caches.leave(self.current)
            return ret, out, replies, now

    def note(self, text: str) -> None:
        """Add a line to the kernel log."""
        self.log.append(f"[{self.now_ps / 1e12:.9f}] npu: {text}")

    # ---- the module, open and close ----

    def load(self, params: Params) -> None:
        """Load the module anew, with other parameters: the device is reset, and boots at the next open. No file is open."""
        if self.firmware.running:
            self.firmware.stop()
        self.firmware.noc_priorities.clear()
        self.params = params
        self.caches = CpuCaches(self.memory, params)
        self.device.set_schedule(C.NPU_SCHEDULE_TIMED, 0)
        self.watchdog = Watchdog(self)
        self.due_ps = NEVER_PS
        self.module_loads += 1
        self.note(f"module loaded: {params.text().rstrip().replace(chr(10), ' ')}")

    def open(self) -> int:
        """Open the node: a file descriptor with a context of its own.

        EMFILE when all contexts are taken, or those that are for one user (limits.py); boots on first use, and again when the boot before failed.
        """
        if not self.firmware.running:
            self.recovery.boot()
        ssid = next((s for s in range(C.NPU_SSID_FIRST_USER, C.NPU_NUM_SSIDS) if s not in self.contexts), None)
        if ssid is None:
            raise KernelError(errno.EMFILE, f"all {C.NPU_NUM_SSIDS - C.NPU_SSID_FIRST_USER} contexts are in use")
        check_contexts(self)
        context = Context(ssid, self.memory, self.mmu, self.unmapped, self.current)
        fd = FIRST_FD
        while fd in self.files:
            fd += 1
        self.files[fd] = self.contexts[ssid] = context
        return fd

    def close(self, context: Context) -> None:
        """Wait for the context's jobs, abort those that do not end, and free everything that the file owned."""
        deadline = self.device.now_ps + DRAIN_TIMEOUT_PS
        while context.jobs and self.run_device(next(iter(context.jobs.values())), deadline):
            pass
        self.abort_jobs(context)
        if not self._ask_twice(C.NPU_JSM_SSID_RELEASE, "npu_jsm_ssid_release", host_ssid=context.ssid):
            self.recovery.want(f"context {context.ssid} could not be released")
        for queue in list(context.queues.values()):
            self.destroy_queue(context, queue)
        self.after_interrupts()
        self.device.drain_overflows(context.ssid)  # for the next owner of the number
        self.device.watch_accesses(context.ssid, False)
        context.destroy()
        del self.contexts[context.ssid]
        for fd, file in list(self.files.items()):
            if file is context:
                del self.files[fd]
        self.mapped = {pid: mappings for pid, mappings in self.mapped.items() if mappings}
        self.now_ps = max(self.now_ps, self.device.now_ps)

    # ---- queues and jobs ----

    def create_queue(self, context: Context, cmdq_id: int, priority: int, flags: int = 0) -> CommandQueue:
        """Make a command queue with its ring mapped in SSID 0; `flags` of struct npu_job_queue_header.

        The doorbell comes with the first submit.
        """
        ring, va = dma_alloc_coherent(self.firmware.dma, RING_BYTES)
        queue = context.queues[cmdq_id] = CommandQueue(cmdq_id, priority, flags, ring, va)
        return queue

    def destroy_queue(self, context: Context, queue: CommandQueue) -> None:
        """Unregister and free a queue that has no job in flight."""
        self._free_ring(queue)
        del context.queues[queue.cmdq_id]

    def _free_ring(self, queue: CommandQueue) -> None:
        """Take a queue without jobs from the firmware, and give its ring back."""
        self._unregister(queue)
        if queue.pages is not None:
            dma_free_coherent(self.firmware.dma, RING_BYTES, queue.pages, queue.va)
            queue.pages = None

    def register(self, context: Context, queue: CommandQueue) -> None:
        """Give the queue a doorbell and tell the firmware. EBUSY when all doorbells are taken, or those that are for one user; else as `request`."""
        doorbell = next((d for d in range(1, C.NPU_NUM_DOORBELLS) if d not in self.doorbells), None)
        if doorbell is None:
            raise KernelError(errno.EBUSY, f"all {C.NPU_NUM_DOORBELLS - 1} doorbells are in use")
        check_doorbells(self, context)
        try:
            self.request(
                C.NPU_JSM_REGISTER_DB, "npu_jsm_register_db", db_idx=doorbell, host_ssid=context.ssid, jobq_va=queue.va,
                jobq_size=C.NPU_JOBQ_SIZE, priority_band=priority_band(queue.priority),
            )  # fmt: skip
        except KernelError:
            self._take_off(doorbell)  # it may have been only the reply that got lost
            raise
        self.doorbells[doorbell] = queue
        queue.doorbell = doorbell
        queue.registered = True

    def _unregister(self, queue: CommandQueue) -> None:
        if queue.registered:
            self._take_off(queue.doorbell)
            self.doorbells.pop(queue.doorbell, None)
            queue.reset()
            queue.doorbell = 0

    def _take_off(self, doorbell: int) -> None:
        """Make the firmware forget a doorbell, whose ring may be gone soon; a reset when it does not say so."""
        if not self._ask_twice(C.NPU_JSM_UNREGISTER_DB, "npu_jsm_unregister_db", db_idx=doorbell):
            self.recovery.want(f"doorbell {doorbell} could not be taken off")

    def _ask_twice(self, kind: int, struct: str, **payload: int) -> bool:
        """Send a request that can be repeated, and once more when an answer does not come; whether one came."""
        for _ in range(2):
            try:
                self.request(kind, struct, **payload)
            except KernelError as error:
                self.note(str(error))
                if error.code == errno.EBADE:
                    return True  # it knows nothing of it: then there is nothing to undo
                if self.recovery.wanted or error.code not in (errno.ETIMEDOUT, errno.EBADMSG):
                    return self.removed or not self.firmware.running
            else:
                return True
        return False

    def request(self, kind: int, struct: str, **payload: int) -> bytes:
        """Send a message to the firmware and return the payload of its reply; see `Firmware.request`."""
        return self.firmware.request(kind, struct, **payload)

    def abort_queue(self, context: Context, queue: CommandQueue) -> None:
        """Take a queue from the firmware and abort what is left in it."""
        self._unregister(queue)
        for job in list(queue.jobs):
            self.abort_job(context, job)

    def abort_jobs(self, context: Context, reason: int = 0) -> None:
        """Take all queues of a context from the firmware and abort what is left in them, for enum npu_abort_reason."""
        for queue in context.queues.values():
            self._unregister(queue)
        for job in list(context.jobs.values()):
            self.abort_job(context, job, reason)

    def end_queues(self, context: Context) -> None:
        """End what a lost context has with the firmware: its jobs are aborted, its doorbells and rings freed. Its queues keep their ids."""
        self.abort_jobs(context, C.NPU_ABORT_LOST)
        for queue in context.queues.values():
            self._free_ring(queue)

    def abort_job(self, context: Context, job: Job, reason: int = 0) -> None:
        """End a job in flight that the firmware does not have any more."""
        job.abort_reason = job.abort_reason or reason
        self._finish(context, job, C.NPU_JOB_ABORTED)

    def _finish(self, context: Context, job: Job, status: int) -> None:
        if self.caches.active:
            self.caches.job_ended(context.owner)
        job.status = status
        if status == C.NPU_JOB_ABORTED and job.abort_reason:
            job.error_detail, job.error_info = job.abort_reason, 0
        context.jobs_done += 1
        self.jobs_done += 1
        if job.end_ps > job.start_ps:  # the firmware says so
            context.busy_ps += job.end_ps - job.start_ps
        if status != C.NPU_JOB_SUCCESS:
            context.jobs_failed += 1
            self.jobs_failed += 1
        job.finished = True
        job.done_ps = self.device.now_ps + self.interrupt_ps
        del context.jobs[job.job_id]
        job.queue.jobs.remove(job)
        command = job.buffers[0]
        if not command.freed and not job.waited:
            context.unwaited[command.handle] = job
        for bo in job.buffers:
            bo.jobs -= 1
            if bo.freed and not bo.jobs:
                self._released.append((context, bo))
                self.pending = True
        job.buffers = []

    # ---- running the device ----

    def run_device(self, until: Completion, deadline_ps: int) -> bool:
        """Run the device from interrupt to interrupt until `until` is finished.

        False when the deadline passes first or nothing is left to happen; the device may then be up to a stride past
        its last event.
        """
        while not until.finished:
            if not self.step(deadline_ps):
                return False
        return True

    def step(self, deadline_ps: int) -> bool:
        """Run the device to its next interrupt, or for a stride. False when nothing is left to happen before the deadline."""
        device = self.device
        next_ps = device.next_event_ps()
        if next_ps is None or next_ps > deadline_ps:
            return False
        limit_ps = min(deadline_ps, next_ps + STRIDE_PS)
        if limit_ps < self.due_ps:
            device.run_until_interrupt(limit_ps)
        elif not device.run_until_interrupt(self.due_ps):
            self.watchdog.fire()
        if self.pending:
            self.after_interrupts()
        return True

    def run_to(self, time_ps: int) -> None:
        """Run the device to a time, and the watchdog whenever it is due on the way."""
        while time_ps >= self.due_ps:
            self._run(self.due_ps)
            self.watchdog.fire()
        self._run(time_ps)

    def after_interrupts(self) -> None:
        """Do what interrupts asked for: abort the jobs of faulted contexts, reset a device that needs it, free objects that only jobs
        kept alive.
        """
        while self.pending:
            self.pending = False
            if self.removed:
                self.recovery.unplug()
            while self._banned:
                self.end_queues(self._banned.pop(0))
            self.recovery.work()
            while self._released:
                context, bo = self._released.pop(0)
                context.release(bo)

    # ---- what interrupts bring ----

    def connect(self) -> None:
        """Let interrupts, and the removal of the device, reach the driver. The message areas are there."""
        self.interrupts = InterruptHandler(self)
        self.device.connect_irq(self.interrupts.handle)
        self.device.connect_removal(self.remove)

    def remove(self) -> None:
        """Take note that the device was unplugged: from now on every call but close is ENODEV, and those of the emulator work."""
        if not self.removed:
            self.note("the device is gone")
            self.removed = self.pending = True
            self.due_ps = NEVER_PS
            self.restore_rows()

    def restore_rows(self) -> None:
        """Let calls go where they belong."""
        self.rows = TABLE
        if self.removed:
            self.rows = {request: row for request, row in TABLE.items() if row.free or row.name == "NPU_SYS_CLOSE"}

    def lose(self, ssid: int, why: str) -> None:
        """Take note of a fault of a context; one of the firmware itself needs a reset."""
        context = self.contexts.get(ssid)
        self.note(f"context {ssid}: {why}")
        if ssid == C.NPU_SSID_GLOBAL:
            self.recovery.want(f"fault in the firmware's own memory: {why}")
        if context is not None:
            context.faults += 1
            if context.lost is None:
                context.lost = why
                self._banned.append(context)
                self.pending = True

    def on_message(self, kind: int, payload: bytes) -> None:
        """Take a message that answers no request. Nothing in it is trusted."""
        if kind == BOOT_DONE:
            self.firmware.boot_done.finished = True
            return
        doorbell, job_id, status, ssid, detail, info, start_ps, end_ps = _JOB_DONE.unpack_from(payload)
        context = self.contexts.get(job_id >> 8)
        job = context.jobs.get(job_id) if context else None
        if context is None or job is None:
            self.note(f"JOB_DONE for job {job_id:#x}, which is not in flight")
            return
        if ssid != context.ssid or doorbell != job.queue.doorbell or status not in STATUSES:
            self.note(
                f"JOB_DONE for job {job_id:#x} of context {ssid}, doorbell {doorbell}, status {status:#x}: dropped"
            )
            return
        now_ps = self.device.now_ps
        job.error_detail, job.error_info = detail, info
        job.start_ps, job.end_ps = min(start_ps, now_ps), min(end_ps, now_ps)
        if status == C.NPU_JOB_ABORTED and self.recovery.resetting:
            job.abort_reason = job.abort_reason or C.NPU_ABORT_HUNG
        fault = status == C.NPU_JOB_CTX_VIOLATION
        if context.lost is not None and status == C.NPU_JOB_SUCCESS:
            status = C.NPU_JOB_ABORTED  # the context is gone, and with it what the job meant
        self._finish(context, job, status)
        if fault:
            self.lose(context.ssid, f"job {job_id:#x} touched {detail:#x}")


_NONE: list[Any] = []
