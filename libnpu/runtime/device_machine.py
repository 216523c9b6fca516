"""The machine behind a device: its clock, the threads that share it, counters, trace, and what it is."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C
from npu_model.memory_ranges import NPU_CLIENTS

from libnpu.errors import NpuError
from libnpu.faults import FIELDS, fault_of
from libnpu.runtime import host_team
from libnpu.runtime.arguments import instance_of, path_of, shown, truth, unsigned, whole, wrong
from libnpu.runtime.guard import public
from libnpu.runtime.host_team import Team
from libnpu.runtime.records import read_records
from libnpu.runtime.time import LAST_PS, duration_ps
from libnpu.syscalls import Request

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    import numpy as np
    from npu_model.armed import Armed
    from numpy.typing import NDArray

    from libnpu.runtime.guard import Guard
    from libnpu.syscalls import Node

NPU = "npu"  # as a client of memory: all of the device itself


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is."""

    profile: str
    tiles: int
    shaves_per_tile: int
    dma_ports: int
    barriers: int
    cmx_bytes_per_tile: int
    ddr_bytes: int
    clock_hz: int
    firmware_api: tuple[str, ...]  # "major.minor" by NPU_FW_API_*
    firmware_release: str  # "major.minor.patch"
    max_contexts: int  # at a time
    max_queues: int  # of a context
    queue_depth: int  # jobs in flight


