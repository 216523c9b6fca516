"""docs/checker.md: its example is run, the report is what npu check prints, and the rules are those that there are."""

import re
import sys
from pathlib import Path

import pytest

from libnpu.checker.rules import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checker.md"


def part(name):
    """Return what stands between the marks of a name."""
    return re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL).group(1)


def test_the_report_of_the_example(npu, tmp_path, monkeypatch):
    code = re.search(r"```python\n# race.py\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    (tmp_path / "race.py").write_text(f"# race.py\n{code}")
    monkeypatch.chdir(tmp_path)
    status, out, err = npu("check", "--", sys.executable, "race.py")
    assert (status, out) == (1, "")
    assert part("report") == f"```text\n{err}```\n"


@pytest.mark.slow
def test_the_results_of_the_example(npu):
    folder = PAGE.parents[1] / "samples" / "bugs"
    status, out, err = npu("explore", "--", sys.executable, folder / "staging_ring.py")
    assert (status, err) == (1, "")
    assert part("explore") == f"```text\n{out}```\n".replace(f"{folder}/", "")


def test_the_table_of_rules():
    rows = [f"| {rule} | {what} |" for rule, what in RULES.items()]
    assert part("rules").splitlines() == ["| rule | what |", "|---|---|", *rows]


def test_each_rule_has_a_test():
    tests = "".join(path.read_text() for path in (PAGE.parents[1] / "tests" / "checker").glob("test_*.py"))
    assert [rule for rule in RULES if f'"{rule}"' not in tests] == []
