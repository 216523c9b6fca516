"""Recipes: operator -> function that draws one node of it. Every operator of the compiler's table has one, or is in NOT_DRAWN with the reason."""

from __future__ import annotations

from tests.compiler.fuzz.recipes import elements, indices, matrices, movement, quantised, reductions, windows
from tests.compiler.fuzz.recipes.table import RECIPES

NOT_DRAWN = {"BitCast": "of opset 26, which onnxruntime does not have yet", "CumProd": "as BitCast"}
__all__ = ["NOT_DRAWN", "RECIPES", "elements", "indices", "matrices", "movement", "quantised", "reductions", "windows"]
