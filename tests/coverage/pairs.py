"""What npu.h promises: for each function the result codes that its comment names.

The comment in front of a function is the source. In it
  - a result's name without NPU_ or NPU_ERROR_ (`IN_USE`) says that the function returns it;
  - `results as npu_x` takes over what npu_x returns; `never IN_USE`, `never the device's errors` behind it leave out;
  - `the device's errors` are those of enum npu_result under "the device's", without what "nothing returns yet".
SUCCESS goes without saying. A function that follows another one without a comment of its own shares the other's.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from libnpu.capi.header import header_text

_RESULT = re.compile(r"^    NPU_(?:ERROR_)?(\w+) = -?\d+,?\s*/\* (.*?) \*/", re.M)
_FUNCTION = re.compile(r"^NPU_API\s+([\w ]+?[\s*]+)(\w+)\(", re.M)
INJECTED = ("WATCHDOG_TIMEOUT",)  # only an injected fault gives it: tests/recovery sees it


@dataclass(frozen=True, slots=True)
class Documented:
    """A function of npu.h and the names of the results that it may return, SUCCESS first."""

    name: str
    results: tuple[str, ...]


@functools.cache
def result_names() -> dict[str, str]:
    """Return the short names of enum npu_result, each with the full one."""
    body = header_text().partition("typedef enum npu_result {")[2].partition("} npu_result_t;")[0]
    return {match[1]: re.search(rf"NPU_(?:ERROR_)?{match[1]}\b", match[0])[0] for match in _RESULT.finditer(body)}


@functools.cache
def device_errors() -> tuple[str, ...]:
    """Return the errors of the device that something returns."""
    body = header_text().partition("typedef enum npu_result {")[2].partition("} npu_result_t;")[0]
    of_device = body.partition("/* the device's:")[2]
    found = (m[1] for m in _RESULT.finditer(of_device) if "nothing returns it yet" not in m[2])
    return tuple(result for result in found if result not in INJECTED)


@functools.cache
def only_in_python() -> frozenset[str]:
    """Return the results that no program in C can get."""
    return frozenset(m[1] for m in _RESULT.finditer(header_text()) if "in Python" in m[2])


@functools.cache
def documented() -> dict[str, Documented]:
    """Return every function of npu.h that has a result, by name, in the header's order."""
    comments = {name: comment for kind, name, comment in _comments(header_text()) if kind == "npu_result_t"}
    return {name: Documented(name, _results(name, comments)) for name in comments}


def _comments(text: str) -> list[tuple[str, str, str]]:
    """Return (type, function, its comment) for every function."""
    found, comment = [], ""
    for piece in re.finditer(r"^/\*(.*?)\*/|^NPU_API[^;]*;", text, re.M | re.S):
        if piece[1] is not None:
            comment = re.sub(r"\s+", " ", re.sub(r"^ \*", "", piece[1], flags=re.M))
        elif function := _FUNCTION.match(piece[0]):
            found.append((function[1].strip(), function[2], comment))
    return found


def _results(name: str, comments: dict[str, str], above: tuple[str, ...] = ()) -> tuple[str, ...]:
    assert name not in above, f"{name}: its results are those of itself, by way of {above}"
    comment = comments[name]
    found = dict.fromkeys(["SUCCESS"])
    left_out = set(re.findall(r"never ([A-Z_]+)", comment))
    if "never the device's errors" in comment:
        left_out |= set(device_errors())
    for other in re.findall(r"[Rr]esults as (npu_\w+)", comment):
        found |= dict.fromkeys(r for r in _results(other, comments, (*above, name)) if r not in left_out)
    named = re.sub(r"never ([A-Z_]+|the device's errors)|enum \w+", "", comment)
    found |= dict.fromkeys(word for word in re.findall(r"\b[A-Z][A-Z_]+\b", named) if word in result_names())
    if "the device's errors" in named:
        found |= dict.fromkeys(r for r in device_errors() if r not in left_out)
    return tuple(found)
