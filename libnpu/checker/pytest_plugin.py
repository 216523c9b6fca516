"""A plugin of pytest: what a test does in this process is checked, and it fails with the report when something was found.

@pytest.mark.npu_check              one test, a class, or a module (`pytestmark`)
@pytest.mark.npu_check(lint=True)   options as of `libnpu.check`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from pluggy import Result


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    what = "npu_check(lint=False, leaks=False): check what order the test takes for granted; it fails with what libnpu.check finds"
    config.addinivalue_line("markers", what)


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Result[object], None]:
    """Check a test that is marked. Its own failure is not hidden."""
    mark = pyfuncitem.get_closest_marker("npu_check")
    if mark is None:
        yield
        return
    from libnpu.checker import check

    with check(**mark.kwargs) as checker:
        outcome = yield
    outcome.get_result()  # raises what the test has raised
    report = checker.text()
    if report:
        pytest.fail(f"npu check:\n{report}", pytrace=False)
