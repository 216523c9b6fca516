"""docs/silicon.md is what its command prints, and says which figures are not met."""

import pytest

from benchmarks import silicon

PAGE = silicon.PAGE.read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_table_is_what_the_command_prints():
    assert silicon.update(PAGE) == PAGE, "python -m benchmarks.silicon --update"


def test_no_parameter_is_set_from_two_figures():
    fitted = [f.note.split("set from it: ")[1].split(";")[0] for f in silicon.FIGURES if "set from it: " in f.note]
    assert sorted(fitted) == ["noc.clock_hz", "noc.credit_return_cycles", "noc.hop_cycles"]


def test_each_number_has_a_row_or_a_reason():
    for number in (*range(2, 6), *range(10, 27)):
        assert f"B{number:02}" in PAGE
