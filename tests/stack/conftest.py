"""Fixtures for tests that go through every layer."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def models():
    """The module scripts/models.py."""
    spec = importlib.util.spec_from_file_location("npu_test_models", ROOT / "scripts" / "models.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
