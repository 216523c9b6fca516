"""Recovery: what the driver does about a device that hangs, crashed, is silent, or is gone.

Engine reset: the firmware takes all jobs off the engines and names the contexts whose task hung. Those are banned (EBADFD, their jobs end as
ABORTED); after ENGINE_RESUME the others go on. Full reset: the whole device starts anew and every job ends as ABORTED; contexts live on. It
is what is left when the firmware is gone, or says nonsense. A device that was unplugged reads all ones: every call is ENODEV, and close frees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C, codec, offsetof

from npu_driver.error import KernelError
from npu_driver.firmware import COLD, WARM
from npu_driver.watchdog import NEVER_PS

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel

ALL_ONES = 0xFFFFFFFF
_RESET_DONE = codec("npu_jsm_engine_reset_done", "engine_idx", "impacted_count")
IMPACTED_OFFSET = offsetof("npu_jsm_engine_reset_done", "impacted")
_IMPACTED = codec("npu_jsm_impacted", "host_ssid", "flags")


class Recovery:
    """The resets of one device, and how many there were."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.engine_resets = 0
        self.full_resets = 0
        self.lost_interrupts = 0
        self.resetting = False  # the firmware is ending the jobs that hang
        self.wanted = ""  # why a full reset is due, work for after the interrupt

    def want(self, why: str) -> None:
        """Have the device reset as soon as nobody is in the middle of a change; the first reason counts."""
        kernel = self._kernel
        if not self.wanted and not kernel.removed:
            self.wanted = why
            kernel.pending = True

    def work(self) -> None:
        """Do the reset that is due, if one is."""
        why, self.wanted = self.wanted, ""
        kernel = self._kernel
        if not why or kernel.removed:
            return
        if kernel.params.disable_recovery:
            kernel.note(f"{why}; recovery is disabled")
            return
        try:
            self.full(why)
        except KernelError as error:
            kernel.note(f"recovery failed: {error}")

    def boot(self, boot_type: int = COLD) -> None:
        """Boot, and give the contexts that there are their translations again, and the network on chip its priorities. Errors as of `Firmware.boot`.

        Priorities that the firmware does not take are those of the memory system until the next boot: not worth another reset, for ever.
        """
        kernel = self._kernel
        kernel.firmware.boot(boot_type)
        for ssid, context in kernel.contexts.items():
            kernel.mmu.attach(ssid, context.space)
        try:
            for client, priority in kernel.firmware.noc_priorities.items():
                kernel.firmware.set_noc_priority(client, priority)
        except KernelError as error:
            kernel.note(f"no priorities of the network on chip: {error}")
            self.wanted = ""

    def full(self, why: str, *, warm: bool = False) -> None:
        """Reset the device, abort every job of every context, and boot again. EIO when it does not boot; the next open tries again."""
        kernel = self._kernel
        kernel.note(f"reset: {why}")
        self.full_resets += 1
        self.wanted = ""
        kernel.firmware.stop()
        kernel.due_ps = NEVER_PS
        self._end_all(C.NPU_ABORT_RESET)
        try:
            self.boot(WARM if warm else COLD)
        except KernelError as error:
            if not warm or kernel.removed:
                raise
            kernel.note(f"no warm boot: {error}")  # what is in its memory may be damaged
            self.boot(COLD)
        kernel.now_ps = max(kernel.now_ps, kernel.device.now_ps)

    def _end_all(self, reason: int) -> None:
        kernel = self._kernel
        kernel.doorbells.clear()
        for context in kernel.contexts.values():
            for queue in context.queues.values():
                queue.reset()
                queue.doorbell = 0
            for job in list(context.jobs.values()):
                kernel.abort_job(context, job, reason)

    def engine(self, why: str, *, hung: bool) -> None:
        """Reset the engines and end the contexts that the firmware names as guilty; a full reset when that fails, or when something is known
        to have `hung` and the firmware names nobody.

        EIO when the device does not boot then.
        """
        kernel = self._kernel
        kernel.note(f"engine reset: {why}")
        self.engine_resets += 1
        self.resetting = True
        try:
            guilty = self._guilty(kernel.request(C.NPU_JSM_ENGINE_RESET, "npu_jsm_engine_reset"))
            if guilty or (guilty is not None and not hung):
                for context in guilty:
                    self.ban(context, f"it was the guilty one of an engine reset ({why})")
                kernel.request(C.NPU_JSM_ENGINE_RESUME, "npu_jsm_engine_resume")
                return
            why = "the firmware does not say who is guilty"
        except KernelError as error:
            why = str(error)
        finally:
            self.resetting = False
        if not kernel.removed:
            self.full(why)

    def _guilty(self, reply: bytes) -> list[Context] | None:
        """Return the contexts that a reply names as guilty; None for a list that is nonsense."""
        engine, count = _RESET_DONE.unpack_from(reply)
        if engine or count > C.NPU_MAX_IMPACTED:
            return None
        kernel = self._kernel
        found: list[Context] = []
        seen: set[int] = set()
        for index in range(count):
            ssid, flags = _IMPACTED.unpack_from(reply, IMPACTED_OFFSET + index * _IMPACTED.size)
            context = kernel.contexts.get(ssid)
            if context is None or ssid in seen or flags & ~C.NPU_IMPACTED_GUILTY:
                return None
            seen.add(ssid)
            if flags & C.NPU_IMPACTED_GUILTY:
                found.append(context)
        return found

    def ban(self, context: Context, why: str) -> None:
        """End a context whose task hung: its jobs are aborted, its doorbells and rings freed, and its calls fail from now on (EBADFD)."""
        kernel = self._kernel
        kernel.note(f"context {context.ssid}: {why}")
        if context.lost is None:
            context.lost = why
            context.faults += 1
        heads = [queue.jobs[0] for queue in context.queues.values() if queue.jobs]
        for job in context.jobs.values():
            job.abort_reason = C.NPU_ABORT_HUNG if job in heads else C.NPU_ABORT_LOST
        kernel.end_queues(context)

    # ---- interrupts that did not come, devices that are not there ----

    def poll(self) -> None:
        """Serve what the device reports although no interrupt came; free the slots of messages that got lost."""
        kernel = self._kernel
        if self.is_gone():
            return
        if kernel.interrupts.is_due():
            self.lost_interrupts += 1
            kernel.note("an interrupt was lost")
            kernel.interrupts.handle()
        kernel.ipc.reclaim()

    def is_gone(self) -> bool:
        """Whether the device has been unplugged."""
        kernel = self._kernel
        if not kernel.removed and kernel.registers.read(C.NPU_REG_ID_MAGIC) == ALL_ONES:
            kernel.remove()
        return kernel.removed

    def unplug(self) -> None:
        """End every context of a device that is gone."""
        for context in self._kernel.contexts.values():
            context.lost = context.lost or "the device is gone"
        self._end_all(C.NPU_ABORT_UNPLUGGED)
