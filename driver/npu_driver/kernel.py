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

from npu_abi import C, codec, ffi, name_of

from npu_driver import boot, state_dump
from npu_driver.cpu_cache import CpuCaches
from npu_driver.error import KernelError
from npu_driver.file import Context
from npu_driver.interrupts import CAUSES, InterruptHandler
from npu_driver.ioctls import NUMBERS, TABLE
from npu_driver.ipc import AREA_PAGES, Area, Ipc, check_reply
from npu_driver.job import Job
from npu_driver.memory import Memory
from npu_driver.mmu import AddressSpace, Mmu
from npu_driver.params import Params
from npu_driver.process import Process, this_process
from npu_driver.queue import CommandQueue, priority_band
from npu_driver.registers import Registers
from npu_driver.va import VaRange

if TYPE_CHECKING:
    from typing import Any

    from npu_model.profile import Profile

    from npu_driver.bo import BufferObject
    from npu_driver.device_api import DeviceApi

MESSAGE_TIMEOUT_PS = 500 * 10**9  # 500 ms, as the public driver
DRAIN_TIMEOUT_PS = 2000 * 10**9  # 2000 ms: as the public driver's watchdog; how long close waits for jobs
STRIDE_PS = (
    10**8
)  # chosen: 100 us, the most that a wait without deadline runs past the last event, or others wait for it
FIRST_FD = 3
DEFAULTS = Params()


