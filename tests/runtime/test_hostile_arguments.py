"""Objects of every kind for every parameter of every public call: refused by name, and never by an error from the inside."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import mmap
import pkgutil

import numpy as np
import pytest

import libnpu
import libnpu.runtime
from libnpu.blob import KernelSource, kernel_library

REFUSALS = (TypeError, ValueError, BufferError, libnpu.NpuError)


class Nothing:
    """An object that is good for nothing."""

    __slots__ = ()


class NoTruth:
    """Neither true nor false, and equal to nothing: as arrays are."""

    __hash__ = None

    def __bool__(self):
        raise ValueError("no truth value")

    def __eq__(self, other):
        return self


class Pretender:
    """Has whatever it is asked for, and that is good for nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return


class Keys:
    """Half a mapping."""

    def keys(self):
        return ["x"]


class Path:
    """A path that is none."""

    def __fspath__(self):
        return 5


def recursive():
    items = []
    items.append(items)
    return items


def deep():
    items = []
    for _ in range(5000):  # deeper than Python follows
        items = [items]
    return items


HOSTILE = {
    "None": lambda: None,
    "Nothing": Nothing,
    "NoTruth": NoTruth,
    "Pretender": Pretender,
    "Keys": Keys,
    "Path": Path,
    "type": lambda: Nothing,
    "-1": lambda: -1,
    "7": lambda: 7,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "1j": lambda: 1j,
    "1 << 64": lambda: 1 << 64,
    "10 ** 30": lambda: 10**30,
    "10 ** 5000": lambda: 10**5000,
    "text": lambda: "text",
    "empty text": str,
    "surrogate": lambda: "\udc80",
    "NUL": lambda: "a\0b",
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(4),
    "memoryview": lambda: memoryview(b"abcd")[::2],
    "list": lambda: [1, "x"],
    "recursive": recursive,
    "deep": deep,
    "tuple": lambda: (None, Nothing()),
    "mapping": lambda: {"x": 1, 2: "y"},
    "nested": lambda: {"x": [Nothing()], "y": {}},
    "empty": dict,
    "set": lambda: {"x"},
    "iterator": lambda: iter([1, 2]),
    "generator": lambda: (i for i in range(3)),
    "scalar array": lambda: np.array(3),
    "array": lambda: np.zeros(3, np.float32),
    "objects": lambda: np.array([None, Nothing()], object),
    "times": lambda: np.array(["2000-01-01"], "datetime64[D]"),
    "records": lambda: np.zeros(2, [("a", "i4"), ("b", "f8")]),
    "no items": lambda: np.zeros((0, 3)),
    "function": lambda: len,
    "exception": lambda: KeyError("x"),
}


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path, monkeypatch):
    """Some calls take a text for a file's name."""
    monkeypatch.chdir(tmp_path)


class World:
    """One of everything, on a device of its own."""

    libnpu = libnpu

    def __init__(self, blob, folder):
        self.blob = blob
        self.device = libnpu.open("unit", where="")
        self.context = self.device.primary
        self.other = self.device.create_context()
        self.stream = self.device.create_stream()
        self.memory = self.device.alloc(4096)
        self.pinned = self.device.alloc_host(4096)
        self.part = self.memory[:2048]
        self.module = self.device.load(blob)
        self.kernel = self.device.kernel("copy")
        self.library = self.device.load(kernel_library("mine", {"nothing": KernelSource("halt", ())}))
        self.event = self.device.create_event()
        self.event.record(self.stream)
        self.ipc_event = self.device.create_event(timing=False, interprocess=True)
        self.notify = self.device.create_notify()
        self.job = self.stream.fill(self.memory, 1)
        self.commands = self.device.create_command_list()
        self.closed = self.device.create_command_list()
        self.closed.append_fill(self.memory, 1)
        self.closed.close()
        with self.stream.capture() as capture:
            self.stream.fill(self.memory, 1)
        self.graph = capture.graph
        self.exec = self.graph.instantiate()
        self.mapping = self.memory.map()
        self.profiler = self.device.profiler
        self.array = np.zeros(4096, np.uint8)
        self.pages = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.folder = folder
        with self.device.record_order(folder / "order"):
            pass
        self.stream.synchronize()


