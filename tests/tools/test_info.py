"""npu info: what is exported loads again as it was."""

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
