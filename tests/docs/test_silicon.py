"""docs/silicon.md is what its command prints, and says which figures are not met."""

import pytest
from npu_model.memory import load_memory

from benchmarks import silicon

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


def test_whole_models_on_two_tiles_are_within_thirty_percent_of_what_was_measured_rounded():
    rows = [
        line.split(" | ") for line in PAGE.splitlines() if " | by layers | 2 | " in line or " | fused | 2 | " in line
    ]
    assert len(rows) == 4
    for row in rows:
        assert abs(int(row[5].rstrip("%"))) <= 30, row


def test_b12_is_what_npu_roofline_counts():
    assert silicon.intensity(load_memory("edge-soc"), "--op", "vadd", "--size", "4096") == 1 / 12
