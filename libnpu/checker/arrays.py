"""Arrays that tell what the program does with memory that the device sees: what `HostBuffer.array` returns during a check.

Views of a watched array are watched; results that are memory of their own are ordinary arrays. What goes past NumPy
(`memoryview`, ctypes, `numpy.asarray(array)` and other libraries) is not seen.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.runtime.site import is_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

NUMPY = os.path.dirname(np.__file__) + os.sep
COPIES = (
    "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "compress", "copy", "dot", "dump", "dumps", "flatten", "item",
    "nonzero", "repeat", "searchsorted", "take", "tobytes", "tofile", "tolist", "__deepcopy__", "__reduce__", "__reduce_ex__",
)  # fmt: skip
CHANGES = ("byteswap", "fill", "itemset", "partition", "put", "sort")


class WatchedArray(np.ndarray[Any, np.dtype[Any]]):
    """`tell(start address, bytes, write)` is called before the program reads or writes."""

    tell: Callable[[int, int, bool], None] | None

    @classmethod
    def over(cls, array: np.ndarray[Any, Any], tell: Callable[[int, int, bool], None]) -> WatchedArray:
        """Return a watched view of an array."""
        made = array.view(cls)
        made.tell = tell
        return made

    def __array_finalize__(self, made_from: Any) -> None:
        """Watch views, not copies."""
        self.tell = None
        tell = getattr(made_from, "tell", None)
        if tell is not None and np.may_share_memory(_plain(self), _plain(made_from)):
            self.tell = tell

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Tell of operands and results, and compute with ordinary arrays."""
        for operand in inputs:
            _note(operand, write=method == "at" and operand is inputs[0])
        if out is not None:
            for result in out:
                _note(result, write=True)
            options["out"] = tuple(_plain(result) for result in out)
        result = getattr(ufunc, method)(*(_plain(operand) for operand in inputs), **options)
        return out[0] if out is not None and len(out) == 1 else result

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Tell of all arrays among the arguments, and call with ordinary ones."""
        changes = arguments[:1] if function in (np.copyto, np.put, np.place, np.putmask, np.fill_diagonal) else ()
        for value in _arrays((arguments, options)):
            _note(value, write=any(value is changed for changed in changes) or value is options.get("out"))
        return function(*_plain_all(arguments), **_plain_all(options))

    def __getitem__(self, index: Any) -> Any:
        """Return a watched view, or a value that was read."""
        found = super().__getitem__(index)
        if not isinstance(found, WatchedArray) or found.tell is None:
            _note(self, write=False, part=index)
            return _plain(found)
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        """Tell of what is written, and of what is read for that."""
        _note(value, write=False)
        _note(self, write=True, part=index)
        _plain(self)[index] = _plain(value)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[index] for index in range(len(self))])

    def __repr__(self) -> str:
        _note(self, write=False)
        return repr(_plain(self))

    def __str__(self) -> str:
        _note(self, write=False)
        return str(_plain(self))

    def __format__(self, specification: str) -> str:
        _note(self, write=False)
        return format(_plain(self), specification)

    def __bool__(self) -> bool:
        _note(self, write=False)
        return bool(_plain(self))

    def __int__(self) -> int:
        _note(self, write=False)
        return int(_plain(self))

    def __float__(self) -> float:
        _note(self, write=False)
        return float(_plain(self))

    def __index__(self) -> int:
        _note(self, write=False)
        return int(_plain(self).__index__())


def _method(name: str, write: bool) -> Callable[..., Any]:
    def method(self: WatchedArray, *arguments: Any, **options: Any) -> Any:
        _note(self, write=write)
        return getattr(_plain(self), name)(*arguments, **options)

    method.__name__ = name
    method.__doc__ = f"As numpy.ndarray.{name}."
    return method


for _name in COPIES:
    setattr(WatchedArray, _name, _method(_name, False))
for _name in CHANGES:
    if hasattr(np.ndarray, _name):
        setattr(WatchedArray, _name, _method(_name, True))


def site_of_array() -> str:
    """Return "file:line" of the innermost frame outside of this library and NumPy, "" when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_inside[file := frame.f_code.co_filename] or file.startswith(NUMPY)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def runs(array: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Yield the memory of an array as (address, bytes), contiguous runs."""
    if not array.size:
        return
    address, width = array.__array_interface__["data"][0], array.itemsize
    outer: list[range] = []
    for count, stride in sorted(zip(array.shape, array.strides, strict=True), key=lambda dim: abs(dim[1])):
        if count == 1 or stride == 0:
            continue
        if stride < 0:
            address, stride = address + (count - 1) * stride, -stride
        if not outer and stride == width:
            width *= count
        else:
            outer.append(range(0, count * stride, stride))
    for offsets in product(*outer):
        yield address + sum(offsets), width


def _note(value: Any, *, write: bool, part: Any = None) -> None:
    if not isinstance(value, WatchedArray) or value.tell is None:
        return
    plain = _plain(value)
    if part is not None:
        chosen = plain[part if isinstance(part, tuple) else (part,)]
        one = not isinstance(chosen, np.ndarray)
        if one:  # an element: as an array of no dimension, in place
            chosen = plain[(*(part if isinstance(part, tuple) else (part,)), ...)]
        if np.may_share_memory(chosen, plain):
            plain = chosen
    for address, size in runs(plain):
        value.tell(address, size, write)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, WatchedArray) else value


def _plain_all(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_plain_all, value))
    if isinstance(value, dict):
        return {key: _plain_all(item) for key, item in value.items()}
    return _plain(value)


def _arrays(value: Any) -> Iterator[WatchedArray]:
    if isinstance(value, WatchedArray):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        yield from _arrays(tuple(value.values()))
