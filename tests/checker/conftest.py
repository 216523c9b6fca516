"""What is found in a program of a few lines."""

import inspect

import pytest

import libnpu


@pytest.fixture
def records_of():
    """Return a function: what is found in `program(device)`, as records whose sites are lines of the program, 0 its first."""

    def check(program, *arguments, lint=False, leaks=False, **options):
        with libnpu.check(lint=lint, leaks=leaks) as checker, libnpu.open("npu-37xx", **options) as device:
            program(device, *arguments)
        file, first = inspect.getsourcefile(program), inspect.getsourcelines(program)[1]
        records = checker.records()
        for act in (act for record in records for act in record["acts"]):
            for key in act.keys() & {"site", "captured"}:
                name, _, line = act[key].rpartition(":")
                act[key] = int(line) - first if name == file else act[key] or None
        return records

    return check


@pytest.fixture
def found(records_of):
    """Return a function: what is found in `program(device)`, as [(rule, lines of the acts)]."""

    def check(program, *arguments, **options):
        return [(r["rule"], [act["site"] for act in r["acts"]]) for r in records_of(program, *arguments, **options)]

    return check
