"""Modules, their kernels, and launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.coverage.expect import blob, expect, open_device, take_all

INPUT = np.arange(16, dtype=np.float32).reshape(1, 16) - 0.5


def loading() -> None:
    device = open_device()
    module = device.load(blob("copy"))
    assert (module.run({"x": INPUT})["y"] == INPUT).all()
    module.unload()
    module.unload()  # twice is allowed
    with expect("FILE"):
        device.load(blob("no such"))
    with expect("INVALID_BLOB"):
        device.load(blob("damaged"))
    data = Path(blob("copy")).read_bytes()
    device.load(data).unload()
    with expect("INVALID_BLOB"):
        device.load(data[:-1])
    memory = take_all(device)
    with expect("OUT_OF_DEVICE_MEMORY"):
        device.load(data)
    with expect("OUT_OF_DEVICE_MEMORY"):
        device.load(blob("copy"))
    del memory
    device.close()


def kernels() -> None:
    device = open_device()
    library = device.load(blob("library"))
    kernel = library["add"]
    assert [param.name for param in kernel.params] == ["x", "y", "blocks", "number", "offset"]
    assert kernel.code_bytes == 256
    with expect("INVALID_VALUE"):
        library["subtract"]
    assert device.kernel("relu").name == "relu"
    with expect("INVALID_VALUE"):
        device.kernel("gelu")
    library.unload()
    with expect("STALE_HANDLE"):
        library["add"]
    device.close()


def launches() -> None:
    device = open_device()
    library = device.load(blob("library"))
    add, spin = library["add"], library["spin"]
    x, y, blocks, freed = (device.alloc(64) for _ in range(4))
    freed.free()
    there = device.create_context()
    elsewhere = there.alloc(64)
    x.write(INPUT)
    stream = device.create_stream()
    job = add.launch(stream, x, y, blocks, -3, 0.25, grid=5)
    job.wait()
    assert (y.read(np.float32, (1, 16)) == INPUT - 2.75).all()
    relu, parts = device.kernel("relu"), device.load(blob("parts"))["parts"]
    for blocks_of in ({}, {"grid": 1}):
        for result, kernel, where, arguments in (
            ("ARG_COUNT", add, stream, (x, y, blocks, -3)),
            ("ARG_KIND", add, stream, (x, y, 7, -3, 0.25)),
            ("ARG_KIND", add, stream, (x, y, blocks, 0.5, 0.25)),
            ("INVALID_VALUE", add, stream, (x, y, blocks, 1 << 63, 0.25)),
            ("MISALIGNED", add, stream, (x.at(2), y, blocks, -3, 0.25)),
            ("STALE_HANDLE", add, stream, (freed, y, blocks, -3, 0.25)),
            ("WRONG_CONTEXT", add, stream, (elsewhere, y, blocks, -3, 0.25)),
            ("WRONG_CONTEXT", spin, there.create_stream(), ()),
            ("ARG_SIZE", relu, stream, (x, y, 17)),
            ("INVALID_VALUE", relu, stream, (x, y, 0)),
            ("NOT_SUPPORTED", parts, stream, (x, y)),
        ):
            with expect(result):
                kernel.launch(where, *arguments, **blocks_of)
    with expect("INVALID_VALUE"):
        add.launch(stream, x, y, blocks, -3, 0.25, grid=9)
    spin.launch(stream)
    with expect("IN_USE"):
        library.unload()
    device.synchronize()
    stream.close()
    with expect("STALE_HANDLE"):
        spin.launch(stream)
    device.close()


def completion() -> None:
    device = open_device()
    device.load(blob("library"))["spin"].launch(None)
    with expect("TIMEOUT"):
        device.primary.synchronize(1)
    device.primary.synchronize()
    device.primary.synchronize(1)
    device.close()


loading()
kernels()
launches()
completion()
