"""The CMX map that a compiler leaves in .npu.debug: which buffer stays where in CMX, from which task to which."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, NamedTuple

from npu_abi import C

from libnpu.blob.image import BlobError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npu_model.footprint import Box

    from libnpu.blob.image import BlobImage

_CMX_BASE, _TILE_STRIDE = int(C.NPU_CMX_BASE), int(C.NPU_CMX_TILE_STRIDE)


class Stay(NamedTuple):
    """A buffer's stay in CMX: bytes [offset, offset + size_bytes) of `tile`, from task `first` to task `last`, by task_id."""

    name: str
    tile: int
    offset: int
    size_bytes: int
    first: int
    last: int

    @property
    def addr(self) -> int:
        """The CMX address of the first byte."""
        return _CMX_BASE + self.tile * _TILE_STRIDE + self.offset

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.addr + self.size_bytes


def stays(image: BlobImage) -> list[Stay]:
    """Return the stays in order of their first task. Raises BlobError when .npu.debug has no such map."""
    entries = image.debug.get("cmx")
    if not isinstance(entries, list):
        raise BlobError("the blob has no CMX map in .npu.debug")
    found = []
    try:
        for name, address, size_bytes, first, last in entries:
            relative = int(address) % _CMX_BASE  # offsets in tile 0 and addresses of the window are both in use
            tile, offset = divmod(relative, _TILE_STRIDE)
            found.append(Stay(str(name), tile, offset, int(size_bytes), int(first), int(last)))
    except (TypeError, ValueError):
        raise BlobError(
            "the CMX map in .npu.debug is not a list of [name, address, bytes, first task, last task]"
        ) from None
    return sorted(found, key=lambda stay: (stay.first, stay.tile, stay.offset))


def operands(image: BlobImage) -> list[dict[str, tuple[str, int]]]:
    """Return, by task_id, the address fields of a descriptor that point into CMX: field -> (buffer, offset). Raises BlobError.

    Empty where .npu.debug does not say.
    """
    try:
        return [
            {str(field): (str(name), int(offset)) for field, (name, offset) in task.get("operands", {}).items()}
            for task in image.debug.get("tasks", [])
        ]
    except (TypeError, ValueError, AttributeError):
        raise BlobError("operands of tasks in .npu.debug are not {field: [buffer, offset]}") from None


def assign(found: list[Stay], touched: Iterable[tuple[int, Box]]) -> list[int]:
    """Return, for each (task_id, bytes) of `touched`, the stay that the bytes are of, by its index in `found`; -1 = of none.

    Of several the latest: the others' buffers have left and come back to the same place later.
    """
    order = sorted(enumerate(touched), key=_task_id)
    answer = [-1] * len(order)
    addresses, ends = [stay.addr for stay in found], [stay.end for stay in found]
    leaving = sorted(range(len(found)), key=lambda index: -found[index].last)
    begins = 0
    live: list[tuple[int, int]] = []  # (address, index), ascending
    for place, (task_id, box) in order:
        while begins < len(found) and found[begins].first <= task_id:
            insort(live, (addresses[begins], begins))
            begins += 1
        while leaving and found[leaving[-1]].last < task_id:
            gone = leaving.pop()
            if gone < begins:
                live.remove((addresses[gone], gone))
        end = box.end
        for _, index in live[: bisect_right(live, (box.addr, len(found)))]:
            if ends[index] >= end and index > answer[place]:
                answer[place] = index
    return answer


def _task_id(entry: tuple[int, tuple[int, Box]]) -> int:
    return entry[1][0]
