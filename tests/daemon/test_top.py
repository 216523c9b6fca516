"""npu top on npud's device: since its boot, and live."""

import json
import os
import subprocess
import sys

import pytest
from npu_model.profile import load_profile

PROGRAM = """
import sys
import numpy as np
import libnpu
with libnpu.open(fidelity=sys.argv[1]) as device:
    stream, relu = device.create_stream(), device.kernel("relu")
    x, y = device.to_device(np.zeros(1024, np.float32)), device.alloc(4096)
    relu.launch(stream, x, y, 1024)
    stream.synchronize()
    print(device.counters()["SHAVE_BUSY"], device.counters()["CYCLES"], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("fidelity", ["fast", "full"])
def test_r103_the_device_of_npud_whatever_it_is(start, fidelity):
    daemon = start("--fidelity", fidelity)
    environment = {**os.environ, "NPU_DEVICE": daemon.where}

    def top(*arguments):
        command = [sys.executable, "-c", "import sys; from libnpu.tools.cli import main; sys.exit(main())", "top"]
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, fidelity],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    busy, cycles = map(int, program.stdout.readline().split())
    found = json.loads(top("--once", "--json"))
    shaves = load_profile("unit").shaves_per_tile  # of the one tile
    assert found["title"] == f"{daemon.where}: unit"
    assert found["utilisation"]["SHAVE"] == pytest.approx(busy / cycles / shaves, rel=0.05)
    assert (found["credits"] is None) == (found["misses"]["rows"] is None) == (fidelity == "fast")
    assert found["gb_per_s"]["npu"] > 0
    assert [context["pid"] for context in found["contexts"]] == [program.pid]
    live = top("-n", "2", "-d", "0")
    assert live.count(f"{daemon.where}: unit") == 2
    assert f"(pid {program.pid})" in live
    program.communicate("")
