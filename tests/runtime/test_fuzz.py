"""Damaged blobs: refused by the loader or by the firmware, or run; afterwards the device still runs a good one."""

from __future__ import annotations

import random

import numpy as np
from npu_abi import C

import libnpu
from libnpu.blob import write

VALUES = np.arange(1024).astype(np.uint8)


def attempt(device, data):
    """Load and run `data`; a lost device begins anew. Returns what happened."""
    try:
        blob = device.load(data)
    except libnpu.NpuError as error:
        assert error.result == C.NPU_ERROR_INVALID_BLOB
        return "refused"
    try:
        values = blob.run({"x": VALUES})["y"]
    except libnpu.NpuError as error:
        if error.result == C.NPU_ERROR_DEVICE_PAGE_FAULT:
            device.reset()
        else:
            blob.unload()
        return error.job_status
    blob.unload()
    return "ran" if values.tolist() == VALUES.tolist() else "ran wrong"


def assert_works(device, good):
    blob = device.load(good)
    assert blob.run({"x": VALUES})["y"].tolist() == VALUES.tolist()
    blob.unload()


def test_a_flipped_bit_of_the_file_is_refused_or_was_padding(device, blob_bytes):
    good, choose = blob_bytes(), random.Random(1)
    outcomes = []
    for _ in range(150):
        data = bytearray(good)
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        outcomes.append(attempt(device, bytes(data)))
    assert set(outcomes) <= {"refused", "ran"}
    assert outcomes.count("refused") > 100
    assert_works(device, good)


def test_flipped_bits_under_a_right_digest_do_no_harm(device, image, blob_bytes):
    good, choose = blob_bytes(), random.Random(2)
    seen = set()
    for _ in range(150):
        made = image(through_scratch=True)
        name = choose.choice(sorted(made.tasks))
        data = bytearray(made.tasks[name].tobytes())
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        made.tasks[name] = np.frombuffer(bytes(data), made.tasks[name].dtype)
        seen.add(attempt(device, write(made)))
    assert_works(device, good)
    assert {"ran", "ran wrong", C.NPU_JOB_PARSING_ERR} <= seen
