"""Everything that the C API remembers: one `Library` per process, made when C starts it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.capi.allocations import MAX_DEVICES, Allocations
from libnpu.capi.door import Door
from libnpu.capi.handles import HandleTable, Kind
from libnpu.capi.refusal import Refusal
from libnpu.errors import NpuError

if TYPE_CHECKING:
    from libnpu.runtime import Device, Job, Module, Stream, TensorInfo

SITES_AT = 256  # remembered launches of a stream at which finished ones are forgotten


@dataclass(slots=True, eq=False)
class StreamEntry:
    """A stream as C sees it. `sites`: the code address behind the call that enqueued each job that may still fail."""

    device: OpenDevice
    stream: Stream
    sites: dict[Job, int] = field(default_factory=dict)

    def wait(self, timeout_ns: int | None = None) -> None:
        """Wait for the work. Raises its first error that was not reported, else TIMEOUT or DEVICE_LOST."""
        self.stream.synchronize(timeout_ns)
        self.sites.clear()  # all is done, and no error is left
        self.device.check_usable()

    def enqueued(self, job: Job, site: int) -> None:
        """Remember who enqueued `job`."""
        if len(self.sites) >= SITES_AT:
            self.sites = {
                old: where for old, where in self.sites.items() if not old.done or (old.error and not old.reported)
            }
        self.sites[job] = site


@dataclass(slots=True, eq=False)
class BlobEntry:
    """A loaded blob and its kernel's handle, once somebody asked for it. `tensors`: the kernel's arguments."""

    device: OpenDevice
    blob: Module
    tensors: list[TensorInfo]
    kernel: int = 0


@dataclass(slots=True, eq=False)
class OpenDevice:
    """A device that was used: it runs. `lost`: why its context is gone, "" while it is not, as far as a call has told."""

    index: int
    device: Device
    default_stream: StreamEntry | None = None
    streams: list[StreamEntry] = field(default_factory=list)
    lost: str = ""

    def check_usable(self) -> None:
        """Raise DEVICE_LOST when a fault has ended the context."""
        if self.lost:
            raise NpuError(C.NPU_ERROR_DEVICE_LOST, self.lost)

    def note_error(self) -> None:
        """After an error of the device: find out whether its context is gone. A driver gives a lost one no memory."""
        try:
            if not self.lost:
                self.device.alloc(1).free()
        except NpuError as error:
            if error.result == C.NPU_ERROR_DEVICE_LOST:
                self.lost = error.message


class Library:
    """The state behind npu.h. `lock` is held in every call; `call_site()` is the code address behind the current one, `profile_names()` the
    value of NPU_PROFILE.
    """

    def __init__(self, door: Door, call_site: Callable[[], int], profile_names: Callable[[], str]) -> None:
        self.door = door
        self.call_site = call_site
        self._profile_names = profile_names
        self.lock = threading.RLock()
        self.users = 0
        self.profiles: list[str] = []
        self.handles = HandleTable()
        self.allocations = Allocations()
        self._devices: dict[int, OpenDevice] = {}
        self._thread = threading.local()  # `current`: (self._starts at the time, device)
        self._starts = 0

    def open(self) -> None:
        """Count one more user; the first one reads NPU_PROFILE. Raises INVALID_VALUE when it names no profile."""
        if self.users == 0:
            from npu_model.profile import ProfileError, load_profile

            names = [name.strip() for name in self._profile_names().split(",")]
            if len(names) > MAX_DEVICES:
                raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_PROFILE: {len(names)} devices, above {MAX_DEVICES}")
            try:
                for name in names:
                    load_profile(name)
            except (ProfileError, OSError) as error:
                raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_PROFILE: {error}") from None
            self.profiles = names
            self._starts += 1
        self.users += 1

    def close(self) -> None:
        """End everything: streams, blobs and memory go, every handle becomes stale."""
        devices, self._devices = self._devices, {}
        self.users = 0
        self.handles.clear()
        self.allocations.clear()
        with ExitStack() as stack:  # all of them, also when one fails
            for entry in reversed(devices.values()):
                stack.callback(entry.device.close)

    @property
    def current(self) -> int:
        """The calling thread's current device."""
        start, index = getattr(self._thread, "current", (0, 0))
        return index if start == self._starts else 0

    def select(self, index: int) -> None:
        """Make device `index` the calling thread's current one, and boot it. Raises INVALID_VALUE."""
        self.check_index(index)
        self.device(index)
        self._thread.current = self._starts, index

    def check_index(self, index: int) -> None:
        """Raise INVALID_VALUE when there is no device `index`."""
        if index >= len(self.profiles):
            raise Refusal("NPU_ERROR_INVALID_VALUE", f"device {index} does not exist: there are {len(self.profiles)}")

    def device(self, index: int | None = None) -> OpenDevice:
        """Return device `index` (default: the current one), booted."""
        number = self.current if index is None else index
        if number not in self._devices:
            import libnpu

            self._devices[number] = OpenDevice(number, libnpu.open(self.profiles[number]))
        return self._devices[number]

    def stream(self, handle: int) -> StreamEntry:
        """Return the stream behind `handle`, the current device's default stream for 0. Raises INVALID_HANDLE, STALE_HANDLE."""
        if handle:
            found = self.handles.get(Kind.STREAM, handle)
            assert isinstance(found, StreamEntry)
            return found
        entry = self.device()
        if entry.default_stream is None:
            entry.default_stream = self.add_stream(entry)
        return entry.default_stream

    def add_stream(self, entry: OpenDevice) -> StreamEntry:
        """Create a stream on a device."""
        created = StreamEntry(entry, entry.device.create_stream())
        entry.streams.append(created)
        return created

    def drop_stream(self, entry: StreamEntry) -> None:
        """Destroy a stream that has no handle any more."""
        entry.device.streams.remove(entry)
        entry.stream.close()

    def note_device_error(self) -> None:
        """After an error of a device: find out which contexts are gone."""
        for entry in self._devices.values():
            entry.note_error()

    def enqueue_site(self, job: object) -> int:
        """Return the code address behind the call that enqueued `job`; 0 when it is unknown."""
        for entry in self._devices.values():
            for stream in entry.streams:
                for known, site in stream.sites.items():
                    if known is job:
                        return site
        return 0
