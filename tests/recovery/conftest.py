"""A device whose driver can be looked into, a model that copies through CMX, and what the driver holds."""

from __future__ import annotations

import json

import numpy as np
import pytest

import libnpu
from libnpu.blob import write
from tests.runtime.conftest import copy_image

X = np.arange(1024).astype(np.uint8)
WANTED = X.tolist()


class Rig:
    """A device and its kernel. `base`: what the driver held before anybody had made anything on the primary context."""

    def __init__(self, device):
        self.device = device
        self.kernel = device.node.machine.syscall.__self__
        with device.create_context() as context:
            self.run(context)  # the kernel's own tables are there from now on
        self.base = self.held()

    def held(self):
        """Free bytes, contexts, doorbells, and slots of messages to the driver and to the firmware that are taken."""
        kernel = self.kernel
        ipc = kernel.ipc
        taken = [sum(area.memory[at] != 0 for at in range(6, area.count * 192, 192)) for area in (ipc._rx, ipc._tx)]
        return kernel.memory.free_bytes, len(kernel.contexts), len(kernel.doorbells), *taken

    def run(self, device=None):
        """One run of the copy model on a context; its output."""
        return (device or self.device).load(write(copy_image())).run({"x": X})["y"].tolist()

    @property
    def log(self):
        """The kernel's log as one text."""
        return "\n".join(self.kernel.log)


@pytest.fixture
def faults_file(tmp_path):
    """Returns a function that writes a file of faults: its path."""

    def make(*faults):
        path = tmp_path / "faults.json"
        path.write_text(json.dumps(faults))
        return str(path)

    return make


@pytest.fixture
def rig():
    """A device of profile npu-37xx."""
    with libnpu.open("npu-37xx") as device:
        yield Rig(device)
