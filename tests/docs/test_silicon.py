"""docs/silicon.md is what its command prints, and says which figures are not met."""

import pytest
from npu_model.memory import load_memory

from benchmarks import silicon, whole_models

PAGE = silicon.PAGE.read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_table_is_what_the_command_prints():
    assert silicon.update(PAGE) == PAGE, "python -m benchmarks.silicon --update"


def test_no_parameter_is_set_from_two_figures():
    fitted = [f.note.split("set from it: ")[1].split(";")[0] for f in silicon.FIGURES if "set from it: " in f.note]
    assert sorted(fitted) == ["noc.clock_hz", "noc.credit_return_cycles", "noc.hop_cycles"]


def test_each_number_has_a_row():
    for number in (*range(2, 6), *range(10, 27)):
        assert f"\n| B{number:02} |" in PAGE


def test_a_figure_without_a_value_has_a_row_that_says_so():
    (figure,) = (f for f in silicon.FIGURES if f.number == "B15")
    assert silicon.error(figure, figure.predict(load_memory("edge-soc"))) == "cannot be"
    assert "no value" in figure.note


def test_of_whole_models_on_two_tiles_one_row_alone_is_beyond_thirty_percent_of_what_was_measured():
    """MobileNet-v2 as it is compiled by default, by half a percent: docs/silicon.md says so."""
    rows = [
        line.strip("| ").split(" | ")
        for line in PAGE.splitlines()
        if " | by layers | 2 | " in line or " | fused | 2 | " in line
    ]
    measured = {model.name: model.measured for model in whole_models.MODELS}
    errors = {(name, schedule): float(ours) / measured[name] - 1 for name, schedule, _, _, ours, *_ in rows}
    assert len(errors) == 4
    beyond = {row: f"{error:+.1%}" for row, error in errors.items() if abs(error) > 0.30}
    assert beyond == {("MobileNet-v2", "fused"): "+30.5%"}


def test_b12_is_what_npu_roofline_counts():
    assert silicon.intensity(load_memory("edge-soc"), "--op", "vadd", "--size", "4096") == 1 / 12
