"""A model in parts (`libnpu.parts`): blobs in device memory, with host functions between them, launched as one.

A launch enqueues the parts in the order of the model, all in one stream:

1. a part on the NPU is a launch of its blob, on memory of the caller's or of this module;
2. a part on the host is a copy into pinned memory for each value that it reads of the NPU, a host function that evaluates
   its graph, and a copy back for each value that the NPU or the caller's memory gets.

The copies are DMA jobs as any other. Launches share the memory between the parts, so one in another stream waits for the one before.
The clock counts a host part as the host's time: a call for each node, and what it reads and writes at the host's rate of copies;
what its arithmetic takes is not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError, Unsupported
from libnpu.parts import HostEvaluator, HostPart, NpuPart, PartsError, unpack
from libnpu.runtime import host_functions
from libnpu.runtime.blob_file import read_blob
from libnpu.runtime.kernel import ModelKernel
from libnpu.runtime.module import Module, check_alignment
from libnpu.runtime.room import make_room
from libnpu.runtime.tensor import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from libnpu.parts import PartedModel, Tensor
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.context import Context
    from libnpu.runtime.host_memory import HostBuffer
    from libnpu.runtime.job import Job
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.spans import DeviceSpan
    from libnpu.runtime.stream import Stream

    Spans = Mapping[str, Buffer | DeviceSpan]

PS_PER_NS = 1000


class PartedModule(Module):
    """Made by `Context.load` of what the compiler makes of a model that the NPU does not do whole.

    As any module of a model, but for command lists and captures, which it refuses. An output whose shape only a run tells has -1
    there: `run` returns it, and a launch, which would need memory for it, is Unsupported.
    """

    def __init__(self, context: Context, data: bytes) -> None:
        """Check and place the parts. Raises INVALID_BLOB, what `Module` raises; then nothing is left allocated."""
        try:
            self.model = model = unpack(data)
        except PartsError as error:
            raise NpuError(C.NPU_ERROR_INVALID_BLOB, str(error)) from None
        self._prepare(
            context, model.name, [_info(model, n) for n in model.inputs], [_info(model, n) for n in model.outputs]
        )
        sides, on_host = model.sides(), model.made_on_host()
        self._read_by_npu = {name for name in sides if NpuPart in sides[name]}
        self._made_on_host = on_host
        self._middle: dict[str, Buffer] = {}  # device memory of values between parts
        self._pinned: dict[str, HostBuffer] = {}  # host memory of values that are copied between host and NPU
        self._modules: dict[int, Module] = {}
        self._evaluators: dict[int, HostEvaluator] = {}
        self.last_launch: list[list[Job]] = []  # the jobs of each part, of what was enqueued last
        self._last: list[Job] = []  # the last job of launches that may not have finished
        try:
            for number, part in enumerate(model.parts):
                if isinstance(part, NpuPart):
                    self._modules[number] = self._module_of(part)
                else:
                    self._evaluators[number] = self._evaluator_of(part)
            ends = {*model.inputs, *(name for name in model.outputs if name not in on_host)}
            made = (name for part in model.npu_parts for name in (*part.inputs, *part.outputs))
            for name in dict.fromkeys(made):
                if name not in ends:
                    self._middle[name] = context.alloc(model.tensors[name].size_bytes)
        except BaseException:
            self.release()
            raise
        self.code_bytes = sum(module.code_bytes for module in self._modules.values())
        self.kernels = {self.name: PartedKernel(self)}

    def _evaluator_of(self, part: HostPart) -> HostEvaluator:
        try:
            return HostEvaluator(part.model, part.evaluator)
        except Unsupported as error:
            why = f"{self.name!r} has a part on the host that cannot run here: {error.message}"
            raise NpuError(C.NPU_ERROR_INVALID_BLOB, why) from None

    def _module_of(self, part: NpuPart) -> Module:
        module = Module(self.context, read_blob(part.blob))
        names = tuple(t.name for t in module.inputs), tuple(t.name for t in module.outputs)
        if names != (part.inputs, part.outputs):
            module.release()
            raise NpuError(
                C.NPU_ERROR_INVALID_BLOB, f"{self.name!r}: blob {module.name!r} has {names}, not as described"
            )
        return module

    @property
    def blobs(self) -> list[Module]:
        """The parts on the NPU, in order."""
        return list(self._modules.values())

    @property
    def memory_bytes(self) -> int:
        """Device memory that it takes, without what launches make."""
        return sum(m.memory_bytes for m in self._modules.values()) + sum(b.size for b in self._middle.values())

    @property
    def in_flight(self) -> int:
        """How many launches may not have finished."""
        self._last = [job for job in self._last if not job.done]
        return len(self._last)

    def operation(self, stream: Stream, inputs: Spans, outputs: Spans, dynamic: bool = False) -> Operation:
        """Raise Unsupported: it is several operations."""
        raise self.refusal("a single operation")

    def operation_at(self, stream: Stream, addresses: Sequence[int]) -> Operation:
        """As `operation`."""
        raise self.refusal("a single operation")

    def refusal(self, what: str) -> Unsupported:
        """Return the error for what a model in parts cannot be."""
        hosts = len(self.model.host_nodes)
        return Unsupported(f"{self.name!r} as {what}: {hosts} of its nodes run on the host, between several launches")

    def launch_in(self, stream: Stream, inputs: Spans, outputs: Spans, dynamic: bool = False) -> Job:
        """Enqueue all parts and return the last job; raises as `Stream.launch`, and Unsupported for an output of open shape."""
        self._check_model(stream)
        _, addresses = self.spans(inputs, outputs)
        check_alignment(addresses)
        for name in self.model.outputs:
            if not self.model.tensors[name].is_static:
                raise Unsupported(
                    f"output {name!r} of {self.name!r}: only a run tells its shape; Module.run returns it"
                )
        last = self._enqueue(stream, {**outputs, **inputs}, {}, dynamic)
        for name in self.output_names & self.input_names:
            last = stream.copy(outputs[name], inputs[name], self._size(name)) or last
        return last

    def launch_at(self, stream: Stream, addresses: Sequence[int]) -> Job:
        """As `launch_in`, on addresses."""
        self._check_model(stream)
        spans = self.buffers_at(addresses)
        split = len(self.inputs)
        inputs = dict(zip((t.name for t in self.inputs), spans[:split], strict=True))
        outputs = dict(zip((t.name for t in self.outputs), spans[split:], strict=True))
        return self.launch_in(stream, inputs, outputs)

    def _enqueue(self, stream: Stream, spans: Spans, values: dict[str, Any], dynamic: bool) -> Job:
        """Enqueue all parts and return the last job. `spans` is the memory of inputs and outputs, `values` are inputs that the
        host has; the host's parts add what they make.
        """
        self.check_loaded()
        stream.check_open()
        if stream.capturing is not None:
            raise stream.capturing.refusal(f"the launch of {self.name!r}, a model with parts on the host")
        plans = self._plan(spans, values)
        count = sum(len(down) + len(up) + 2 for down, up in plans)
        make_room(self.context, {stream: count + 1})
        self.check_loaded()
        before = self._last[-1] if self._last else None
        if before is not None and not before.done and before.stream is not stream:
            stream.wait_signal(before.stream.signal_of(before))
        memory = {**self._middle, **spans}
        found: list[list[Job]] = []
        for number, (part, (down, up)) in enumerate(zip(self.model.parts, plans, strict=True)):
            if isinstance(part, NpuPart):
                module = self._modules[number]
                ins, outs = ({n: memory[n] for n in names} for names in (part.inputs, part.outputs))
                found.append([module.launch_in(stream, ins, outs, dynamic)])
                continue
            jobs = [stream.copy(self._pinned[name], memory[name], self._size(name)) for name in down]
            function = _Evaluation(self, number, part, values, down, up)
            jobs.append(host_functions.enqueue(stream, function, (), self._host_ps(part)))
            jobs += [stream.copy(memory[name], self._pinned[name], self._size(name)) for name in up]
            found.append([job for job in jobs if job is not None])
        self._last = [job for job in self._last if not job.done] + [found[-1][-1]]
        self.last_launch = found
        return found[-1][-1]

    def _plan(self, spans: Spans, values: Mapping[str, Any]) -> list[tuple[list[str], list[str]]]:
        """Return for each part what is copied to the host before it, and into device memory behind it. Pins memory for that."""
        known, plans = set(values), []
        for part in self.model.parts:
            down: list[str] = []
            up: list[str] = []
            if isinstance(part, HostPart):
                down = [name for name in part.inputs if name not in known]
                up = [name for name in part.outputs if name in spans or name in self._middle]
                known |= {*down, *part.outputs}
                for name in (*down, *up):
                    if name not in self._pinned:
                        self._pinned[name] = self.context.alloc_host(self._size(name))
            plans.append((down, up))
        return plans

    def _size(self, name: str) -> int:
        return self.model.tensors[name].size_bytes

    def _host_ps(self, part: HostPart) -> int:
        """Return the host's time for a part; values whose shape only a run tells are not in it."""
        host = self.context.profile.host
        moved = sum(map(self._size, (*part.inputs, *part.outputs)))
        return round((len(part.nodes) * host.api_call_ns + moved / host.copy_bytes_per_ns) * PS_PER_NS)

    def evaluate(
        self, number: int, part: HostPart, values: dict[str, Any], down: Sequence[str], up: Sequence[str]
    ) -> None:
        """Run a part on the host: a host function. Raises what the evaluator raises, and INVALID_VALUE for a result of another type."""
        if not self.context.compute:
            return
        tensors = self.model.tensors
        for name in down:
            content = self._pinned[name].array[: self._size(name)].tobytes()
            values[name] = np.frombuffer(content, tensors[name].numpy_dtype).reshape(tensors[name].shape)
        results = self._evaluators[number].run({name: values[name] for name in part.inputs}, part.outputs)
        for name, result in zip(part.outputs, results, strict=True):
            values[name] = _checked(tensors[name], result)
            if name in up:
                info = _info(self.model, name)
                self._pinned[name].array[: self._size(name)] = info.check(values[name]).reshape(-1).view(np.uint8)

    def _is_on_device(self, tensor: TensorInfo) -> bool:
        return tensor.name in self._read_by_npu

    def _io_sizes(self) -> list[int]:
        """As of any module; nothing for what the NPU never sees in a `run`."""
        ins = [t.size_bytes if t.name in self._read_by_npu else 0 for t in self.inputs]
        return ins + [0 if t.name in self._made_on_host else t.size_bytes for t in self.outputs]

    def _run(
        self, arrays: list[NDArray[Any]], buffers: list[Buffer], stream: Stream | None, dynamic: bool
    ) -> dict[str, NDArray[Any]]:
        queue = self.context.default_stream if stream is None else stream
        values: dict[str, Any] = {t.name: array for t, array in zip(self.inputs, arrays, strict=True)}
        spans: dict[str, Buffer | DeviceSpan] = {}
        for tensor, buffer in zip(self.inputs, buffers, strict=False):
            if tensor.name in self._read_by_npu:
                buffer.write(values[tensor.name])
                spans[tensor.name] = buffer
        made = {
            t.name: b for t, b in zip(self.outputs, buffers[len(self.inputs) :], strict=True) if t.name not in values
        }
        on_npu = {name: buffer for name, buffer in made.items() if name not in self._made_on_host}
        self._enqueue(queue, {**spans, **on_npu}, values, dynamic)
        queue.complete()
        if not self.context.compute:
            return {}
        for tensor in self.outputs:
            if tensor.name in on_npu:
                values[tensor.name] = on_npu[tensor.name].read(tensor.numpy_dtype, tensor.shape)
        return {t.name: values[t.name] for t in self.outputs}

    def release(self) -> None:
        """As `Module.release`, of all parts."""
        self._loaded = False
        for buffer in (buffer for buffers in self._io for buffer in buffers):
            buffer.free()
        self._io.clear()
        self.last_launch = []
        for module in self._modules.values():
            module.release()
        for buffer in (*self._middle.values(), *self._pinned.values()):
            buffer.free()
        self._middle.clear()
        self._pinned.clear()


