"""The table of recipes, and the types that they share."""

from __future__ import annotations

import numpy as np

RECIPES = {}
F32, I64, I32, BOOL = (np.dtype(name) for name in ("float32", "int64", "int32", "bool"))
BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
ENGINE = tuple(map(np.dtype, ("float32", "float32", "float16")))  # of products


def recipe(*operators):
    """Register a function of a Draw and the operator."""

    def register(function):
        RECIPES.update(dict.fromkeys(operators, function))
        return function

    return register
