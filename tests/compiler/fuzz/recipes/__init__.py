"""Recipes: operator -> function that draws one node of it. Every operator of the compiler's table has one, and every one that the
standard defines by others, or is in NOT_DRAWN with the reason. An operator of com.microsoft that the standard has too is "NAME of Microsoft".
"""

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
EARLIER = "the standard's, which is drawn, in another domain"
FEATURES = "of tables, whose own operators are not those of graphs of tensors"
BLOCKED = "of channels in blocks, whose layout onnxruntime's optimiser writes"
NOT_DRAWN = {
    **dict.fromkeys(
        ("Conv of Microsoft", "MaxPool of Microsoft", "AveragePool of Microsoft", "Upsample of Microsoft"), BLOCKED
    ),
    **dict.fromkeys(
        ("GlobalAveragePool of Microsoft", "GlobalMaxPool of Microsoft", "ReorderInput", "ReorderOutput"), BLOCKED
    ),
    **dict.fromkeys(("ExpandDims", "GatherND of Microsoft", "GridSample of Microsoft", "Pad of Microsoft"), EARLIER),
    **dict.fromkeys(
        (
            "ArrayFeatureExtractor",
            "Binarizer",
            "FeatureVectorizer",
            "Imputer",
            "LinearRegressor",
            "Normalizer",
            "Scaler",
        ),
        FEATURES,
    ),
    "Bernoulli": "random numbers, which are refused",
    "BitCast": NEWER,
    "CausalConvWithState": NEWER,
    "CumProd": NEWER,
    "DynamicQuantizeLSTM": "a state that is quantised anew in each step: no bound holds behind a rounding that goes the other way",
    "LinearAttention": NEWER,
    "NonMaxSuppression": "a result whose size depends on values",
    "QEmbedLayerNormalization": "as EmbedLayerNormalization, of tables that are dequantised before",
    "SequenceMap": "sequences, which are refused",
    "SwiGLU": NEWER,
    "TfIdfVectorizer": "attributes that depend on each other more than a recipe draws; onnx's node tests have it",
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
