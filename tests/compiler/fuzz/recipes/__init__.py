"""Recipes: operator -> function that draws one node of it. Every operator of the compiler's table has one, or is in NOT_DRAWN with the reason."""

from __future__ import annotations

from tests.compiler.fuzz.recipes import (
    attention,
    elements,
    indices,
    matrices,
    movement,
    quantised,
    reductions,
    windows,
)
from tests.compiler.fuzz.recipes.table import RECIPES

NEWER = "of an opset that onnxruntime does not have yet"
TIED = "operands that depend on each other more than a recipe draws; onnx's node tests have it"
NOT_DRAWN = {
    "BitCast": NEWER,
    "CumProd": NEWER,
    "DeformConv": TIED,
    "GroupQueryAttention": TIED,
    "MatMulNBits": "weights that are rounded inside of the node, where no bound sees it; test_frontend_blockwise.py has it",
    "MaxUnpool": TIED,
    "NonMaxSuppression": "a result whose size depends on values",
    "STFT": TIED,
    "TensorScatter": TIED,
    "TfIdfVectorizer": TIED,
}
__all__ = [
    "NOT_DRAWN",
    "RECIPES",
    "attention",
    "elements",
    "indices",
    "matrices",
    "movement",
    "quantised",
    "reductions",
    "windows",
]
