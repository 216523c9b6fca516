"""The whole ABI as text: every structure with its offsets, every enum, every constant, every function.

`python -m npu_abi._dump > tests/abi/abi.txt` after changing a header. A test compares the two, so that a review sees each change.
"""

from __future__ import annotations

from typing import Any

from npu_abi._abi import ffi


def structs() -> list[str]:
    """Return the names of all defined structures, sorted."""
    return [name for name in ffi.list_types()[1] if not name.endswith("_s")]  # npu_*_s: handles, which nobody defines


def _typedefs() -> list[str]:
    return [name for name in ffi.list_types()[0] if name.startswith("npu_")]


def _globals() -> tuple[dict[str, int], list[str]]:
    constants: dict[str, int] = {}
    functions: list[str] = []
    for name in sorted(dir(ffi.dlopen(None))):
        try:
            constants[name] = int(ffi.integer_const(name))
        except ffi.error:
            functions.append(name)
    return constants, functions


def constants() -> dict[str, int]:
    """Return every enumerator and literal `#define`, by name."""
    return _globals()[0]


def functions() -> list[str]:
    """Return the names of the functions of npu.h, sorted."""
    return _globals()[1]


def fields(struct: str) -> list[tuple[str, int, int, str]]:
    """Return name, offset, size in bytes and type of the fields of `struct STRUCT`."""
    found: list[tuple[str, Any]] = ffi.typeof(f"struct {struct}").fields
    return [(name, field.offset, ffi.sizeof(field.type), field.type.cname) for name, field in found]


def text() -> str:
    """Return the dump."""
    lines = []
    for struct in structs():
        lines.append(f"struct {struct}  {ffi.sizeof(f'struct {struct}')} bytes")
        lines += [f"  {offset:5} {size:5}  {name}: {kind}" for name, offset, size, kind in fields(struct)]
    lines += [f"type {name} = {ffi.typeof(name).cname}" for name in _typedefs()]
    lines += [f"{name} = {value:#x}" if value >= 0 else f"{name} = {value}" for name, value in constants().items()]
    lines += [f"function {name}" for name in functions()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(text(), end="")
