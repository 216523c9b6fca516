"""Hardware profiles: what is shipped is valid, and a file of the user's is checked number by number."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from npu_abi import C
from npu_model.profile import FOLDER, Profile, ProfileError, load_profile, names
from npu_model.profile_ranges import RANGES

import libnpu

TABLES = (
    "dpu.macs_per_cycle",
    "dpu.act_read_bytes_per_cycle",
    "dpu.wt_read_bytes_per_cycle",
    "dpu.dw_macs_per_cycle",
    "shave.lanes",
    "energy.mac_fj",
    "shave.special_cycles",
)
TEXT = (FOLDER / "npu-37xx.json").read_text(encoding="utf-8")


def numbers(value, path=()):
    """Every dotted name of a number in decoded JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int | float):
        yield ".".join(path)


@pytest.fixture
def write_profile(tmp_path):
    """Writes profile npu-37xx with one field changed, and returns the file's path."""

    def write_changed(name, value):
        data = json.loads(TEXT)
        *groups, field = name.split(".")
        inner = data
        for group in groups:
            inner = inner[group]
        inner[field] = value
        path = tmp_path / "mine.json"
        path.write_text(json.dumps(data))
        return str(path)

    return write_changed


def test_the_shipped_profiles_are_loaded_by_name_and_alias():
    assert names() == ["aie-like", "npu-37xx", "npu-40xx", "unit"]
    for name in names():
        assert load_profile(name).name == name
    assert load_profile("teaching") is load_profile("unit")


def test_every_number_of_a_profile_has_limits():
    profile = msgspec.to_builtins(load_profile("npu-37xx"))
    assert {name for name in numbers(profile) if not name.startswith(TABLES)} | set(TABLES) == set(RANGES)


@pytest.mark.parametrize("name", sorted(numbers(json.loads(TEXT))))
@pytest.mark.parametrize("value", [-1, 10**30, 1e308, 2**63])
def test_a_number_out_of_range_is_refused_by_the_name_of_its_field(write_profile, name, value):
    field = next((table for table in TABLES if name.startswith(table)), name)
    with pytest.raises(ProfileError, match=field.replace(".", r"\.")):
        load_profile(write_profile(name, value))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tiles", 0, "mine.json: tiles is 0; 1 to 8 are allowed"),
        ("tiles", 9, "mine.json: tiles is 9; 1 to 8 are allowed"),
        ("dma_ports", 1_000_000_000, "mine.json: dma_ports is 1000000000; 1 to 2 are allowed"),
        ("shave.lanes.f16", 0, "mine.json: shave.lanes.f16 is 0; 1 to 1073741824 are allowed"),
        ("shave.lanes", {"f32": 4}, "mine.json: shave.lanes has ['f32']; it must have ['f16', 'f32', 'i32']"),
        ("ddr.latency_ns", 1e10, "mine.json: ddr.latency_ns is 10000000000.0; 0 to 1000000000 are allowed"),
        ("shave.icache_line_bytes", 48, "mine.json: shave.icache_line_bytes is 48; it must be a power of two"),
        ("name", "", "mine.json: name has 0 bytes; 1 to 63 are allowed"),
    ],
)
def test_the_message_has_field_value_and_limits(write_profile, name, value, message):
    with pytest.raises(ProfileError) as caught:
        load_profile(write_profile(name, value))
    assert str(caught.value) == message


def test_a_file_is_read_again_when_it_has_changed(write_profile):
    assert load_profile(write_profile("tiles", 1)).tiles == 1
    assert load_profile(write_profile("tiles", 2)).tiles == 2


def test_what_is_not_a_file_is_refused_and_never_waited_for(tmp_path):
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("folder.json", "pipe.json"):
        with pytest.raises(libnpu.NpuError, match="not a regular file") as caught:
            libnpu.open(str(tmp_path / name))
        assert caught.value.result == C.NPU_ERROR_INVALID_VALUE
    for name in ("absent.json", "nul\0.json"):
        with pytest.raises(ProfileError):
            load_profile(str(tmp_path / name))


def test_both_ends_of_a_range_are_allowed(write_profile):
    for name, (low, high) in RANGES.items():
        if name not in TABLES:
            for value in (low, high):
                assert isinstance(load_profile(write_profile(name, value)), Profile)
