"""Fidelity of the memory path, as programs choose it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from npu_abi import C
from npu_model import native

import libnpu


def test_values_do_not_depend_on_it_and_times_do():
    seen = {}
    for fidelity in ("fast", "full"):
        with libnpu.open("npu-37xx+edge-soc", fidelity=fidelity, where="") as device, device.create_stream() as stream:
            data = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
            source, target = device.to_device(data), device.alloc(data.nbytes)
            device.kernel("relu").launch(stream, source, target, data.size, grid=4)
            stream.synchronize()
            result = np.frombuffer(target.read(), np.float32)
            assert np.array_equal(result, np.maximum(data, 0))
            seen[fidelity] = device.now_ps
    assert seen["full"] != seen["fast"]
    assert seen["full"] == pytest.approx(seen["fast"], rel=0.15)


def test_an_unknown_one_is_named():
    with pytest.raises(libnpu.NpuError, match="fidelity 'best'; there are 'fast' and 'full'") as caught:
        libnpu.open("unit", fidelity="best")
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE


def test_without_the_c_helpers_full_is_unsupported_by_name(monkeypatch):
    native.load.cache_clear()
    monkeypatch.setenv("LIBNPU_NATIVE", "0")
    try:
        with pytest.raises(libnpu.Unsupported, match="memory fidelity 'full' needs the C helpers"):
            libnpu.open("unit", fidelity="full", where="")
    finally:
        native.load.cache_clear()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("npu-37xx+nowhere", "no memory system named 'nowhere'"),
        ("npu-99+edge-soc", "no hardware profile named 'npu-99'"),
        ("npu-37xx+absent.json", "no such file of a memory system: absent.json"),
    ],
)
def test_a_part_of_a_combined_profile_that_does_not_exist_is_named(name, message):
    with pytest.raises(libnpu.NpuError, match=message) as caught:
        libnpu.open(name, where="")
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE


def test_a_profile_of_the_users_names_a_memory_system_beside_it(tmp_path, npu):
    status, memory, _ = npu("info", "--memory", "edge-soc", "--json")
    assert status == 0
    changed = json.loads(memory) | {"name": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(changed))
    profile = json.loads(npu("info", "--profile", "npu-37xx", "--json")[1])
    (tmp_path / "device.json").write_text(json.dumps(profile | {"memory": "mine.json"}))
    with libnpu.open(str(tmp_path / "device.json"), fidelity="full", compute=False, where="") as device:
        assert device.info().profile == "npu-37xx"
    (tmp_path / "mine.json").write_text(json.dumps(changed | {"dram": changed["dram"] | {"channels": 0}}))
    with pytest.raises(libnpu.NpuError, match=r"dram.channels is 0; 1 to 16 are allowed"):
        libnpu.open(str(tmp_path / "device.json"), where="")