class PartedKernel(ModelKernel):
    """The one kernel of a model in parts."""

    module: PartedModule

    def operation(self, arguments: Sequence[Any], grid: int | None = None) -> Operation:
        """Raise Unsupported: it is several operations."""
        raise self.module.refusal("a single operation")

    def launch_in(self, stream: Stream, arguments: Sequence[Any], grid: int | None = None) -> Job:
        """Enqueue all parts; see `PartedModule.launch_in`."""
        spans = self.checked_memory(arguments, grid)
        names = [param.name for param in self.params]
        split = len(self.module.inputs)
        inputs, outputs = (
            dict(zip(names[part], spans[part], strict=True)) for part in (slice(split), slice(split, None))
        )
        return self.module.launch_in(stream, inputs, outputs)


class _Evaluation:
    """A part on the host, as a host function by its name."""

    def __init__(self, module: PartedModule, number: int, part: HostPart, *rest: Any) -> None:
        self._call = module, number, part, rest
        self.__name__ = f"{module.name}.part{number}"

    def __call__(self) -> None:
        module, number, part, rest = self._call
        module.evaluate(number, part, *rest)


def _info(model: PartedModel, name: str) -> TensorInfo:
    tensor = model.tensors[name]
    return TensorInfo(name, tensor.code, tensor.shape, tensor.size_bytes)


def _checked(tensor: Tensor, result: Any) -> Any:
    """Return a result of the evaluator as what the model says that it is. Raises INVALID_VALUE."""
    if not tensor.dtype:
        return result
    array = np.asarray(result)
    fits = array.ndim == len(tensor.shape) or tensor.shape == (-1,)
    fits = fits and all(want in (-1, have) for want, have in zip(tensor.shape, array.shape, strict=False))
    if array.dtype != tensor.numpy_dtype or not fits:
        raise NpuError(
            C.NPU_ERROR_INVALID_VALUE,
            f"the host made {tensor.name!r} as {array.dtype} {array.shape}, the model says {tensor.numpy_dtype} {tensor.shape}",
        )
    return array
