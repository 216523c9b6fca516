"""The firmware as the driver keeps it: its image in DRAM, the message areas, boot, and requests that wait for a reply.

Cold boot: the image is read, checked and copied, as at first. Warm boot: the image that is in DRAM, and was checked when it came there,
is started again. The firmware starts from nothing either way.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, name_of

from npu_driver import boot, state_dump
from npu_driver.dma import DmaDevice
from npu_driver.error import KernelError
from npu_driver.ipc import AREA_PAGES, Area, Ipc, check_reply
from npu_driver.mmu import AddressSpace, Mmu
from npu_driver.process import printable
from npu_driver.va import VaRange

if TYPE_CHECKING:
    from npu_driver.kernel import Kernel

MESSAGE_TIMEOUT_PS = 500 * 10**9  # 500 ms, as the public driver
STRIDE_PS = (
    10**8
)  # chosen: 100 us, the most that a wait without deadline runs past the last event, or others wait for it
VERSION_BYTES = 128  # chosen: of the firmware's version in the log
COLD, WARM = 0, 1  # boot_type of struct npu_boot_params
CAUSES = int(C.NPU_ICB_HOST_IPC_FIFO | C.NPU_ICB_MMU_EVENT | C.NPU_ICB_CORE_FAULT)


class Flag:
    """A completion without a value."""

    __slots__ = ("finished",)

    def __init__(self) -> None:
        self.finished = False


class Firmware:
    """The firmware of one device. `image` replaces the installed one (None = the installed one). `space`: what SSID 0 sees."""

    def __init__(self, kernel: Kernel, image: bytes | None) -> None:
        self._kernel = kernel
        self._image = image
        self._places: tuple[int, int] | None = None  # physical addresses of image and boot parameters
        self._header: Any = None  # struct npu_fw_header of it
        self._size = 0  # of the image that has a place
        self._started = False
        self.running = False  # it has booted, and nothing has ended it
        self.noc_priorities: dict[int, int] = {}  # by client, that were set since the module was loaded
        self.addresses = VaRange(C.NPU_VA_GLOBAL_BASE, C.NPU_VA_GLOBAL_END)
        self.space: AddressSpace
        self.ipc: Ipc
        self.boot_done = Flag()
        self._dump: Area

    # ---- boot ----

    def boot(self, boot_type: int = COLD) -> None:
        """Bring the device up: identify, check and load the firmware, enable translation, wait for BOOT_DONE.

        ENODEV, EIO, ENOMEM. What is left half-way serves the next boot.
        """
        kernel = self._kernel
        registers = kernel.registers
        magic = registers.read(C.NPU_REG_ID_MAGIC)
        if magic != C.NPU_HW_MAGIC:
            raise KernelError(errno.ENODEV, f"ID_MAGIC reads {magic:#x}, not NPU_HW_MAGIC {C.NPU_HW_MAGIC:#x}")
        if self._started:
            self.stop()
        if self._places is None or boot_type == COLD:
            self._load(kernel.faults.image(self._read()) if kernel.faults else self._read())
        assert self._places is not None
        image_pa, params_pa = self._places
        boot.write_params(
            kernel.memory, params_pa, tx=self._tx, rx=self._rx, tile_config=kernel.tile_config,
            frequency_hz=kernel.frequency_hz, now_ps=kernel.now_ps, boot_type=boot_type,
        )  # fmt: skip
        kernel.mmu.skip_tlbi = kernel.params.has("skip_tlbi")
        kernel.mmu.enable()
        kernel.mmu.attach(C.NPU_SSID_GLOBAL, self.space)
        registers.write(C.NPU_REG_ICB_ENABLE, CAUSES)
        registers.write(C.NPU_REG_GLOBAL_INT_MASK, 0)
        self.boot_done.finished = False
        self._started = True
        boot.start(registers, image_pa, params_pa)
        if not self._await(self.boot_done, boot.BOOT_TIMEOUT_PS):
            status = name_of("npu_boot_status", registers.read(C.NPU_REG_BOOT_STATUS))
            raise KernelError(errno.EIO, f"the firmware did not boot: BOOT_STATUS is {status}")
        self.running = True
        kernel.firmware_header = self._header
        kernel.now_ps = max(kernel.now_ps, kernel.device.now_ps)
        text = bytes(ffi.buffer(self._header.version)).split(b"\0")[0].decode(errors="replace")
        version = printable(text, VERSION_BYTES)
        how = "warm" if boot_type == WARM else "cold"
        kernel.note(f"firmware {version}, {how} boot, {kernel.tile_config.bit_count()} tiles, {kernel.frequency_hz} Hz")

    @property
    def coherent_dma(self) -> bool:
        """Whether the firmware makes DMA look into the host's caches, where the board can."""
        return self._header is None or self._header.release >= C.NPU_FW_COHERENT_DMA

    def check_snooped(self) -> None:
        """EOPNOTSUPP for a mapping that the device would have to snoop, and does not."""
        if not self.coherent_dma and not self._kernel.params.force_coherent:
            found, needed = (boot.release_text(r) for r in (self._header.release, int(C.NPU_FW_COHERENT_DMA)))
            raise KernelError(
                errno.EOPNOTSUPP,
                f"a cached mapping: firmware {found} has no cache-coherent DMA, which came with {needed}; coherent=0 does without",
            )

    def set_noc_priority(self, client: int, priority: int) -> None:
        """Have the firmware write the priority of a client of the network on chip, and remember it for the next boot. EOPNOTSUPP with one that is too
        old; else as `request`, and the register is as it was: where only the reply got lost, it has the priority, and all is well.
        """
        if self._header.release < C.NPU_FW_NOC_PRIORITY:
            found, needed = (boot.release_text(r) for r in (self._header.release, int(C.NPU_FW_NOC_PRIORITY)))
            raise KernelError(
                errno.EOPNOTSUPP, f"firmware {found} sets no priority of the network on chip, which came with {needed}"
            )
        try:
            self.request(C.NPU_JSM_SET_NOC_PRIORITY, "npu_jsm_set_noc_priority", client=client, priority=priority)
        except KernelError:
            if self._kernel.registers.read(C.NPU_REG_NOC_QOS_BASE + 4 * client) != priority:
                raise
        self.noc_priorities[client] = priority

    def stop(self) -> None:
        """Reset the device: nothing runs any more, and nobody is answered."""
        self._started = self.running = False
        self._kernel.registers.write(C.NPU_REG_IP_RESET, C.NPU_IP_RESET_TRIGGER)
        self.ipc.forget_all()

    def _read(self) -> bytes:
        return self._image if self._image is not None else boot.read_image(self._kernel.params.firmware)

    def _load(self, image: bytes) -> None:
        """Check an image and put it in DRAM, where the one before it was if it fits. ENODEV, ENOMEM; then nothing has changed."""
        kernel = self._kernel
        memory = kernel.memory
        header = boot.check_image(image)
        if self._places is None:
            self._set_up()
            self._places = boot.place(memory, len(image))
            self._size = len(image)
        elif len(image) > self._size:
            places = boot.place(memory, len(image))
            for pa in self._places:
                memory.free(pa)
            self._places, self._size = places, len(image)
        memory.view(self._places[0], len(image))[:] = image
        self._header = header

    def _set_up(self) -> None:
        """Make what lives as long as the device: SSID 0, the message areas, the interrupt handler. ENOMEM; then nothing has changed."""
        kernel = self._kernel
        registers, memory = kernel.registers, kernel.memory
        fused = registers.read(C.NPU_REG_TILE_FUSE)
        kernel.tile_config = ((1 << kernel.profile.tiles) - 1) & ~fused
        kernel.frequency_hz = registers.read(C.NPU_REG_PLL_FREQ_HZ)
        if hasattr(self, "ipc"):
            return
        space = AddressSpace(memory)
        areas: list[Area] = []
        try:
            kernel.mmu = Mmu(memory, registers)
            for _ in range(3):
                area = Area(memory, self.addresses.alloc(AREA_PAGES))
                areas.append(area)
                space.map(area.va, area.pa, AREA_PAGES)
        except KernelError:
            for area in areas:
                self.addresses.cancel(area.va)
                memory.free(area.pa)
            space.destroy()
            raise
        self.space = space
        self.dma = DmaDevice(kernel, int(C.NPU_SSID_GLOBAL), space, self.addresses)
        self._tx, self._rx, self._dump = areas
        self.ipc = kernel.ipc = Ipc(kernel.device.bus, self._tx, self._rx, kernel.on_message)
        kernel.connect()

    # ---- requests ----

    def request(self, kind: int, struct: str, **payload: int) -> bytes:
        """Send a message, wait for the reply and return its payload. EAGAIN, ETIMEDOUT, EBADMSG, EBADE; ENODEV when
        the device is gone, EIO when the firmware did not boot.

        A firmware that does not answer is asked once more, for its heartbeat; when it is silent then too, it will be reset.
        """
        kernel = self._kernel
        if kernel.removed or not self.running:
            raise KernelError(errno.ENODEV if kernel.removed else errno.EIO, "the firmware is not running")
        fields = ffi.new(f"struct {struct} *", payload)
        request = self.ipc.send(kernel.registers, kind, bytes(ffi.buffer(fields)), C.NPU_IPC_CHAN_ASYNC_CMD)
        stretch = kernel.watchdog.drain_stretch if kind == C.NPU_JSM_ENGINE_RESET else 1
        if not self._await(request, MESSAGE_TIMEOUT_PS * stretch):
            self.ipc.forget(request)
            kernel.now_ps = max(kernel.now_ps, kernel.device.now_ps)
            if kernel.recovery.is_gone():
                raise KernelError(errno.ENODEV, "the device is gone")
            if kind != C.NPU_JSM_QUERY_ENGINE_HB:
                self._probe()
            raise KernelError(errno.ETIMEDOUT, f"no answer to {name_of('npu_jsm_type', kind)}")
        kernel.now_ps = max(kernel.now_ps, kernel.device.now_ps + kernel.interrupt_ps)
        return check_reply(request)

    def heartbeat(self) -> int:
        """Return what the firmware says of its progress. Errors as of `request`; one that is silent will be reset."""
        try:
            reply = self.request(C.NPU_JSM_QUERY_ENGINE_HB, "npu_jsm_query_hb")
        except KernelError as error:
            if error.code == errno.ETIMEDOUT:
                self._kernel.recovery.want("the firmware is silent")
            raise
        return int.from_bytes(reply[8:16], "little")

    def _probe(self) -> None:
        """Find out whether only a message was lost."""
        try:
            self.heartbeat()
        except KernelError as error:
            self._kernel.note(f"heartbeat: {error}")

    def _await(self, until: Any, time_ps: int) -> bool:
        """Run the device until `until` is finished, at most for `time_ps`; at the end look whether an interrupt was lost.

        No timer and no recovery strikes meanwhile: who asks may be in the middle of a change.
        """
        kernel = self._kernel
        device = kernel.device
        deadline_ps = device.now_ps + time_ps
        while not until.finished and not kernel.removed:
            next_ps = device.next_event_ps()
            if next_ps is None or next_ps > deadline_ps:
                device.run_until(deadline_ps)
                kernel.recovery.poll()
                break
            device.run_until_interrupt(min(deadline_ps, next_ps + STRIDE_PS))
        return bool(until.finished)

    def queues(self) -> list[state_dump.QueueState]:
        """Let the firmware write its state, and return what it says of its queues. Errors as of `request`."""
        area = self._dump
        self.request(C.NPU_JSM_STATE_DUMP, "npu_jsm_state_dump", buffer_va=area.va, buffer_bytes=len(area.memory))
        return state_dump.queues(area.memory)

    def last_state(self) -> list[str]:
        """Return the state that the firmware wrote last as lines."""
        return state_dump.lines(self._dump.memory)
