"""Hostile files: whatever the bytes, `read` returns an image or raises BlobError, at once and in little memory.

`NPU_FUZZ_FLIPS=5000` runs more byte flips.
"""

import contextlib
import os
import random
import tracemalloc

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libnpu.blob import BlobError, assemble, disassemble, read, verify, write

FLIPS = int(os.environ.get("NPU_FUZZ_FLIPS", "400"))


def survives(data):
    """Return whether `data` was read; the image must then be printable, verifiable and writable."""
    try:
        image = read(data)
    except BlobError:
        return False
    verify(image)
    assert read(write(image)) == image
    assert assemble(disassemble(image)) == image
    return True


def test_byte_flips_half_of_them_with_a_valid_digest(image, seal):
    data = write(image)
    rng = random.Random(1)
    read_count = 0
    for number in range(FLIPS):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        damaged = bytes(damaged)
        if number % 2:
            with contextlib.suppress(Exception):
                damaged = seal(damaged)  # section headers so wrong that there is no digest to compute
        read_count += survives(damaged)
    assert read_count > FLIPS // 20  # the parser behind the digest was reached


def test_every_truncation(image):
    data = write(image)
    for size in range(0, len(data), 37):
        assert not survives(data[:size])


@given(st.binary(max_size=300))
def test_any_bytes(data):
    assert not survives(data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_any_section_replaced_by_any_bytes(image, seal, data):
    raw = bytearray(write(image))
    at = data.draw(st.integers(0, len(raw) - 1))
    piece = data.draw(st.binary(min_size=1, max_size=64))
    raw[at : at + len(piece)] = piece[: len(raw) - at]
    try:
        damaged = seal(bytes(raw))
    except Exception:  # no digest to compute: read gets the plain bytes
        damaged = bytes(raw)
    survives(damaged)


def test_sizes_that_are_only_claimed_allocate_nothing(image, seal):
    image.scratch_bytes = 1 << 37
    data = write(image)
    tracemalloc.start()
    assert read(data).scratch_bytes == 1 << 37
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
