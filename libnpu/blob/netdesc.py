"""Platform and network description of a blob: struct npu_platform_info, npu_net_desc and npu_io_desc, both directions.

Also the layout of the I/O sections, which follows from the tensors: in order, each 64-byte aligned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import npu_abi
from npu_abi import C

from libnpu.blob import elf
from libnpu.blob.image import BlobError, BlobImage, IoTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

# Bytes of an element by enum npu_dtype code.
ITEM_BYTES = (2, 2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1)


def _text(section: str, what: str, text: str, limit: int) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise BlobError(f"{section}: {what} {text!r} is not valid Unicode") from None
    if not data or b"\0" in data or len(data) >= limit:
        raise BlobError(f"{section}: {what} {text!r} has {len(data)} bytes; expected 1 to {limit - 1}, without NUL")
    return data


def pack_name(section: str, what: str, text: str) -> bytes:
    """Return a name of up to NPU_NAME_BYTES - 1 bytes. Raises BlobError on one that is empty, too long or has a NUL."""
    return _text(section, what, text, C.NPU_NAME_BYTES)


def u32(section: str, what: str, value: int) -> int:
    if not 0 <= value < 1 << 32:
        raise BlobError(f"{section}: {what} is {value}; expected 0 to {(1 << 32) - 1}")
    return value


def pack_platform(image: BlobImage) -> bytes:
    return npu_abi.pack(
        npu_abi.new(
            "npu_platform_info",
            profile=_text(elf.PLATFORM, "profile name", image.profile, 64),
            tile_count=u32(elf.PLATFORM, "tile_count", image.tile_count),
            cmx_bytes=u32(elf.PLATFORM, "cmx_bytes", image.cmx_bytes),
            barrier_count=u32(elf.PLATFORM, "barrier_count", image.barrier_count),
        )
    )


def pack_netdesc(image: BlobImage) -> bytes:
    if not 0 <= image.macs < 1 << 64:
        raise BlobError(f"{elf.NETDESC}: macs is {image.macs}; expected 0 to 2**64 - 1")
    head = npu_abi.new(
        "npu_net_desc",
        name=_text(elf.NETDESC, "network name", image.name, C.NPU_NAME_BYTES),
        input_count=len(image.inputs),
        output_count=len(image.outputs),
        submit_count=1,
        weight_bytes=image.weight_bytes,
        scratch_bytes=image.scratch_bytes,
        macs=image.macs,
    )
    parts = [npu_abi.pack(head)]
    for tensors in (image.inputs, image.outputs):
        if len(tensors) > elf.MAX_TENSORS:
            raise BlobError(f"{elf.NETDESC}: {len(tensors)} tensors; expected at most {elf.MAX_TENSORS}")
        _unique(tensors)
        for tensor, offset in zip(tensors, io_offsets(tensors), strict=True):
            check_tensor(tensor)
            descriptor = npu_abi.new(
                "npu_io_desc",
                name=_text(elf.NETDESC, "tensor name", tensor.name, C.NPU_NAME_BYTES),
                dtype=tensor.dtype,
                rank=len(tensor.shape),
                dims=list(tensor.shape),
                size_bytes=tensor.size_bytes,
                offset=offset,
            )
            parts.append(npu_abi.pack(descriptor))
    return b"".join(parts)


def check_tensor(tensor: IoTensor) -> None:
    """Raise BlobError unless the tensor's type, rank, dimensions and size fit together."""
    where = f"{elf.NETDESC}: tensor {tensor.name!r}"
    if not 0 <= tensor.dtype < C.NPU_DT_COUNT:
        raise BlobError(f"{where}: dtype {tensor.dtype}; expected an enum npu_dtype below {C.NPU_DT_COUNT}")
    if len(tensor.shape) > C.NPU_MAX_DIMS:
        raise BlobError(f"{where}: rank {len(tensor.shape)}; expected at most {C.NPU_MAX_DIMS}")
    size = ITEM_BYTES[tensor.dtype]
    for dim in tensor.shape:
        if not 0 <= dim <= elf.MAX_MEMORY_BYTES:
            raise BlobError(f"{where}: dimension {dim}; expected 0 to {elf.MAX_MEMORY_BYTES}")
        size *= dim
    if size != tensor.size_bytes or size > elf.MAX_MEMORY_BYTES:
        raise BlobError(f"{where}: size_bytes {tensor.size_bytes}; expected {size}, at most {elf.MAX_MEMORY_BYTES}")


