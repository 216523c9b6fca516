"""A plugin of pytest: what a test does in this process is checked, and it fails with the report when something was found.

@pytest.mark.npu_check              one test, a class, or a module (`pytestmark`)
@pytest.mark.npu_check(lint=True)   options as of `libnpu.check`
@pytest.mark.npu_check(witness=True)
                                    what was found is replayed: the test function is called again, with the same fixtures, for each
                                    pair of accesses, and the report has the witnesses
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    what = "npu_check(lint=False, leaks=False, witness=False): check what order the test takes for granted; it fails with what libnpu.check finds"
    config.addinivalue_line("markers", what)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Check a test that is marked. Its own failure is not hidden."""
    mark = pyfuncitem.get_closest_marker("npu_check")
    if mark is None:
        return (yield)
    from libnpu.checker import check
    from libnpu.checker.recorder import replays_of
    from libnpu.checker.report import text
    from libnpu.checker.witness import add_witnesses

    options = {**mark.kwargs}
    witness = options.pop("witness", False)
    with check(**options) as checker:
        result = yield  # raises what the test has raised
    report = checker.text()
    if report and witness:
        found, names = checker.records(), pyfuncitem._fixtureinfo.argnames
        fixtures = {name: pyfuncitem.funcargs[name] for name in names}
        add_witnesses(found, replays_of(lambda: pyfuncitem.obj(**fixtures)))
        report = text(found)
    if report:
        pytest.fail(f"npu check:\n{report}", pytrace=False)
    return result
