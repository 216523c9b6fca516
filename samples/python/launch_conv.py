"""A convolution by name, and the five steps of its launch.

    python samples/python/launch_conv.py

1. The host packs the parameters. 2. It submits them through the driver. 3. The device's scheduler picks the unit with the
least to do. 4. The unit loads the kernel's instructions into its instruction cache. 5. It executes them. For a small tensor
the load takes nearly as long as the execution, unless the instructions are in the unit's cache already; for a large one,
which is split into blocks for all units, it hardly counts.
"""

from __future__ import annotations

import numpy as np

import libnpu


def convolution(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """3x3, stride 1, padding 1, by its definition. x [C, H, W], weights [K, C, 3, 3], both as float64."""
    _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = [padded[:, dy : dy + height, dx : dx + width] for dy in range(3) for dx in range(3)]
    found: np.ndarray = np.einsum("kct,tchw->khw", weights.reshape(*weights.shape[:2], 9), np.stack(windows))
    return found


class Convolution:
    """Memory for the largest tensor, and the launch. Memory that is freed between launches would empty the caches."""

    def __init__(self, device: libnpu.Device) -> None:
        self.kernel = device.kernel("conv2d")
        self.x, self.weights, self.y = (device.alloc(4 * 16 * 64 * 64) for _ in range(3))

    def run(self, title: str, channels: int, side: int) -> libnpu.Job:
        """Convolve `channels` x `side` x `side`, check the result, print the steps and return the job."""
        rng = np.random.default_rng(1)
        x = rng.standard_normal((channels, side, side)).astype(np.float32)
        weights = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)
        self.x.write(x)
        self.weights.write(weights)
        # n c h w k, window, stride, padding, groups, relu
        sizes = (1, channels, side, side, channels, *(3, 3), *(1, 1), *(1, 1), 1, 0)
        job = self.kernel.launch(None, self.x, self.weights, None, self.y, *sizes)
        job.wait()
        steps, loaded = job.steps, sum(block.loaded_bytes for block in job.blocks)
        times = (steps.pack_ps, steps.submit_ps, steps.pick_ps, steps.load_ps, steps.execute_ps)
        print(f"{title:20} | {' '.join(f'{ps / 1e6:9.3f}' for ps in times)} | {len(job.blocks):6} {loaded:9}")
        expected = convolution(x.astype(float), weights.astype(float))
        if not np.allclose(self.y.read(np.float32, x.shape), expected, atol=1e-4):
            raise SystemExit("this is not so: the device computes the convolution")
        return job


def main() -> None:
    with libnpu.open() as device:
        conv2d = Convolution(device)
        print(f"conv2d has {conv2d.kernel.code_bytes} bytes of code; times in us")
        device.primary.profiler.start()
        names = ("1 pack", "2 submit", "3 pick", "4 load", "5 execute")
        print(f"{'':20} | {' '.join(f'{name:>9}' for name in names)} | blocks    loaded")
        first = conv2d.run("1 channel, 4x4", 1, 4)
        again = conv2d.run("the same again", 1, 4)
        large = conv2d.run("16 channels, 64x64", 16, 64)
        device.primary.profiler.stop()
        print(f"\n{libnpu.timeline(device.primary)}", end="")
    if not first.steps.load_ps > first.steps.execute_ps / 2:
        raise SystemExit("this is not so: of a small tensor the load is a large part")
    if again.steps.load_ps:
        raise SystemExit("this is not so: the second launch finds all instructions in the cache")
    if not large.steps.execute_ps > 10 * large.steps.load_ps:
        raise SystemExit("this is not so: of a large tensor the execution is nearly all")
    if len({block.unit for block in large.blocks}) != 4:
        raise SystemExit("this is not so: the four blocks of a large tensor go to four units")


if __name__ == "__main__":
    main()