BOOT_DONE = int(C.NPU_JSM_BOOT_DONE)
_JOB_DONE = codec("npu_jsm_job_done", "job_id", "job_status", "error_detail", "error_info", "start_ps", "end_ps")


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
        self.firmware_header: Any = None
        self.tile_config: int = 0
        self.frequency_hz: int = 0
        self.inference_ids: int = 0
        self.trace = bytearray()
        self.files: dict[int, Context] = {}
        self.contexts: dict[int, Context] = {}  # by SSID
        self.doorbells: dict[int, CommandQueue] = {}
        self.mmu: Mmu
        self.ipc: Ipc
        self._firmware = firmware
        self._run = device.run_until
        self._space: AddressSpace
        self._addresses = VaRange(C.NPU_VA_GLOBAL_BASE, C.NPU_VA_GLOBAL_END)
        self._areas: tuple[Area, Area]
        self._image_pa: tuple[int, int] | None = None
        self._call_ps = max(1000, round(host.ioctl_ns * 1000))
        self._mmio_ps = round(host.mmio_ns * 1000)
        self._interrupt_ps = round(host.interrupt_ns * 1000)
        self._lock = threading.Lock()
        self._boot_done = _Flag()
        self._silent = False  # the firmware has not answered since it booted
        self._banned: list[Context] = []  # contexts whose jobs must go, work for after the interrupt
        self._lingering: list[BufferObject] = []  # objects whose pages a mapping still shows
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
            self._run(now_ps)
            if self._banned or self._released:
                self.after_interrupts()
            if self.caches.active:
                self.caches.enter()
            request = number & 0xFFFFFFFF
            out, replies = arg, _NONE
            row = TABLE.get(request)
            try:
                if row is None:
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
            self._run(now)
            if self._banned or self._released:
                self.after_interrupts()
            if self.caches.active:
                self.caches.leave()
            return ret, out, replies, now

    def note(self, text: str) -> None:
        """Add a line to the kernel log."""
        self.log.append(f"[{self.now_ps / 1e12:.9f}] npu: {text}")

    # ---- open and close ----

    def open(self) -> int:
        """Open the node: a file descriptor with a context of its own.

        EMFILE when all contexts are taken, or those of one user (max_contexts); boots on first use, and again when the firmware has left a message without
        an answer.
        """
        if self.firmware_header is None:
            self.boot()
        elif self._silent:
            self.recover()
        ssid = next((s for s in range(C.NPU_SSID_FIRST_USER, C.NPU_NUM_SSIDS) if s not in self.contexts), None)
        if ssid is None:
            raise KernelError(errno.EMFILE, f"all {C.NPU_NUM_SSIDS - C.NPU_SSID_FIRST_USER} contexts are in use")
        limit, uid = self.params.max_contexts, self.current.uid
        if limit and sum(context.owner.uid == uid for context in self.contexts.values()) >= limit:
            raise KernelError(errno.EMFILE, f"user {uid} has max_contexts {limit} contexts")
        context = Context(ssid, self.memory, self.mmu, self._lingering, self.current)
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
        try:
            self.request(C.NPU_JSM_SSID_RELEASE, "npu_jsm_ssid_release", host_ssid=context.ssid)
        except KernelError as error:
            self.note(f"release of context {context.ssid}: {error}")
        for queue in list(context.queues.values()):
            self.destroy_queue(context, queue)
        self.after_interrupts()
        self.device.drain_overflows(context.ssid)  # for the next owner of the number
        context.destroy()
        del self.contexts[context.ssid]
        for fd, file in list(self.files.items()):
            if file is context:
                del self.files[fd]
        self.now_ps = max(self.now_ps, self.device.now_ps)

    # ---- boot and recovery ----

    def boot(self) -> None:
        """Bring the device up: identify, check and load the firmware, enable translation, wait for BOOT_DONE.

        ENODEV, EIO.
        """
        registers = self.registers
        magic = registers.read(C.NPU_REG_ID_MAGIC)
        if magic != C.NPU_HW_MAGIC:
            raise KernelError(errno.ENODEV, f"ID_MAGIC reads {magic:#x}, not NPU_HW_MAGIC {C.NPU_HW_MAGIC:#x}")
        image = self._firmware if self._firmware is not None else boot.read_image()
        header = boot.check_image(image)
        if self._image_pa is None:
            fused = registers.read(C.NPU_REG_TILE_FUSE)
            self.tile_config = ((1 << self.profile.tiles) - 1) & ~fused
            self.frequency_hz = registers.read(C.NPU_REG_PLL_FREQ_HZ)
            self._space = AddressSpace(self.memory)
            self.mmu = Mmu(self.memory, registers, skip_tlbi=self.params.has("skip_tlbi"))
            self._areas = (self._area(), self._area())
            self._dump = self._area()
            self.ipc = Ipc(self.device.bus, *self._areas, self._on_message)
            self._image_pa = boot.load(
                self.memory, image, tx=self._areas[0], rx=self._areas[1], tile_config=self.tile_config,
                frequency_hz=self.frequency_hz, now_ps=self.now_ps,
            )  # fmt: skip
            self.device.connect_irq(InterruptHandler(self.device.bus, self.ipc, self._lose, self.note).handle)
        self.mmu.enable()
        self.mmu.attach(C.NPU_SSID_GLOBAL, self._space)
        registers.write(C.NPU_REG_ICB_ENABLE, CAUSES)
        registers.write(C.NPU_REG_GLOBAL_INT_MASK, 0)
        self._boot_done.finished = False
        boot.start(registers, *self._image_pa)
        if not self.run_device(self._boot_done, self.device.now_ps + boot.BOOT_TIMEOUT_PS):
            status = name_of("npu_boot_status", registers.read(C.NPU_REG_BOOT_STATUS))
            raise KernelError(errno.EIO, f"the firmware did not boot: BOOT_STATUS is {status}")
        self.firmware_header = header
        self._silent = False
        self.now_ps = max(self.now_ps, self.device.now_ps)
        self.note(f"firmware {_text(header.version)}, {self.tile_config.bit_count()} tiles, {self.frequency_hz} Hz")

    def recover(self) -> None:
        """Reset the device, abort every job of every context, and boot again.

        Contexts live on; EIO when the boot fails.
        """
        self.note("reset")
        self.registers.write(C.NPU_REG_IP_RESET, C.NPU_IP_RESET_TRIGGER)
        self.ipc.forget_all()
        for context in self.contexts.values():
            for queue in context.queues.values():
                queue.reset()
                queue.doorbell = 0
            for job in list(context.jobs.values()):
                self._finish(context, job, C.NPU_JOB_ABORTED)
        self.doorbells.clear()
        self.firmware_header = None
        self.boot()
        for ssid, context in self.contexts.items():
            self.mmu.attach(ssid, context.space)
        self.after_interrupts()

    def _area(self) -> Area:
        area = Area(self.memory, self._addresses.alloc(AREA_PAGES))
        self._space.map(area.va, area.pa, AREA_PAGES)
        return area

    def dump_state(self) -> None:
        """Let the firmware write its state, and log it. Errors as of `request`."""
        area = self._dump
        self.request(
            C.NPU_JSM_STATE_DUMP, "npu_jsm_state_dump", buffer_va=area.va, buffer_bytes=len(area.memory)
        )  # fmt: skip
        for line in state_dump.lines(area.memory):
            self.note(line)

    # ---- queues and jobs ----

    def create_queue(self, context: Context, cmdq_id: int, priority: int, flags: int = 0) -> CommandQueue:
        """Make a command queue with its ring mapped in SSID 0; `flags` of struct npu_job_queue_header.

        The doorbell comes with the first submit.
        """
        va = self._addresses.alloc(1)
        try:
            pa, ring = self.memory.alloc_zeroed(1)
        except KernelError:
            self._addresses.free(va)
            raise
        try:
            self._space.map(va, pa, 1)
        except KernelError:
            self._addresses.free(va)
            self.memory.free(pa)
            raise
        queue = context.queues[cmdq_id] = CommandQueue(cmdq_id, priority, flags, pa, va, ring)
        return queue

    def destroy_queue(self, context: Context, queue: CommandQueue) -> None:
        """Unregister and free a queue that has no job in flight."""
        self._unregister(queue)
        self._space.unmap(queue.va, 1)
        self.mmu.invalidate(C.NPU_SSID_GLOBAL)
        self._addresses.free(queue.va)
        self.memory.free(queue.pa)
        del context.queues[queue.cmdq_id]

    def register(self, context: Context, queue: CommandQueue) -> None:
        """Give the queue a doorbell and tell the firmware. EBUSY when all doorbells are taken; else as `request`."""
        doorbell = next((d for d in range(1, C.NPU_NUM_DOORBELLS) if d not in self.doorbells), None)
        if doorbell is None:
            raise KernelError(errno.EBUSY, f"all {C.NPU_NUM_DOORBELLS - 1} doorbells are in use")
        self.request(
            C.NPU_JSM_REGISTER_DB, "npu_jsm_register_db", db_idx=doorbell, host_ssid=context.ssid, jobq_va=queue.va,
            jobq_size=C.NPU_JOBQ_SIZE, priority_band=priority_band(queue.priority),
        )  # fmt: skip
        self.doorbells[doorbell] = queue
        queue.doorbell = doorbell
        queue.registered = True

    def _unregister(self, queue: CommandQueue) -> None:
        if queue.registered:
            try:
                self.request(C.NPU_JSM_UNREGISTER_DB, "npu_jsm_unregister_db", db_idx=queue.doorbell)
            except KernelError as error:
                self.note(f"doorbell {queue.doorbell}: {error}")
            self.doorbells.pop(queue.doorbell, None)
            queue.reset()
            queue.doorbell = 0

    def request(self, kind: int, struct: str, **payload: int) -> bytes:
        """Send a message, wait for the reply and return its payload. EAGAIN, ETIMEDOUT, EBADMSG, EBADE."""
        fields = ffi.new(f"struct {struct} *", payload)
        request = self.ipc.send(self.registers, kind, bytes(ffi.buffer(fields)), C.NPU_IPC_CHAN_ASYNC_CMD)
        if not self.run_device(request, self.device.now_ps + MESSAGE_TIMEOUT_PS):
            self.ipc.forget(request)
            self.now_ps = max(self.now_ps, self.device.now_ps + MESSAGE_TIMEOUT_PS)
            self._silent = True
            raise KernelError(errno.ETIMEDOUT, f"no answer to {name_of('npu_jsm_type', kind)}")
        self.now_ps = max(self.now_ps, self.device.now_ps + self._interrupt_ps)
        return check_reply(request)

    def abort_queue(self, context: Context, queue: CommandQueue) -> None:
        """Take a queue from the firmware and abort what is left in it."""
        self._unregister(queue)
        for job in list(queue.jobs):
            self._finish(context, job, C.NPU_JOB_ABORTED)

    def abort_jobs(self, context: Context) -> None:
        """Take all queues of a context from the firmware and abort what is left in them."""
        for queue in context.queues.values():
            self._unregister(queue)
        for job in list(context.jobs.values()):
            self._finish(context, job, C.NPU_JOB_ABORTED)

    def _finish(self, context: Context, job: Job, status: int) -> None:
        if self.caches.active:
            self.caches.job_ended()
        job.status = status
        job.finished = True
        job.done_ps = self.device.now_ps + self._interrupt_ps
        del context.jobs[job.job_id]
        job.queue.jobs.remove(job)
        command = job.buffers[0]
        if not command.freed and not job.waited:
            context.unwaited[command.handle] = job
        for bo in job.buffers:
            bo.jobs -= 1
            if bo.freed and not bo.jobs:
                self._released.append((context, bo))
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
        device.run_until_interrupt(min(deadline_ps, next_ps + STRIDE_PS))
        if self._banned:
            self.after_interrupts()
        return True

    def after_interrupts(self) -> None:
        """Do what interrupts asked for: abort the jobs of faulted contexts, free objects that only jobs kept alive."""
        while self._banned:
            context = self._banned.pop(0)
            self.abort_jobs(context)
        while self._released:
            context, bo = self._released.pop(0)
            context.release(bo)

    # ---- what interrupts bring ----

    def _lose(self, ssid: int, why: str) -> None:
        context = self.contexts.get(ssid)
        self.note(f"context {ssid}: {why}")
        if context is not None and context.lost is None:
            context.lost = why
            self._banned.append(context)

    def _on_message(self, kind: int, payload: bytes) -> None:
        if kind == BOOT_DONE:
            self._boot_done.finished = True
            return
        job_id, job_status, detail, info, start_ps, end_ps = _JOB_DONE.unpack_from(payload)
        context = self.contexts.get(job_id >> 8)
        job = context.jobs.get(job_id) if context else None
        if context is None or job is None:
            self.note(f"JOB_DONE for job {job_id:#x}, which is not in flight")
            return
        job.error_detail, job.error_info = detail, info
        job.start_ps, job.end_ps = start_ps, end_ps
        status = job_status
        if context.lost is not None and status == C.NPU_JOB_SUCCESS:
            status = C.NPU_JOB_ABORTED  # the context is gone, and with it what the job meant
        self._finish(context, job, status)
        if job_status == C.NPU_JOB_CTX_VIOLATION:
            self._lose(context.ssid, f"job {job_id:#x} touched {detail:#x}")


class _Flag:
    """A completion without a value."""

    __slots__ = ("finished",)

    def __init__(self) -> None:
        self.finished = False


_NONE: list[Any] = []


def _text(chars: Any) -> str:
    return bytes(ffi.buffer(chars)).split(b"\0")[0].decode(errors="replace")
