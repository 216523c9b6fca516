"""What npu.h declares, read from its text: its functions, and its results with their sentences.

The library is generated from this, so that no name, type or text of the header is written a second time.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from npu_abi import INCLUDE_DIR


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function."""

    ctype: str  # as in the header, "const void *"
    name: str

    @property
    def is_pointer(self) -> bool:
        """Whether it is an address or a handle: Python gets it as an integer."""
        return "*" in self.ctype or self.ctype in pointer_types()


@dataclass(frozen=True, slots=True)
class Function:
    """One function of npu.h."""

    result: str
    name: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One enumerator of enum npu_result."""

    name: str
    text: str


def header_text() -> str:
    """Return the text of npu.h."""
    return (INCLUDE_DIR / "npu.h").read_text(encoding="utf-8")


@functools.cache
def pointer_types() -> frozenset[str]:
    """Return the typedefs of npu.h that are pointers: handles, to structures that nobody defines, and functions."""
    text = header_text()
    handles = re.findall(r"^typedef struct \w+ \*(\w+);", text, flags=re.M)
    return frozenset(handles + re.findall(r"^typedef void \(\*(\w+)\)", text, flags=re.M))


@functools.cache
def enum_types() -> frozenset[str]:
    """Return the typedefs of npu.h that are enumerations."""
    text = re.sub(r"/\*.*?\*/", " ", header_text(), flags=re.S)
    return frozenset(re.findall(r"typedef enum \w+ \{[^}]*\} (\w+);", text))


def functions(text: str) -> list[Function]:
    """Return the functions that header `text` marks NPU_API, in its order."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    found = []
    for result, name, parameters in re.findall(r"^NPU_API\s+([\w ]+?[\s*]+)(\w+)\(([^)]*)\);", text, flags=re.M):
        items = [_parameter(item) for item in parameters.split(",") if item.strip() != "void"]
        found.append(Function(result.strip(), name, tuple(items)))
    return found


def _parameter(declaration: str) -> Parameter:
    match = re.fullmatch(r"\s*(.*?[\s*])(\w+)\s*", declaration)
    assert match, f"npu.h: cannot read the parameter {declaration!r}"
    return Parameter(match[1].strip(), match[2])


def python_declaration(function: Function) -> str:
    """Return how the C wrapper of `function` calls Python: pointers and handles are integers."""
    parameters = ", ".join(f"{'uintptr_t' if p.is_pointer else plain(p.ctype)} {p.name}" for p in function.parameters)
    return f"npu_result_t py_{function.name}({parameters or 'void'})"


def plain(ctype: str) -> str:
    """Return the type under a typedef of npu.h that is an enum."""
    return "int32_t" if ctype in enum_types() else ctype


def results(text: str) -> list[Result]:
    """Return the enumerators of enum npu_result with the comments behind them, in the order of header `text`."""
    body = re.search(r"typedef enum npu_result \{(.*?)\} npu_result_t;", text, flags=re.S)
    assert body, "npu.h: no enum npu_result"
    return [Result(*pair) for pair in re.findall(r"(NPU_\w+) = -?\d+,?\s*/\* (.*?) \*/", body[1])]
