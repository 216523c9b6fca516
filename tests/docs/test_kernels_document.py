"""The program in docs/kernels.md runs, and what it says of kernels that work in place is true."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import libnpu

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"


def test_a_library_of_ones_own_is_written_loaded_and_launched(tmp_path):
    [program] = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), flags=re.M | re.S)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.stderr == ""
    assert run.stdout == "[100 101 102 103 104 105 106 107]\n[200 201 202 203 104 105 106 107]\n"


@pytest.mark.parametrize("grid", [1, 4])
def test_the_output_may_be_the_input(grid):
    with libnpu.open() as device:

        def launched(name, values, *sizes, more=()):
            memory = device.to_device(np.asarray(values, np.float32))
            device.kernel(name).launch(None, memory, *more, memory, *sizes, grid=grid).wait()
            return memory.read(np.float32)

        x = np.arange(40000, dtype=np.float32) - 20000
        other = device.to_device(x)
        assert np.array_equal(launched("relu", x, 40000), np.maximum(x, 0))
        assert np.array_equal(launched("copy", x, 40000), x)
        assert np.array_equal(launched("add", x, 40000, more=[other]), 2 * x)
        assert np.array_equal(launched("mul", x, 40000, more=[other]), x * x)
        assert np.array_equal(launched("scale_add", x, 3.0, 40000), 4 * x)
        assert launched("softmax", np.zeros((2, 20000)), 2, 20000).tolist() == [np.float32(1 / 20000)] * 40000
        plus_minus = np.tile(np.float32([1, -1]), 20000)  # mean 0, variance 1
        assert np.abs(launched("layernorm", plus_minus, 2, 20000, 0.0, more=[None, None]) - plus_minus).max() < 1e-6
