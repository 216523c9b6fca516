"""Everything that the C API remembers: one `Library` per process, made when C starts it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from libnpu import checker
from libnpu.capi.door import Door
from libnpu.capi.handles import HandleTable, Kind
from libnpu.capi.memory import FIRST_NUMBER, LAST_NUMBER, Memory
from libnpu.capi.pages import Pages
from libnpu.capi.refusal import Refusal
from libnpu.capi.settings import Settings, read_settings
from libnpu.runtime.host_threads import HOST

if TYPE_CHECKING:
    from libnpu.runtime import Context, Device, Stream
    from libnpu.runtime.host_team import Team
    from libnpu.syscalls import Node

MAX_CONTEXTS = 128  # chosen: live ones, of all devices


@dataclass(slots=True, eq=False)
class ContextEntry:
    """A context as C sees it: `number` is in its pointers, `handle` is 0 for the primary one of its device."""

    number: int
    device: OpenDevice
    context: Context
    handle: int = 0


@dataclass(slots=True, eq=False)
class OpenDevice:
    """A device that was used: it runs."""

    index: int
    device: Device
    primary: ContextEntry | None = None


class Library:
    """The state behind npu.h. `lock` is held in every call; `call_site()` is the code address behind the current one, `getenv(name)` the
    value of an environment variable, None when it is not set.
    """

    def __init__(
        self, door: Door, pages: Pages, call_site: Callable[[], int], getenv: Callable[[str], str | None]
    ) -> None:
        self.door = door
        self._pages = pages
        self.call_site = call_site
        self.getenv = getenv
        self.users = 0
        self.settings = Settings()
        self.handles = HandleTable()
        self.memory = Memory(self)
        self._devices: dict[int, OpenDevice] = {}
        self._contexts: dict[int, ContextEntry] = {}  # live ones, by number
        self.last_number = FIRST_NUMBER - 1  # of a context
        self._thread = threading.local()  # `current`: (self._starts at the time, device, number of a context or 0)
        self.of_thread = threading.local()  # `failed_load`: what its last load that failed says
        self.team: Team | None = None  # of host threads, that has not ended
        self.overflows: WeakKeyDictionary[Context, list[tuple[str, int]]] = WeakKeyDictionary()  # not handed out
        self._starts = 0

    # ---- start and end ----

    @property
    def lock(self) -> Any:
        """The process's one lock; a wait for the device inside it lets other threads go on."""
        return HOST.lock

    def open(self) -> None:
        """Count one more user; the first one reads the environment. Raises INVALID_VALUE when it says what does not exist."""
        if self.users == 0:
            self.settings = read_settings(self.getenv)
            checker.obey_environment(self.getenv, self._pages)
            self._starts += 1
        self.users += 1

    def choose_semantics(self, name: str) -> None:
        """Choose the rules of devices that are opened from now on."""
        self.settings = replace(self.settings, semantics=name)

    def close(self) -> None:
        """End everything: streams, blobs and memory go, every handle becomes stale."""
        devices, self._devices = self._devices, {}
        team, self.team = self.team, None
        self.users = 0
        if team is not None:
            team.abandon()
        for entry in self.contexts:
            self._forget(entry, self.memory.host_addresses(entry.context))
        with ExitStack() as stack:  # all of them, also when one fails
            for device in reversed(devices.values()):
                stack.callback(device.device.close)

    # ---- devices ----

    @property
    def profiles(self) -> tuple[str, ...]:
        """The hardware profiles of the devices."""
        return self.settings.profiles

    @property
    def current(self) -> int:
        """The calling thread's current device."""
        return self._choice()[0]

    def select(self, index: int) -> None:
        """Make device `index` with its primary context the calling thread's current one, and boot it. Raises INVALID_VALUE."""
        self.check_index(index)
        self.device(index)
        self._thread.current = self._starts, index, 0

    def check_index(self, index: int) -> None:
        """Raise INVALID_VALUE when there is no device `index`."""
        if index >= len(self.profiles):
            raise Refusal("NPU_ERROR_INVALID_VALUE", f"device {index} does not exist: there are {len(self.profiles)}")

    def device(self, index: int | None = None) -> OpenDevice:
        """Return device `index` (default: the current one), booted."""
        number = self.current if index is None else index
        if number not in self._devices:
            from libnpu.runtime.device import open_device

            settings = self.settings
            device = open_device(
                self.profiles[number] or None,
                compute=True,
                numerics="exact",
                fidelity="fast",
                semantics=settings.semantics,
                trace=settings.trace,
                launch_blocking=settings.launch_blocking,
                module_params=settings.module_params,
                faults=settings.faults,
                where=settings.device,
            )
            device.set_schedule(settings.schedule)
            device.call_site = self.call_site
            self._devices[number] = OpenDevice(number, device)
        return self._devices[number]

    @property
    def devices_in_use(self) -> list[OpenDevice]:
        """The devices that have booted."""
        return list(self._devices.values())

    def reset(self, entry: OpenDevice) -> None:
        """Begin anew with a device: its contexts and all that is in them become stale."""
        for known in self.contexts:
            if known.device is entry:
                self._forget(known, self.memory.host_addresses(known.context))
        entry.device.reset()

    @property
    def node(self) -> Node | None:
        """The open node of the calling thread's current device, None before it has booted."""
        device = self._devices.get(self.current)
        return device.device.node if device is not None else None

    # ---- contexts ----

    def context(self) -> ContextEntry:
        """Return the calling thread's current context; a primary one is made on first use."""
        index, chosen = self._choice()
        if chosen is not None:
            return chosen
        device = self.device(index)
        if device.primary is None:
            self._check_room()
            device.primary = self._add(device, device.device.primary)
        return device.primary

    @property
    def chosen_context(self) -> ContextEntry | None:
        """The calling thread's current context, None for a primary one."""
        return self._choice()[1]

    def select_context(self, entry: ContextEntry) -> None:
        """Make a context, which is no primary one, and its device the calling thread's current ones."""
        self._thread.current = self._starts, entry.device.index, entry.number

    def create_context(self) -> ContextEntry:
        """Make a context on the current device. Raises OUT_OF_RESOURCES."""
        device = self.device()
        self._check_room()
        entry = self._add(device, device.device.create_context())
        entry.handle = self.handles.insert(Kind.CONTEXT, entry, entry.context)
        return entry

    def destroy_context(self, entry: ContextEntry, force: bool) -> None:
        """End a context. Raises IN_USE."""
        held = self.memory.host_addresses(entry.context)
        try:
            entry.context.destroy(force=force)
        finally:
            if not entry.context.is_alive:
                self._forget(entry, held)

    @property
    def contexts(self) -> list[ContextEntry]:
        """The contexts that are alive."""
        return list(self._contexts.values())

    def context_of_number(self, number: int) -> ContextEntry | None:
        """Return the context that has `number` in its pointers, None when it is not alive."""
        return self._contexts.get(number)

    def entry_of(self, context: object) -> ContextEntry:
        """Return what C knows of a context that is alive."""
        return next(entry for entry in self._contexts.values() if entry.context is context)

    def _choice(self) -> tuple[int, ContextEntry | None]:
        start, index, number = getattr(self._thread, "current", (0, 0, 0))
        if start != self._starts:
            return 0, None
        return index, self._contexts.get(number)

    def _check_room(self) -> None:
        if len(self._contexts) >= MAX_CONTEXTS:
            raise Refusal("NPU_ERROR_OUT_OF_RESOURCES", f"all {MAX_CONTEXTS} contexts are in use")
        if self.last_number == LAST_NUMBER:
            raise Refusal(
                "NPU_ERROR_OUT_OF_RESOURCES", f"{LAST_NUMBER} contexts: the process has no number left for one"
            )

    def _add(self, device: OpenDevice, context: Context) -> ContextEntry:
        self.last_number += 1
        entry = self._contexts[self.last_number] = ContextEntry(self.last_number, device, context)
        return entry

    def _forget(self, entry: ContextEntry, held: Iterable[int]) -> None:
        """Make everything in a context stale that C holds; `held` are the host addresses among it."""
        if self._contexts.pop(entry.number, None) is None:
            return  # another thread was faster
        if entry.device.primary is entry:
            entry.device.primary = None
        self.handles.remove_context(entry.context)
        for address in held:
            self.memory.give_up(address)

    # ---- handles ----

    def give_handle(
        self, address: int, kind: Kind, thing: object, context: Context, undo: Callable[[], object]
    ) -> None:
        """Make a handle for `thing`, which was just made, and write it to `address`; when that fails, `undo` what was made."""
        handle = 0
        try:
            handle = self.handles.insert(kind, thing, context)
            self.door.write_integer(address, handle, 8)
        except Refusal:
            if handle:
                self.handles.remove(kind, handle)
            undo()
            raise

    def stream(self, handle: int) -> Stream:
        """Return the stream behind `handle`, the current context's default stream for 0. Raises INVALID_HANDLE, STALE_HANDLE."""
        if not handle:
            return self.context().context.default_stream
        return cast("Stream", self.handles.get(Kind.STREAM, handle))