# What a call is made on, and arguments that it takes; `arguments` are those without a name.
CALLS = {
    "open": (
        "libnpu",
        lambda w: {
            "profile": "unit",
            "compute": True,
            "numerics": "exact",
            "trace": False,
            "semantics": "ascend",
            "launch_blocking": False,
            "module_params": "",
            "faults": "",
            "where": "nowhere",
        },
    ),
    "timeline": ("libnpu", lambda w: {"context": w.context}),
    "Device.load": ("device", lambda w: {"source": w.blob}),
    "Device.kernel": ("device", lambda w: {"name": "copy"}),
    "Device.alloc": ("device", lambda w: {"nbytes": 64}),
    "Device.alloc_host": ("device", lambda w: {"nbytes": 64, "flags": 0}),
    "Device.register": ("device", lambda w: {"memory": w.pages, "size": 4096, "sva": False}),
    "Device.to_device": ("device", lambda w: {"array": w.array}),
    "Device.copy": ("device", lambda w: {"dst": w.memory, "src": w.array, "size": 16}),
    "Device.create_stream": ("device", lambda w: {"blocking": True, "priority": 2}),
    "Device.create_event": ("device", lambda w: {"timing": False, "interprocess": False}),
    "Device.open_ipc_event": ("device", lambda w: {"handle": w.ipc_event.ipc_handle()}),
    "Device.open_ipc_memory": ("device", lambda w: {"handle": w.memory.ipc_handle()}),
    "Device.set_schedule": ("device", lambda w: {"schedule": None, "seed": None}),
    "Device.export_trace": ("device", lambda w: {"path": w.folder / "trace.json"}),
    "Device.record_order": ("device", lambda w: {"path": w.folder / "order"}),
    "Device.replay_order": ("device", lambda w: {"path": w.folder / "order"}),
    "Device.host_delay": ("device", lambda w: {"duration_ns": 1}),
    "Device.team": ("device", lambda w: {"count": 1}),
    "Device.inject": (
        "device",
        lambda w: {"point": "message_reply", "kind": "message_twice", "after": 10**6, "count": 1, "seed": 0},
    ),
    "Device.faults_struck": ("device", lambda w: {"point": "message_reply", "kind": "message_twice"}),
    "Device.set_noc_priority": ("device", lambda w: {"client": "npu", "priority": 0}),
    "Device.mmio": ("device", lambda w: {"offset": 0x1A00000, "value": None}),
    "Device.traffic": (
        "device",
        lambda w: {
            "client": "cpu",
            "bytes_per_second": 0,
            "burst_bytes": 256,
            "write_share": 0.0,
            "address": 0,
            "span_bytes": 1 << 20,
            "seed": 1,
        },
    ),
    "Device.recover": ("device", lambda w: {"engine": False}),
    "Context.alloc_async": ("context", lambda w: {"nbytes": 64, "stream": w.stream}),
    "Context.find": ("context", lambda w: {"address": w.memory.device_address}),
    "Context.find_host": ("context", lambda w: {"address": w.pinned.address}),
    "Context.copy_2d": (
        "context",
        lambda w: {"dst": w.memory, "dst_pitch": 16, "src": w.array, "src_pitch": 16, "width": 16, "height": 4},
    ),
    "Context.copy": ("context", lambda w: {"dst": w.array, "src": w.memory, "size": 16}),
    "Context.fill": ("context", lambda w: {"dst": w.memory, "value": 1}),
    "Context.copy_peer": ("context", lambda w: {"dst": w.memory, "src": w.pinned}),
    "Context.from_dlpack": ("context", lambda w: {"tensor": w.array}),
    "Context.synchronize": ("context", lambda w: {"timeout_ns": 1e9}),
    "Context.destroy": ("other", lambda w: {"force": False}),
    "Stream.launch": (
        "stream",
        lambda w: {"module": w.module, "inputs": {"x": w.memory}, "outputs": {"y": w.part}, "dynamic": False},
    ),
    "Stream.launch_addresses": ("stream", lambda w: {"module": w.module, "addresses": [w.memory.device_address] * 2}),
    "Stream.copy": ("stream", lambda w: {"dst": w.memory, "src": w.pinned, "size": 16}),
    "Stream.copy_2d": (
        "stream",
        lambda w: {"dst": w.memory, "dst_pitch": 16, "src": w.pinned, "src_pitch": 16, "width": 16, "height": 4},
    ),
    "Stream.fill": ("stream", lambda w: {"dst": w.memory, "value": 1}),
    "Stream.wait_event": ("stream", lambda w: {"event": w.event}),
    "Stream.add_host_function": ("stream", lambda w: {"function": int}),
    "Stream.set_failure_mode": ("stream", lambda w: {"mode": libnpu.FailureMode.CONTINUE}),
    "Stream.synchronize": ("stream", lambda w: {"timeout_ns": 1e9}),
    "Stream.synchronize_to": ("stream", lambda w: {"job": w.job}),
    "Stream.wait": ("stream", lambda w: {"job": w.job, "timeout_ns": 1e9}),
    "Stream.query_job": ("stream", lambda w: {"job": w.job}),
    "Job.wait": ("job", lambda w: {"timeout_ns": 1e9}),
    "Event.record": ("event", lambda w: {"stream": w.stream}),
    "Event.synchronize": ("event", lambda w: {"timeout_ns": 1e9}),
    "Event.elapsed_ns": ("event", lambda w: {"end": w.event}),
    "IpcEvent.record": ("ipc_event", lambda w: {"stream": w.stream}),
    "IpcEvent.synchronize": ("ipc_event", lambda w: {"timeout_ns": 1e9}),
    "Notify.record": ("notify", lambda w: {"stream": w.stream}),
    "Notify.wait": ("notify", lambda w: {"stream": w.stream}),
    "Buffer.at": ("memory", lambda w: {"offset": 0, "size": 16}),
    "Buffer.__getitem__": ("memory", lambda w: {"part": slice(0, 16)}),
    "Buffer.write": ("memory", lambda w: {"data": w.array, "offset": 0}),
    "Buffer.read": ("memory", lambda w: {"dtype": np.uint8, "shape": (4,), "offset": 0}),
    "Buffer.read_bytes": ("memory", lambda w: {"offset": 0, "size": 4}),
    "Buffer.map": ("memory", lambda w: {"direction": 2, "offset": 0, "size": 64}),
    "Buffer.free_async": ("memory", lambda w: {"stream": w.stream}),
    "Buffer.__array__": ("memory", lambda w: {"dtype": np.uint8, "copy": True}),
    "Buffer.__dlpack__": ("memory", lambda w: {"stream": None, "max_version": None, "dl_device": (1, 0), "copy": True}),
    "HostBuffer.__dlpack__": (
        "pinned",
        lambda w: {"stream": None, "max_version": None, "dl_device": None, "copy": None},
    ),
    "HostBuffer.flush": ("pinned", lambda w: {"offset": 0, "size": 64}),
    "HostBuffer.invalidate": ("pinned", lambda w: {"offset": 0, "size": 64}),
    "HostBuffer.annotate_read": ("pinned", lambda w: {"offset": 0, "size": 64}),
    "HostBuffer.annotate_write": ("pinned", lambda w: {"offset": 0, "size": 64}),
    "Mapping.flush": ("mapping", lambda w: {"offset": 0, "size": 64}),
    "Mapping.invalidate": ("mapping", lambda w: {"offset": 0, "size": 64}),
    "Mapping.annotate_read": ("mapping", lambda w: {"offset": 0, "size": 64}),
    "Mapping.annotate_write": ("mapping", lambda w: {"offset": 0, "size": 64}),
    "DeviceSpan.write": ("part", lambda w: {"data": b"a", "offset": 0}),
    "Module.run": ("module", lambda w: {"arrays": {"x": w.array[:1024]}, "stream": None, "dynamic": False}),
    "Module.__getitem__": ("library", lambda w: {"name": "nothing"}),
    "Kernel.launch": ("kernel", lambda w: {"stream": w.stream, "arguments": (w.memory, w.part, 4), "grid": 1}),
    "CommandList.append": ("commands", lambda w: {"kernel": w.kernel, "arguments": (w.memory, w.part, 4), "grid": 1}),
    "CommandList.append_launch": (
        "commands",
        lambda w: {"module": w.module, "inputs": {"x": w.memory}, "outputs": {"y": w.part}},
    ),
    "CommandList.append_copy": ("commands", lambda w: {"dst": w.memory, "src": w.pinned, "size": 16}),
    "CommandList.append_fill": ("commands", lambda w: {"dst": w.memory, "value": 1}),
    "CommandList.submit": ("closed", lambda w: {"stream": w.stream}),
    "GraphExec.launch": ("exec", lambda w: {"stream": w.stream}),
    "GraphExec.update": ("exec", lambda w: {"graph": w.graph}),
    "Profiler.take": ("profiler", lambda w: {"count": 1}),
}
ALSO_CALLED = {"timeout_ns": "time-out", "duration_ns": "delay", "part": "slice"}  # parameters, in messages
NO_ARGUMENTS = {"Await.first"}  # of the program's own


