"""A compiled model or a kernel library in device memory, ready to launch."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import instance_of, mapping_of, truth, wrong
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.guard import failures_yield_to, public
from libnpu.runtime.instances import Instances
from libnpu.runtime.kernel import MODEL_ALIGNMENT, Kernel, LibraryKernel, ModelKernel
from libnpu.runtime.operation import INFERENCE_DYNAMIC, INFERENCE_EXECUTE, ModuleLaunch
from libnpu.runtime.placement import (
    ARGS,
    TEXT,
    Layout,
    Patch,
    check_resources,
    layout,
    split_relocations,
    weights_layout,
)  # fmt: skip
from libnpu.runtime.spans import Memory
from libnpu.runtime.stream import Stream
from libnpu.runtime.task_names import TaskNames
from libnpu.runtime.tensor import TensorInfo, check_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from libnpu.blob import BlobImage
    from libnpu.runtime.context import Context
    from libnpu.runtime.guard import Guard
    from libnpu.runtime.instance import Instance
    from libnpu.runtime.job import Job
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.spans import DeviceSpan


def check_alignment(addresses: Iterable[int]) -> None:
    """Raise MISALIGNED for an address at which a model cannot have a tensor."""
    for address in addresses:
        if address % MODEL_ALIGNMENT:
            raise NpuError(C.NPU_ERROR_MISALIGNED, f"address {address:#x} is not a multiple of {MODEL_ALIGNMENT}")


class Module:
    """Made by `Context.load`.

    `inputs` and `outputs` are a model's tensors, in order; `kernels` is what can be launched, by name. `unload` or the
    context's end frees it.

    >>> from libnpu.blob import KernelSource, kernel_library
    >>> with device.load(kernel_library("mine", {"nothing": KernelSource("halt", ())})) as module:
    ...     module["nothing"].launch(None, grid=1).wait()
    ...     list(module.kernels)
    ['nothing']
    """

    def __init__(self, context: Context, image: BlobImage, kind: type[LibraryKernel] = LibraryKernel) -> None:
        """Check and place `image`; `kind` is what a library's kernels are. Raises NpuError; then nothing is left allocated."""
        check_resources(image, context.profile)
        if image.planned_weight_bytes and context.compute:
            raise NpuError(
                C.NPU_ERROR_INVALID_BLOB,
                f"{image.name!r} is a plan: its {image.planned_weight_bytes} bytes of weights have no values; "
                "it runs on a device that is opened with compute=False",
            )
        inputs, outputs = (
            [TensorInfo(t.name, t.dtype, t.shape, t.size_bytes) for t in tensors]
            for tensors in (image.inputs, image.outputs)
        )
        self._prepare(context, image.name, inputs, outputs)
        self.code_bytes = len(image.text)
        self.tasks = TaskNames(image)
        shared, made, launched = split_relocations(image)
        low = layout([(TEXT, image.text), (ARGS, image.shave_args)])
        low_patch = Patch(low, shared, image)
        self._instances = Instances(context, image, made, launched, self._objects, self._shared)
        self.is_library = bool(image.kernels)
        self.is_builtin = kind is not LibraryKernel  # the context's own library
        self.kernels: dict[str, Kernel] = (
            {kernel.name: kind(self, kernel) for kernel in image.kernels}
            if image.kernels
            else {self.name: ModelKernel(self)}
        )
        try:
            weights = self._place(weights_layout(image), C.NPU_BO_DMA_MEM | C.NPU_BO_READONLY_WEIGHT)
            if weights:
                weights.publish()
            low_object = self._place(low, C.NPU_BO_SHAVE_MEM)
            if low_object and low_object.view:
                low_patch.apply(low_object.view, self._shared)
            self._text = low_object
            if not self.is_library:
                self._instances.new()
        except BaseException:
            self.release()
            raise
        if context.observer is not None:
            context.observer.loaded(context, image)

    def _prepare(self, context: Context, name: str, inputs: list[TensorInfo], outputs: list[TensorInfo]) -> None:
        """Become a module without anything in device memory."""
        self.context = context
        self.guard: Guard = context.guard
        self.name: str = name
        self.inputs, self.outputs = inputs, outputs
        self.input_names = frozenset(t.name for t in inputs)
        self.output_names = frozenset(t.name for t in outputs)
        self.is_library = self.is_builtin = False
        self._objects: list[BufferObject] = []
        self._shared: dict[str, int] = {}
        self._io: list[list[Buffer]] = []  # memory for inputs and outputs that no `run` uses
        self._loaded = True
        self.launches: list[Job] = []  # of library kernels, that may not have finished
        self.users: weakref.WeakSet[object] = weakref.WeakSet()  # command lists and graphs that launch it

    def _place(self, sections: Layout, flags: int) -> BufferObject | None:
        if not sections.size:
            return None
        bo = BufferObject(self.context.node, sections.size, flags | C.NPU_BO_MAPPABLE)
        self._objects.append(bo)
        assert bo.view is not None
        sections.copy_to(bo.view)
        self._shared |= {name: bo.va + offset for name, offset in sections.offsets.items()}
        self.context.charge_copy(sections.size)
        return bo

    @property
    def memory_bytes(self) -> int:
        """Device memory that it takes, without what launches make."""
        return sum(bo.size for bo in self._objects) + self._instances.memory_bytes

    def __getitem__(self, name: str) -> Kernel:
        """Return the kernel `name`. Raises INVALID_VALUE when there is none."""
        self.check_loaded()
        if instance_of(name, str, "name") not in self.kernels:
            known = ", ".join(map(repr, self.kernels))
            missing = (
                f"there is no built-in kernel {name!r}; there are"
                if self.is_builtin
                else f"module {self.name!r} has no kernel {name!r}; it has"
            )
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{missing} {known}")
        return self.kernels[name]

    def text(self) -> tuple[int, int]:
        """Return the address of .text.shave and the handle of its buffer object."""
        self.check_loaded()
        assert self._text is not None
        return self._shared[TEXT], self._text.handle

    def launch_in(
        self,
        stream: Stream,
        inputs: Mapping[str, Buffer | DeviceSpan],
        outputs: Mapping[str, Buffer | DeviceSpan],
        dynamic: bool = False,
    ) -> Job:
        """Enqueue a launch of a model in `stream` on memory by tensor name; as `Stream.launch`."""
        return stream.enqueue(self.operation(stream, inputs, outputs, dynamic))

    def launch_at(self, stream: Stream, addresses: Sequence[int]) -> Job:
        """Enqueue a launch of a model on addresses; as `Stream.launch_addresses`."""
        return stream.enqueue(self.operation_at(stream, addresses))

    def operation(
        self,
        stream: Stream,
        inputs: Mapping[str, Buffer | DeviceSpan],
        outputs: Mapping[str, Buffer | DeviceSpan],
        dynamic: bool = False,
    ) -> Operation:
        """Return the launch of a model in `stream` on memory by tensor name; raises as `Stream.launch`."""
        if self.is_library or stream.context is not self.context:
            self._check_model(stream)  # raises
        return self._launch(*self.spans(inputs, outputs), dynamic)

    def spans(
        self, inputs: Mapping[str, Buffer | DeviceSpan], outputs: Mapping[str, Buffer | DeviceSpan]
    ) -> tuple[list[Buffer | DeviceSpan], tuple[int, ...]]:
        """Return memory by tensor name in the order of the tensors, checked, and its addresses; raises as `Stream.launch`."""
        if type(inputs) is not dict or inputs.keys() != self.input_names:
            check_names(inputs, [t.name for t in self.inputs], "inputs")
        if type(outputs) is not dict or outputs.keys() != self.output_names:
            check_names(outputs, [t.name for t in self.outputs], "outputs")
        spans: list[Buffer | DeviceSpan] = []
        key: list[int] = []
        for tensors, given in ((self.inputs, inputs), (self.outputs, outputs)):
            for tensor in tensors:
                span = given[tensor.name]
                if not isinstance(span, Memory):
                    raise wrong(span, f"{tensor.name!r}", "device memory")
                _ = span.buffer.handle  # raises STALE_HANDLE
                if span.size < tensor.size_bytes:
                    raise NpuError(
                        C.NPU_ERROR_ARG_SIZE,
                        f"{tensor.name!r} has {span.size} bytes, the module expects {tensor.size_bytes}",
                        asked=span.asked(0, tensor.size_bytes),
                    )
                if span.buffer.context is not self.context:
                    raise NpuError(C.NPU_ERROR_WRONG_CONTEXT, f"the memory of {tensor.name!r} is another context's")
                spans.append(span)
                key.append(span.device_address)
        return spans, tuple(key)

    def operation_at(self, stream: Stream, addresses: Sequence[int]) -> Operation:
        """Return the launch of a model on addresses; raises as `Stream.launch_addresses`."""
        self._check_model(stream)
        return self._launch(self.buffers_at(addresses), tuple(addresses))

    def buffers_at(self, addresses: Sequence[int]) -> list[Buffer | DeviceSpan]:
        """Return the memory at addresses, the inputs' and then the outputs'; raises as `Stream.launch_addresses`."""
        tensors = [*self.inputs, *self.outputs]
        if len(addresses) != len(tensors):
            raise NpuError(C.NPU_ERROR_ARG_COUNT, f"{len(addresses)} addresses for {len(tensors)} tensors")
        return [
            self.context.buffer_at(address, tensor.size_bytes)
            for tensor, address in zip(tensors, addresses, strict=True)
        ]

    def _check_model(self, stream: Stream) -> None:
        if self.is_library:
            raise NpuError(C.NPU_ERROR_BAD_STATE, f"{self.name!r} is a kernel library: launch one of its kernels")
        if stream.context is not self.context:  # else no text is made
            stream.check_context(self.context, f"module {self.name!r}")

    def _launch(
        self, spans: Sequence[Buffer | DeviceSpan], key: tuple[int, ...], dynamic: bool = False
    ) -> ModuleLaunch:
        check_alignment(key)
        return ModuleLaunch(self, spans, key, INFERENCE_DYNAMIC if dynamic else INFERENCE_EXECUTE)

    def instance_for(self, stream: Stream, key: tuple[int, ...], handles: list[int]) -> Instance:
        """Return an instance for a launch in `stream`, as `Instances.take`."""
        self.check_loaded()
        return self._instances.take(stream, key, handles)

    def own_instance(self, owner: object, key: tuple[int, ...], handles: list[int]) -> Instance:
        """Return an instance for `owner` alone, as `Instances.own`."""
        self.check_loaded()
        return self._instances.own(owner, key, handles)

    @property
    def in_flight(self) -> int:
        """How many launches may not have finished."""
        return self._instances.in_flight + len(self.launches)

    @public
    def run(
        self, arrays: Mapping[str, Any], stream: Stream | None = None, *, dynamic: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Copy `arrays` in, launch, wait, and return the outputs by name ({} on a device that computes no values).

        Raises INVALID_VALUE for a name, type or shape that is not the model's, STALE_HANDLE after `unload`, and what
        `Stream.synchronize` raises.
        """
        self.check_loaded()
        if stream is not None:
            instance_of(stream, Stream, "stream")
        dynamic = truth(dynamic, "dynamic")
        check_names(mapping_of(arrays, "arrays"), [t.name for t in self.inputs], "inputs")
        checked = [tensor.check(arrays[tensor.name], self._is_on_device(tensor)) for tensor in self.inputs]
        buffers = self._io.pop() if self._io else self._io_buffers()
        try:
            return self._run(checked, buffers, stream, dynamic)
        finally:
            if self._loaded:
                self._io.append(buffers)
            else:  # another thread unloaded it meanwhile
                for buffer in buffers:
                    buffer.free()

    def _run(
        self, arrays: list[NDArray[Any]], buffers: list[Buffer], stream: Stream | None, dynamic: bool
    ) -> dict[str, NDArray[Any]]:
        queue = self.context.default_stream if stream is None else stream
        ins, outs = buffers[: len(self.inputs)], buffers[len(self.inputs) :]
        for buffer, array in zip(ins, arrays, strict=True):
            buffer.write(array)
        queue.launch(
            self,
            {t.name: b for t, b in zip(self.inputs, ins, strict=True)},
            {t.name: b for t, b in zip(self.outputs, outs, strict=True)},
            dynamic=dynamic,
        )
        queue.complete()
        if not self.context.compute:
            return {}
        return {t.name: b.read(t.numpy_dtype, t.shape) for t, b in zip(self.outputs, outs, strict=True)}

    def _is_on_device(self, tensor: TensorInfo) -> bool:
        """Whether the device reads an input."""
        return True

    def _io_sizes(self) -> list[int]:
        """Return the bytes of the memory that one run takes for each input and output."""
        return [tensor.size_bytes for tensor in (*self.inputs, *self.outputs)]

    def _io_buffers(self) -> list[Buffer]:
        """Return memory for all inputs and outputs of one run. Raises OUT_OF_DEVICE_MEMORY, with none left."""
        made: list[Buffer] = []
        try:
            for size in self._io_sizes():
                buffer = self.context.alloc(max(1, size))
                made.append(buffer)
        except BaseException:
            for buffer in made:
                buffer.free()
            raise
        return made

    @public
    def unload(self) -> None:
        """Free its memory. Raises IN_USE while a launch of it has not been waited for, or a command list or graph has
        one; NOT_PERMITTED of the built-in library, which is the context's. Twice is allowed.
        """
        if self.is_builtin:
            raise NpuError(C.NPU_ERROR_NOT_PERMITTED, f"{self.name!r} is the context's own library, and ends with it")
        if self.in_flight:
            raise NpuError(C.NPU_ERROR_IN_USE, f"{self.in_flight} launches of {self.name!r} have not finished")
        if self.users and self._loaded:
            raise NpuError(C.NPU_ERROR_IN_USE, f"{len(self.users)} command lists or graphs launch {self.name!r}")
        self.release()
        self.context.forget_module(self)

    def __enter__(self) -> Module:
        return self

    @public
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Unload it. When an exception ends the block, launches in flight go on and keep the memory until they end."""
        with failures_yield_to(kind):
            if kind is None:
                self.unload()
            elif not self.is_builtin:
                self.release()
                self.context.forget_module(self)

    def check_loaded(self) -> None:
        """Raise STALE_HANDLE after `unload`."""
        if not self._loaded:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, f"module {self.name!r} was unloaded")

    def release(self) -> None:
        """Free its memory whether launches of it have finished or not; those in flight keep theirs until they end."""
        self._loaded = False
        for buffer in (buffer for buffers in self._io for buffer in buffers):
            buffer.free()
        self._io.clear()
        self._instances.free()
        for bo in self._objects:
            bo.free()
        self._objects.clear()
