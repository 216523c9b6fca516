"""Which exceptions are the user's, one line on stderr, and which are a defect of this software, a traceback."""

import importlib

import numpy as np
import pytest

import libnpu
from libnpu.tools import cli
from libnpu.tools.console import CheckFailed


@pytest.mark.parametrize(("module", "name"), cli.USER_ERRORS)
def test_error_of_a_layer_about_its_input_is_the_users(module, name):
    assert cli.is_user_error(getattr(importlib.import_module(module), name)("a message"))


def test_check_that_fails_and_what_device_and_machine_refuse_are_the_users():
    for error in (CheckFailed("x"), libnpu.Unsupported("x"), FileNotFoundError(2, "x"), MemoryError()):
        assert cli.is_user_error(error)


def test_value_error_of_python_or_a_library_is_a_defect():
    assert not cli.is_user_error(ValueError("x"))
    assert not cli.is_user_error(np.exceptions.AxisError("x"))
    assert not cli.is_user_error(UnicodeDecodeError("utf-8", b"", 0, 1, "x"))


def test_defect_below_a_command_comes_out_of_main(monkeypatch):
    def broken(options):
        raise np.exceptions.AxisError("axis 3 is out of bounds")

    monkeypatch.setattr("libnpu.tools.info.run", broken)
    with pytest.raises(np.exceptions.AxisError):
        cli.main(["info"])