def called(world, name, arguments):
    """Make a call, and end what it has begun."""
    target, method = CALLS[name][0], name.rpartition(".")[2]
    options = dict(arguments)
    unnamed = options.pop("arguments", ())
    first = [options.pop(next(iter(options)))] if unnamed else []
    with contextlib.ExitStack() as ends:
        made = getattr(getattr(world, target), method)(*first, *unnamed, **options)
        if name == "open":
            ends.callback(made.close)
        elif method == "team":
            ends.callback(made.end)
        elif method.endswith("_order"):
            ends.enter_context(made)


def variants(world, name):
    """Yield (name of what is hostile, what says its kind, arguments), each with one hostile object in it."""
    for kind, make in HOSTILE.items():
        for parameter, value in CALLS[name][1](world).items():
            base = CALLS[name][1](world)
            if parameter == "arguments":
                for i, param in enumerate(world.kernel.params):
                    yield param.name, kind, base | {parameter: (*value[:i], make(), *value[i + 1 :])}
                continue
            yield parameter, kind, base | {parameter: make()}
            if isinstance(value, dict):
                for key in value:
                    yield key, kind, base | {parameter: {key: make()}}


@pytest.mark.parametrize("name", CALLS)
def test_no_object_for_a_parameter_breaks_out_of_the_inside(name, blob_bytes, tmp_path):
    method = name.rpartition(".")[2]
    wrong = []
    with contextlib.ExitStack() as ends:

        def new_world():
            world = World(blob_bytes(profile="unit"), tmp_path)
            ends.callback(world.device.close)
            return world

        world = new_world()
        with (
            contextlib.suppress(libnpu.NpuError)
            if name in {"open", "Device.traffic"}  # there is no such place; not at this fidelity
            else contextlib.nullcontext()
        ):
            called(world, name, CALLS[name][1](world))
        world = new_world()
        for parameter, kind, arguments in variants(world, name):
            try:
                called(world, name, arguments)
            except libnpu.NpuError as error:
                assert error.message
            except REFUSALS as error:
                named = (parameter, method, ALSO_CALLED.get(parameter, parameter))
                if not any(word in str(error) for word in named) or isinstance(error, UnicodeError):
                    wrong.append(f"{parameter} {kind}: {error!r}, which does not name it")
            except Exception as error:
                wrong.append(f"{parameter} {kind}: {error!r}")
            assert world.device.node.down is None
    assert wrong == []


def test_all_public_calls_with_arguments_are_among_them():
    tested = set()
    for name in CALLS:
        owner, _, method = name.rpartition(".")
        for place in {owner, "Context" if owner == "Device" else owner} - {""}:
            found = getattr(getattr(libnpu, place), method, None)
            tested.add(inspect.unwrap(found).__qualname__ if found is not None else "")
    public = set()
    for module in pkgutil.iter_modules(libnpu.runtime.__path__, "libnpu.runtime."):
        for kind in vars(importlib.import_module(module.name)).values():
            for method in vars(kind).values() if inspect.isclass(kind) and kind.__module__ == module.name else ():
                inner = getattr(method, "__wrapped__", None)
                around = getattr(method, "__globals__", {}).get("__name__")
                if inner and around == "libnpu.runtime.guard" and len(inspect.signature(inner).parameters) > 1:
                    public |= {inner.__qualname__} if inner.__name__ != "__exit__" else set()
    assert len(public) > 50
    assert public - tested - NO_ARGUMENTS == set()
