"""A device whose firmware's memory is damaged."""

import numpy as np

import libnpu


def test_a_recovery_boots_cold_where_a_warm_boot_finds_a_damaged_image():
    with libnpu.open("unit") as device:
        context = device.create_context()
        kernel, x, y = context.kernel("add"), context.to_device(np.ones(64, np.float32)), context.alloc(256)
        device.inject("boot_start", "image_bitflip", seed=100)
        device.recover()
        kernel.launch(None, x, x, y, 64).wait()
        assert y.read(np.float32).tolist() == [2.0] * 64
