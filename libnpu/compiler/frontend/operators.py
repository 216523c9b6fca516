"""What becomes of each operator of ONNX: a list for people, from the tables that the import uses."""

from __future__ import annotations

from typing import NamedTuple

import onnx

from libnpu.compiler.frontend.constants import RANDOM
from libnpu.compiler.frontend.handlers import HANDLERS, beyond_standard
from libnpu.compiler.frontend.source import STANDARD_DOMAINS

FOLDED = ("Constant", "Shape", "Size")  # known when the model is compiled, as every shape is
UNROLLED = ("If", "Loop", "Scan")


WAYS = {
    "handler": "NPU",
    "body": "NPU, as the operators that it is made of",
    "unrolled": "NPU, step by step, or both branches",
    "folded": "known when the model is compiled",
    "host": "host, between blobs",
    "refused": "refused: every run must give the same",
}


class Operator(NamedTuple):
    """`way` is of WAYS. What of an operator's attributes and types the NPU cannot do, runs on the host too."""

    domain: str
    name: str
    way: str


def operators() -> list[Operator]:
    """Return all operators of the newest standard set, and those of other domains that are known, in order of name."""
    newest = {schema.name: schema for schema in onnx.defs.get_all_schemas() if schema.domain in STANDARD_DOMAINS}
    found = [Operator("", name, _way(name, schema)) for name, schema in newest.items()]
    found += [Operator(domain, name, "handler") for domain, name in beyond_standard() if domain or name not in newest]
    return sorted(found)


def _way(name: str, schema: onnx.defs.OpSchema) -> str:
    if name in HANDLERS:
        return "handler"
    if name in FOLDED:
        return "folded"
    if name in UNROLLED:
        return "unrolled"
    if name in RANDOM:
        return "refused"
    if schema.has_function or schema.has_context_dependent_function:
        return "body"
    return "host"
