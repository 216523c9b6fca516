"""What is right and costs time: reported to who asks for it."""

import numpy as np
import pytest


def waits_twice(device, fixed=False):
    stream, memory = device.create_stream(), device.alloc(4096)
    for _ in range(3):
        stream.fill(memory, 1)
        stream.synchronize()
        if not fixed:
            stream.synchronize()


def waits_behind_every_launch(device, fixed=False):
    stream, x, y = device.create_stream(), device.to_device(np.ones(1024, np.float32)), device.alloc(4096)
    relu = device.kernel("relu")
    for _ in range(10):
        relu.launch(stream, x, y, 1024)
        if not fixed:
            stream.synchronize()
    stream.synchronize()
    y.read()


def copies_pageable_memory(device, fixed=False):
    stream, memory, array = device.create_stream(), device.alloc(4096), np.ones(4096, np.uint8)
    pinned = device.alloc_host(4096)
    pinned.array[:] = array
    source = pinned if fixed else array
    for _ in range(8):
        stream.copy(memory, source)
    stream.synchronize()


def kernel_on_the_hosts_memory(device, fixed=False):
    stream, x, pinned = device.create_stream(), device.to_device(np.ones(1024, np.float32)), device.alloc_host(4096)
    relu, y = device.kernel("relu"), device.alloc(4096) if fixed else pinned
    for _ in range(8):
        relu.launch(stream, x, y, 1024)
        stream.synchronize()
        y.read()


def waits_behind_every_copy_to_the_device(device, fixed=False):
    stream, memory, staging = device.create_stream(), device.alloc(4096), device.alloc_host(4096)
    relu, y = device.kernel("relu"), device.alloc(4096)
    staging.array[:] = 0
    for _ in range(9):
        stream.copy(memory, staging)
        if not fixed:
            stream.synchronize()
        relu.launch(stream, memory, y, 1024)
    stream.synchronize()
    y.read()


@pytest.mark.parametrize(
    ("program", "rule", "lines"),
    [
        (waits_twice, "REDUNDANT-SYNC", [6]),
        (waits_behind_every_launch, "SYNC-EACH-LAUNCH", [4, 6]),
        (copies_pageable_memory, "PAGEABLE-COPY", [6]),
        (kernel_on_the_hosts_memory, "RESPONSIBILITY", [4, 5]),
        (waits_behind_every_copy_to_the_device, "RESPONSIBILITY", [5, 7]),
    ],
)
def test_the_wasteful_program_is_reported_at_its_lines_and_the_other_one_is_not(found, program, rule, lines):
    assert (rule, lines) in found(program, lint=True)
    assert found(program, True, lint=True) == []
    assert found(program) == []


def test_programs_that_are_not_wasteful(found):
    """Waits that are of use at times, results that are read, query loops, waits of the whole device, a kernel on the host's memory once."""

    def program(device):
        stream, other = device.create_stream(), device.create_stream()
        x, y, pinned = device.to_device(np.ones(1024, np.float32)), device.alloc(4096), device.alloc_host(4096)
        relu = device.kernel("relu")
        relu.launch(stream, x, pinned, 1024)
        stream.synchronize()
        for _ in range(12):
            relu.launch(stream, x, y, 1024)
            stream.synchronize()
            y.read()
        for number in range(12):
            if number % 4 == 0:
                relu.launch(other, x, y, 1024)
            device.synchronize()
        for _ in range(12):
            stream.copy(pinned, y)
            while not stream.query():
                device.host_delay(1000)
            pinned.array.sum()
        for number in range(12):  # the source is used again: seen in the array, or by the bytes of the next copy
            if number % 2:
                pinned.array[:] = number
            else:
                pinned.view[:] = bytes([number]) * 4096
            stream.copy(y, pinned)
            stream.synchronize()
        device.to_device(bytes(64)).read()  # calls that do more than wait
        device.primary.fill(y, 1)
        device.copy(y, bytes(4096))

    assert found(program, lint=True) == []