def io_offsets(tensors: Sequence[IoTensor]) -> list[int]:
    """Return each tensor's offset in its section: in order, 64-byte aligned, no gaps beyond that."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end = elf.align_up(end + tensor.size_bytes, 64)
    return offsets


def io_bytes(tensors: Sequence[IoTensor]) -> int:
    """Return the size of the section of `tensors`."""
    return io_offsets(tensors)[-1] + tensors[-1].size_bytes if tensors else 0


def _unique(tensors: Sequence[IoTensor]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise BlobError(f"{elf.NETDESC}: two tensors of one direction are named {tensor.name!r}")
        seen.add(tensor.name)


def unpack_platform(data: bytes) -> dict[str, Any]:
    """Return profile, tile_count, cmx_bytes and barrier_count, named as the fields of BlobImage."""
    _expect_size(elf.PLATFORM, data, npu_abi.sizeof("npu_platform_info"))
    info = npu_abi.view("npu_platform_info", data)
    if info.reserved:
        raise BlobError(
            f"{elf.PLATFORM}+{npu_abi.offsetof('npu_platform_info', 'reserved')}: reserved field is {info.reserved}; expected 0"
        )
    return {
        "profile": unpack_name(elf.PLATFORM, 0, data[:64]),
        "tile_count": int(info.tile_count),
        "cmx_bytes": int(info.cmx_bytes),
        "barrier_count": int(info.barrier_count),
    }


def unpack_netdesc(data: bytes) -> dict[str, Any]:
    """Return name, macs, inputs, outputs, named as the fields of BlobImage, and weight_bytes and scratch_bytes."""
    head_bytes, io_desc_bytes = npu_abi.sizeof("npu_net_desc"), npu_abi.sizeof("npu_io_desc")
    if len(data) < head_bytes:
        raise BlobError(f"{elf.NETDESC}: {len(data)} bytes; expected at least {head_bytes}")
    head = npu_abi.view("npu_net_desc", data)
    for field, expected in (("reserved0", 0), ("reserved1", 0), ("submit_count", 1)):
        if getattr(head, field) != expected:
            offset = npu_abi.offsetof("npu_net_desc", field)
            raise BlobError(f"{elf.NETDESC}+{offset}: {field} is {getattr(head, field)}; expected {expected}")
    counts = {"input_count": int(head.input_count), "output_count": int(head.output_count)}
    for field, count in counts.items():
        if count > elf.MAX_TENSORS:
            raise BlobError(f"{elf.NETDESC}: {field} is {count}; expected at most {elf.MAX_TENSORS}")
    _expect_size(elf.NETDESC, data, head_bytes + sum(counts.values()) * io_desc_bytes)
    offset = head_bytes
    tensors = []
    for _ in range(sum(counts.values())):
        tensors.append(_unpack_tensor(data, offset))
        offset += io_desc_bytes
    split = counts["input_count"]
    for group in (tensors[:split], tensors[split:]):
        _check_group(group)
    return {
        "name": unpack_name(elf.NETDESC, 0, data[: C.NPU_NAME_BYTES]),
        "macs": int(head.macs),
        "inputs": [tensor for tensor, _ in tensors[:split]],
        "outputs": [tensor for tensor, _ in tensors[split:]],
        "weight_bytes": int(head.weight_bytes),
        "scratch_bytes": int(head.scratch_bytes),
    }


def _unpack_tensor(data: bytes, offset: int) -> tuple[IoTensor, int]:
    """Return the tensor that is described at `offset`, and its offset in its section."""
    desc = npu_abi.view("npu_io_desc", data, offset)
    name = unpack_name(elf.NETDESC, offset, data[offset : offset + C.NPU_NAME_BYTES])
    rank = int(desc.rank)
    if rank > C.NPU_MAX_DIMS or any(desc.dims[rank : C.NPU_MAX_DIMS]):
        raise BlobError(
            f"{elf.NETDESC}+{offset}: tensor {name!r} has rank {rank} and dimensions {list(desc.dims)}; "
            f"expected rank <= {C.NPU_MAX_DIMS} and zeros beyond it"
        )
    tensor = IoTensor(name, int(desc.dtype), tuple(int(d) for d in desc.dims[0:rank]), int(desc.size_bytes))
    check_tensor(tensor)
    return tensor, int(desc.offset)


def _check_group(group: list[tuple[IoTensor, int]]) -> None:
    tensors = [tensor for tensor, _ in group]
    _unique(tensors)
    for (tensor, offset), expected in zip(group, io_offsets(tensors), strict=True):
        if offset != expected:
            raise BlobError(f"{elf.NETDESC}: tensor {tensor.name!r} is at offset {offset}; expected {expected}")


def _expect_size(section: str, data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise BlobError(f"{section}: {len(data)} bytes; expected {expected}")


def unpack_name(section: str, offset: int, field: bytes) -> str:
    """Return the text of a name field at `offset` of `section`. Raises BlobError unless it is UTF-8 and NULs to the end."""
    text, _, rest = field.partition(b"\0")
    try:
        found = text.decode()
    except UnicodeDecodeError:
        found = ""
    if not found or len(text) == len(field) or rest.strip(b"\0"):
        raise BlobError(f"{section}+{offset}: name {bytes(field)!r}; expected UTF-8 text, then NULs to the field's end")
    return found
