"""The ABI: structures, constants and enums of the C headers in this folder, as Python sees them.

The headers are the contract and are written first; nothing in them is typed again in Python. Structures come as cffi
objects (one at a time), or through `dtype` as NumPy records (in bulk). This package imports nothing of the project.
"""

from __future__ import annotations

import enum as _enum
import struct as _struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_abi._abi import ffi as ffi

if TYPE_CHECKING:
    import numpy as np

INCLUDE_DIR = Path(__file__).parent


class _Constants:
    """Every enumerator and `#define` of the headers as an attribute: `C.NPU_PAGE_SIZE`."""

    def __init__(self) -> None:
        names = [name for name in dir(ffi.dlopen(None)) if name.isupper()]  # the others are functions
        vars(self).update({name: int(ffi.integer_const(name)) for name in names})

    if TYPE_CHECKING:  # a real one would make every access several times slower

        def __getattr__(self, name: str) -> int: ...


C = _Constants()
_dtypes: dict[str, Any] = {}
_enums: dict[str, type[_enum.IntEnum]] = {}


def enum(name: str) -> type[_enum.IntEnum]:
    """Return C `enum NAME` as an IntEnum whose members keep their C names."""
    if name not in _enums:
        members = ffi.typeof(f"enum {name}").relements
        factory: Any = _enum.IntEnum
        _enums[name] = factory(name, {k: int(v) for k, v in members.items()})
    return _enums[name]


def name_of(enum_name: str, value: int) -> str:
    """Return the C name of `value` in `enum ENUM_NAME`, or `ENUM_NAME(value)` when it has none."""
    try:
        return enum(enum_name)(value).name
    except ValueError:
        return f"{enum_name}({value:#x})"


def new(struct: str, **fields: Any) -> Any:
    """Return a zeroed `struct STRUCT` (a cffi pointer that owns it) with `fields` set."""
    return ffi.new(f"struct {struct} *", fields)


def view(struct: str, buffer: Any, offset: int = 0) -> Any:
    """Return a cffi pointer to `struct STRUCT` at byte `offset` of `buffer`, without a copy.

    Raises ValueError when the structure would leave the buffer. The pointer keeps the buffer alive.
    """
    size = ffi.sizeof(f"struct {struct}")
    data = memoryview(buffer).cast("B")
    if offset < 0 or offset + size > len(data):
        raise ValueError(f"struct {struct} ({size} bytes) at offset {offset} leaves a buffer of {len(data)} bytes")
    return ffi.from_buffer(f"struct {struct} *", data[offset : offset + size])


def pack(struct: Any) -> bytes:
    """Return the bytes of the structure that a cffi pointer points to."""
    return bytes(ffi.buffer(struct))


def sizeof(struct: str) -> int:
    """Return the size of `struct STRUCT` in bytes."""
    return int(ffi.sizeof(f"struct {struct}"))


def offsetof(struct: str, field: str) -> int:
    """Return the byte offset of `field` in `struct STRUCT`."""
    return int(ffi.offsetof(f"struct {struct}", field))


_CODEC_FORMATS = {(1, False): "B", (2, False): "H", (4, False): "I", (8, False): "Q", (4, True): "i", (8, True): "q"}


def codec(struct: str, *members: str) -> _struct.Struct:
    """Return a `struct.Struct` as large as `struct STRUCT` that packs and unpacks `members`, named in the order of their offsets.

    "outer.inner" names an integer of a nested structure; arrays and structures travel as bytes. What is not named is
    skipped, and packed as zeros. Several times faster than a cffi structure where few members are wanted.
    """
    parts, position = ["<"], 0
    for member in members:
        kind, offset = ffi.typeof(f"struct {struct}"), 0
        for name in member.split("."):
            field = dict(kind.fields)[name]
            kind, offset = field.type, offset + field.offset
        if offset < position:
            raise ValueError(f"{member} of struct {struct} is named out of order")
        size = ffi.sizeof(kind)
        code = _CODEC_FORMATS[size, kind.cname.startswith("int")] if kind.kind == "primitive" else f"{size}s"
        parts += [f"{offset - position}x", code]
        position = offset + size
    parts.append(f"{sizeof(struct) - position}x")
    return _struct.Struct("".join(parts))


_NUMPY_KIND = {"float": "f4", "double": "f8", "char": "S1"}


def _numpy_format(ctype: Any) -> str:
    if ctype.cname in _NUMPY_KIND:
        return _NUMPY_KIND[ctype.cname]
    signed = ctype.cname.startswith("int")
    return f"{'i' if signed else 'u'}{ffi.sizeof(ctype)}"


def _fields(ctype: Any, prefix: str, base: int) -> list[tuple[str, str, tuple[int, ...], int]]:
    found: list[tuple[str, str, tuple[int, ...], int]] = []
    for name, field in ctype.fields:
        path, offset, kind = prefix + name, base + field.offset, field.type
        if kind.kind == "array" and kind.item.kind == "struct":
            for i in range(kind.length):
                found += _fields(kind.item, f"{path}_{i}_", offset + i * ffi.sizeof(kind.item))
        elif kind.kind == "array":
            found.append((path, _numpy_format(kind.item), (kind.length,), offset))
        elif kind.kind == "struct":
            found += _fields(kind, f"{path}_", offset)
        else:
            found.append((path, _numpy_format(kind), (), offset))
    return found


def dtype(struct: str, reserved: bool = False) -> np.dtype[Any]:
    """Return a flat NumPy dtype for arrays of `struct STRUCT`.

    Nested members are named `outer_inner`, members of arrays of structures `outer_0_inner`; `reserved*` members
    are left out unless `reserved` (the item size is the structure's either way).
    """
    key = f"{struct}{'+' if reserved else ''}"
    if key not in _dtypes:
        import numpy as np

        ctype = ffi.typeof(f"struct {struct}")
        fields = [f for f in _fields(ctype, "", 0) if reserved or "reserved" not in f[0]]
        _dtypes[key] = np.dtype(
            {
                "names": [f[0] for f in fields],
                "formats": [(f"<{k}", n) if n else f"<{k}" for _, k, n, _ in fields],
                "offsets": [f[3] for f in fields],
                "itemsize": ffi.sizeof(ctype),
            }
        )
    found: np.dtype[Any] = _dtypes[key]
    return found


def ioctl_request(number: int, struct: str | None) -> int:
    """Return the ioctl request word: the number in bits 7:0, the size of its structure in bits 29:16."""
    return number | (sizeof(struct) << 16 if struct else 0)
