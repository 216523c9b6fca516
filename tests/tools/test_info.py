"""npu info: what is exported loads again as it was, what the pins of memory carry, and options that exclude each other."""

import json

import pytest
from npu_model.memory import load_memory, memory_names
from npu_model.profile import load_profile, names


@pytest.mark.parametrize("name", [*names(), *(f"{device}+{memory}" for device in names() for memory in memory_names())])
def test_a_profile_that_is_exported_loads_as_it_was(npu, tmp_path, name):
    status, out, err = npu("info", "--profile", name, "--json")
    assert (status, err) == (0, "")
    path = tmp_path / "exported.json"
    path.write_text(out, encoding="utf-8")
    assert load_profile(str(path)) == load_profile(name)
    assert npu("info", "--profile", path) == npu("info", "--profile", name)


@pytest.mark.parametrize("name", memory_names())
def test_a_memory_system_that_is_exported_loads_as_it_was(npu, tmp_path, name):
    path = tmp_path / "exported.json"
    path.write_text(npu("info", "--memory", name, "--json")[1], encoding="utf-8")
    assert load_memory(str(path)) == load_memory(name)


def test_the_table_of_a_profile_has_what_follows_from_it_too(npu):
    _, out, _ = npu("info", "--profile", "npu-37xx")
    assert "n_units 4 tiles times shaves_per_tile" in " ".join(out.split())


@pytest.mark.parametrize("chosen", [["--memory", "edge-soc"], ["--profile", "npu-37xx+edge-soc"]])
def test_r013_60_gigabytes_a_second_come_from_7500_megatransfers_and_64_bits(npu, chosen):
    status, out, err = npu("info", "--ddr", *chosen, "--json")
    assert (status, err) == (0, "")
    (found,) = json.loads(out)["memory"]
    assert (found["transfers_per_second"], found["width_bits"]) == (7_500_000_000, 64)
    assert found["pin_bytes_per_second"] == 7_500_000_000 * 64 // 8 == 60 * 10**9
    words = " ".join(npu("info", "--ddr", *chosen)[1].split())
    assert "edge-soc 7500 MT/s 4 of 16 bit 64 bit 60.00 GB/s" in words


def test_r013_the_rate_of_the_pins_follows_rate_and_width(npu, tmp_path):
    changed = json.loads(npu("info", "--memory", "edge-soc", "--json")[1])
    changed["dram"] |= {"transfers_per_second": 6_400_000_000, "channels": 8}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(changed))
    (found,) = json.loads(npu("info", "--ddr", "--memory", path, "--json")[1])["memory"]
    assert (found["width_bits"], found["pin_bytes_per_second"]) == (128, 102_400_000_000)


def test_without_a_name_the_pins_of_all_memory_systems_are_shown(npu):
    status, out, err = npu("info", "--ddr", "--json")
    assert (status, err) == (0, "")
    assert [found["name"] for found in json.loads(out)["memory"]] == memory_names()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peak"], "--peak goes with --profile"),
        (["--peak", "--memory", "ideal"], "--peak goes with --profile"),
        (["--peak", "--ddr", "--profile", "unit"], "--peak and --ddr: one of them at a time"),
        (["--profile", "unit", "--memory", "ideal"], "--memory ideal: one of --profile and --memory at a time"),
        (["--profile", ""], "no hardware profile named ''"),
        (["--ddr", "--memory", "none"], "no memory system named 'none'"),
    ],
)
def test_options_that_say_nothing_together_are_refused(npu, arguments, message):
    status, out, err = npu("info", *arguments)
    assert (status, out) == (1, "")
    assert message in err
