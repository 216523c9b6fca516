"""The examples in the documentation of the library work."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

import libnpu

RUNTIME = (
    "device", "context", "stream", "event", "buffer", "memory", "module", "kernel", "graph", "command_list", "profiler",
)  # fmt: skip


@pytest.mark.parametrize("name", [f"libnpu.runtime.{name}" for name in RUNTIME] + ["libnpu.blob.kernels"])
def test_examples_in_the_documentation(name):
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    module = importlib.import_module(name)
    with libnpu.open() as device:
        results = doctest.testmod(module, extraglobs={"device": device, "np": np}, optionflags=flags)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_public_classes_have_examples():
    missing = [
        name
        for name in (
            "Device",
            "Context",
            "Stream",
            "Event",
            "Notify",
            "Buffer",
            "Module",
            "Kernel",
            "Graph",
            "CommandList",
        )
        if ">>>" not in (getattr(libnpu, name).__doc__ or "")
    ]
    assert missing == []
