"""A launcher per profile, for all tests of a module."""

import numpy as np
import pytest

from tests.kernels.launcher import Launcher


@pytest.fixture(scope="module")
def npu():
    return Launcher("npu-37xx")


@pytest.fixture(scope="module")
def small():
    """The teaching device: a block has 32 KiB of CMX."""
    return Launcher("unit")


@pytest.fixture
def rng():
    return np.random.default_rng(7)