class DeviceMachine:
    """The part of `Device` that is about the machine; `node` is the primary context's."""

    guard: Guard
    node: Node

    @property
    def now_ps(self) -> int:
        """The host's position on the clock, in picoseconds."""
        return self.node.now_ps

    @public
    def host_delay(self, duration_ns: float) -> None:
        """Let the host work for `duration_ns` while the device goes on.

        Raises INVALID_VALUE when it is negative or the clock would pass 2^62 ps.
        """
        self.node.check_usable()
        delay_ps = duration_ps(duration_ns, "delay")
        if delay_ps is None or self.now_ps + delay_ps > LAST_PS:
            raise NpuError(
                C.NPU_ERROR_INVALID_VALUE,
                f"a delay of {shown(duration_ns)} ns: the clock is at {self.now_ps} ps and would pass its end at 2^62 ps",
            )
        self.node.work(delay_ps)

    @public
    def host_times(self) -> tuple[int, int]:
        """Return how long the calling thread has worked and has been blocked in waits on the device's clock, in ps, since
        its first call.
        """
        machine = self.node.machine
        return machine.host_times(machine.caller)

    def team(self, count: int) -> Team:
        """Announce that `count` threads will take part, in an order that is the same in every run (`host_team.py`).

        Raises INVALID_VALUE, NOT_PERMITTED in a host function.
        """
        self.node.check_usable()
        return Team(self.node.machine, whole(count, "count"))

    def suspend_host_thread(self) -> AbstractContextManager[None]:
        """Say that the calling thread makes no calls in the `with` block (a join, input): no other thread waits for it."""
        return host_team.silent()

    def record_order(self, path: str | os.PathLike[str]) -> AbstractContextManager[None]:
        """Record the order of all threads' calls in the `with` block, as text. Raises FILE."""
        return host_team.recorded(path_of(path, "path"))

    def replay_order(self, path: str | os.PathLike[str]) -> AbstractContextManager[None]:
        """Force a recorded order upon the calls of the `with` block.

        Raises FILE; a call that departs from the order raises BAD_STATE, and the order is free from there on.
        """
        return host_team.replayed(path_of(path, "path"))

    @property
    def disorder(self) -> str | None:
        """Why the order of the threads' calls, and with it times and traces, may differ in another run; None: it may not."""
        return self.node.machine.disorder

    @property
    def reproducible(self) -> bool:
        """Whether another run gives the same trace: no thread was waited for in vain, or turned up unannounced."""
        return self.disorder is None

    @public
    def counters(self) -> dict[str, int]:
        """Return the PMU counters by name: "CYCLES", "DMA_BUSY", ... of enum npu_pmu. Unit and meaning: npu_hw.h."""
        request = Request(C.NPU_IOCTL_EMU_COUNTERS, "npu_emu_counters", "EMU_COUNTERS")
        request.arg.count, request.arg.buffer_ptr = C.NPU_PMU_COUNT, 1
        values = memoryview(self.node.ioctl(request)[0]).cast("Q")
        kinds = npu_abi.enum("npu_pmu")
        return {kinds(i).name.removeprefix("NPU_PMU_"): value for i, value in enumerate(values)}

    @public
    def mmio(self, offset: int, value: int | None = None) -> int:
        """Return the register at a byte offset of npu_hw.h, one of the device's own blocks; with `value`, write that and return it: one that is
        read only (RO) drops it.

        Costs no virtual time. Raises INVALID_VALUE for a register of the driver's, NOT_PERMITTED.
        """
        request = Request(C.NPU_IOCTL_EMU_REGISTER, "npu_emu_register", "EMU_REGISTER")
        request.arg.offset = unsigned(offset, "offset", 32)
        if value is not None:
            request.arg.action, request.arg.value = C.NPU_REGISTER_WRITE, unsigned(value, "value", 32)
        self.node.ioctl(request)
        return int(request.arg.value)

    @public
    def traffic(
        self,
        client: str,
        bytes_per_second: int,
        *,
        burst_bytes: int = 256,
        write_share: float = 0.0,
        address: int = 0,
        span_bytes: int = 64 << 20,
        seed: int = 1,
    ) -> None:
        """Let a client of the memory system without an engine, such as "cpu", ask for memory from now on, in bursts at times that `seed`
        decides; 0 bytes per second ends it. docs/memory.md has more. Raises INVALID_VALUE, NOT_PERMITTED.
        """
        names = [one.name for one in self.node.profile.memory_system.clients]
        if instance_of(client, str, "client") not in names:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"no client {client!r} of memory; there are {', '.join(names)}")
        if not isinstance(write_share, Real):
            raise wrong(write_share, "write_share", "a number")
        if not 0 <= write_share <= 1:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"write_share is {shown(write_share)}; 0 to 1 are allowed")
        request = Request(C.NPU_IOCTL_EMU_TRAFFIC, "npu_emu_traffic", "EMU_TRAFFIC")
        arg = request.arg
        arg.client, arg.write_permille = (
            names.index(client),
            round(float(write_share) * 1000),
        )
        for name, number in (
            ("bytes_per_second", bytes_per_second), ("burst_bytes", burst_bytes), ("address", address), ("span_bytes", span_bytes), ("seed", seed),
        ):  # fmt: skip
            setattr(arg, name, unsigned(number, name, 64))
        self.node.ioctl(request)

    @public
    def set_noc_priority(self, client: str, priority: int) -> None:
        """Let a client of the memory system, or "npu" for those of the device itself, go before those of a lower priority, 0 to 7, at every port
        of the network on chip. The firmware does it; it holds for all users, also after a recovery, until the module is loaded anew.

        Raises INVALID_VALUE, NOT_PERMITTED, Unimplemented with a firmware that is too old.
        """
        level = unsigned(priority, "priority", 64)
        for number in self._noc_clients(client):
            request = Request(C.NPU_IOCTL_SET_PARAM, "npu_param_arg", "SET_PARAM NOC_PRIORITY")
            request.arg.param, request.arg.index, request.arg.value = C.NPU_PARAM_NOC_PRIORITY, number, level
            self.node.ioctl(request)

    @public
    def noc_priorities(self) -> dict[str, int]:
        """Return the priority of each client of the memory system at the ports of the network on chip."""
        clients = self.node.profile.memory_system.clients
        return {client.name: self._param(C.NPU_PARAM_NOC_PRIORITY, number) for number, client in enumerate(clients)}

    def _noc_clients(self, client: str) -> list[int]:
        """Return the numbers of the clients that a name is for. Raises INVALID_VALUE."""
        names = [one.name for one in self.node.profile.memory_system.clients]
        if instance_of(client, str, "client") == NPU:
            return [names.index(own) for own in NPU_CLIENTS]
        if client not in names:
            raise NpuError(
                C.NPU_ERROR_INVALID_VALUE, f"no client {client!r} of memory; there are {NPU}, {', '.join(names)}"
            )
        return [names.index(client)]

    @public
    def trace(self) -> NDArray[np.void]:
        """Return and forget what the device did since the last call: struct npu_trace_record, oldest first.

        Empty without `trace=True`.
        """
        request = Request(C.NPU_IOCTL_EMU_TRACE_READ, "npu_emu_trace_read", "EMU_TRACE_READ")
        return read_records(self.node, request, npu_abi.dtype("npu_trace_record"))

    @public
    def inject(self, point: str, kind: str, *, after: int = 0, count: int = 1, seed: int = 0) -> None:
        """Arm a fault of the emulated hardware (docs/recovery.md): it strikes at the `after`-th time from now on (0: the next) that `point` is
        passed, `count` times in a row. Raises INVALID_VALUE for names that there are not, and for a kind that cannot strike at the point.
        """
        self._inject(C.NPU_INJECT_ARM, fault_of(point, kind, after, count, seed))

    @public
    def disarm_faults(self) -> None:
        """Forget the faults that are armed."""
        self._inject(C.NPU_INJECT_DISARM)

    @public
    def faults_struck(self, point: str, kind: str) -> int:
        """Return how often an injected fault has struck, since the device is there. Raises INVALID_VALUE as `inject`."""
        return self._inject(C.NPU_INJECT_QUERY, fault_of(point, kind))

    def _inject(self, action: int, fault: Armed | None = None) -> int:
        request = Request(C.NPU_IOCTL_EMU_INJECT, "npu_emu_inject", "EMU_INJECT")
        for name in FIELDS if fault is not None else ():
            setattr(request.arg, name, getattr(fault, name))
        request.arg.action = action
        self.node.ioctl(request)
        struck: int = request.arg.struck
        return struck

    @public
    def recover(self, *, engine: bool = False) -> None:
        """Reset the whole device, whose jobs in flight end with DEVICE_LOST, or its `engine`s, which ends the context whose task hangs.

        Raises NOT_PERMITTED, DEVICE_LOST when it does not start again.
        """
        request = Request(C.NPU_IOCTL_RECOVER, "npu_recover", "RECOVER")
        request.arg.kind = C.NPU_RECOVER_ENGINE if truth(engine, "engine") else C.NPU_RECOVER_FULL
        self.node.ioctl(request)

    @public
    def state_dump(self) -> str:
        """Return what driver and firmware know, as text for people."""
        request = Request(C.NPU_IOCTL_STATE_DUMP, "npu_state_dump", "STATE_DUMP")
        self.node.ioctl(request)
        room = request.arg.used_bytes + 4096  # the second text may be a little longer
        request.arg.buffer_ptr, request.arg.buffer_bytes, request.arg.used_bytes = 1, room, 0
        return bytes(self.node.ioctl(request)[0]).decode()

    @public
    def info(self) -> DeviceInfo:
        """Return what the driver says about the device."""
        name = b"".join(self._param(C.NPU_PARAM_PROFILE_NAME, i).to_bytes(8, "little") for i in range(8))
        versions = [self._param(C.NPU_PARAM_FW_API_VERSION, i) for i in range(C.NPU_FW_API_COUNT)]
        release = self._param(C.NPU_PARAM_FW_RELEASE)
        return DeviceInfo(
            profile=name.rstrip(b"\0").decode(),
            tiles=self._param(C.NPU_PARAM_TILE_CONFIG).bit_count(),
            shaves_per_tile=self._param(C.NPU_PARAM_SHAVES_PER_TILE),
            dma_ports=self._param(C.NPU_PARAM_DMA_PORTS),
            barriers=self._param(C.NPU_PARAM_BARRIER_COUNT),
            cmx_bytes_per_tile=self._param(C.NPU_PARAM_CMX_BYTES),
            ddr_bytes=self._param(C.NPU_PARAM_DDR_BYTES),
            clock_hz=self._param(C.NPU_PARAM_CORE_CLOCK_RATE),
            firmware_api=tuple(f"{v >> 16}.{v & 0xFFFF}" for v in versions),
            firmware_release=f"{release >> 16}.{release >> 8 & 0xFF}.{release & 0xFF}",
            max_contexts=self._param(C.NPU_PARAM_NUM_CONTEXTS),
            max_queues=self._param(C.NPU_PARAM_MAX_QUEUES),
            queue_depth=self._param(C.NPU_PARAM_MAX_JOBS),
        )

    def _param(self, param: int, index: int = 0) -> int:
        request = Request(C.NPU_IOCTL_GET_PARAM, "npu_param_arg", f"GET_PARAM {param}")
        request.arg.param, request.arg.index = param, index
        self.node.ioctl(request)
        value: int = request.arg.value
        return value
