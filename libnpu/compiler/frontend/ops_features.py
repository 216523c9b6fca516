"""Handlers of ai.onnx.ml's operators that prepare numbers of a table for a model, or are a linear one: rows are examples, columns features."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend import ops_matrix as matrix
from libnpu.compiler.frontend import ops_movement as movement
from libnpu.compiler.frontend.call import is_float
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
SINGLE = np.dtype(np.float32)


def array_feature_extractor(call: Call) -> Value:
    """ArrayFeatureExtractor: some columns; of one row without a dimension for it, a row."""
    x, places, build = call.input(0), call.input(1), call.build
    row = build.reshape(places, (math.prod(places.shape),))
    return movement.gather(replace(call, op="Gather", inputs=[_table(build, x), row], attrs={"axis": -1}))


def binarizer(call: Call) -> Value:
    """Binarizer: 1 above a threshold, else 0."""
    x = call.input(0)
    above: Expr = ("gt", X, _number(x, float(call.attrs.get("threshold", 0.0))))
    return call.build.elementwise(("where", above, _number(x, 1), _number(x, 0)), [x])


def _number(x: Value, number: float) -> Expr:
    """Return a constant of the type that a value is computed in; of integers one that compares as the fraction does."""
    return ("const", float(number) if is_float(x) else math.floor(number))


def scaler(call: Call) -> Value:
    """Scaler: (x - offset) · scale, of one number each or one per column."""
    x, build = call.input(0), call.build
    inputs = [x, *(_columns(call, name, x, default) for name, default in (("offset", 0.0), ("scale", 1.0)))]
    return build.elementwise(("mul", ("sub", _as_float(x), Y), ("in", 2)), inputs, SINGLE)


def imputer(call: Call) -> Value:
    """Imputer: another number for one that stands for nothing, which may be NaN."""
    x = call.input(0)
    kind = "float" if is_float(x) else "int64"
    missing = call.attrs.get(f"replaced_value_{kind}", 0)
    is_missing: Expr = ("is_nan", X) if math.isnan(missing) else ("eq", X, _number(x, missing))
    instead = _columns(call, f"imputed_value_{kind}s", x, None)
    return call.build.elementwise(("where", is_missing, Y, X), [x, instead])


def normalizer(call: Call) -> Value:
    """Normalizer: rows over their largest element, the sum of magnitudes or the root of that of squares; a row of zeros stays."""
    x, build = call.input(0), call.build
    norm = call.attrs.get("norm", b"MAX").decode()
    measures: dict[str, tuple[Expr, str]] = {
        "MAX": (X, "max"),
        "L1": (("abs", X), "sum"),
        "L2": (("mul", X, X), "sum"),
    }
    if norm not in measures:
        raise ModelError(f"node {call.name}: {call.op}: norm {norm!r}, one of {', '.join(measures)}")
    each, kind = measures[norm]
    real = _single(build, x)
    total = build.reduce(build.elementwise(each, [real]), kind, [len(x.shape) - 1], True)
    size: Expr = ("sqrt", Y) if norm == "L2" else Y
    return build.elementwise(("where", ("eq", Y, ("const", 0.0)), X, ("div", X, size)), [real, total])


def feature_vectorizer(call: Call) -> Value:
    """FeatureVectorizer: tables side by side, as float32."""
    build = call.build
    parts = [call.input(index) for index in range(len(call.inputs))]
    tables = [_table(build, x) for x in parts]
    wide = [_single(build, table) for table in tables]
    return wide[0] if len(wide) == 1 else build.emit("Concat", wide, {"axis": 1})


def linear_regressor(call: Call) -> Value:
    """LinearRegressor: x · coefficients plus intercepts, and perhaps a logistic function."""
    x, build = call.input(0), call.build
    transform = call.attrs.get("post_transform", b"NONE").decode()
    if transform not in ("NONE", "LOGISTIC") or len(x.shape) != 2:
        raise call.unimplemented(f"post_transform {transform} and input {x.shape}")
    count = int(call.attrs.get("targets", 1))
    weights = np.asarray(call.attrs["coefficients"], np.float32).reshape(count, x.shape[1])
    constants = [build.const(np.ascontiguousarray(weights.T), f"{call.name}.coefficients")]
    if "intercepts" in call.attrs:
        constants.append(build.const(np.asarray(call.attrs["intercepts"], np.float32), f"{call.name}.intercepts"))
    real = _single(build, x)
    result = matrix.gemm(replace(call, op="Gemm", inputs=[real, *constants], attrs={}))
    return result if transform == "NONE" else build.elementwise(("sigmoid", X), [result])


def _as_float(x: Value) -> Expr:
    return X if is_float(x) else ("cast_f32", X)


def _single(build: Builder, x: Value) -> Value:
    """Return `x` as float32."""
    return x if x.dtype == SINGLE else build.elementwise(_as_float(x), [x], SINGLE)


def _table(build: Builder, x: Value) -> Value:
    """Return features without an axis of examples as those of one."""
    return build.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x


def _columns(call: Call, name: str, x: Value, default: float | None) -> Value:
    """Return the numbers of an attribute, one or one per column. Raises ModelError."""
    given: Sequence[Any] | None = call.attrs.get(name, None if default is None else [default])
    dtype = x.dtype if default is None else SINGLE
    if given is None or len(given) not in (1, x.shape[-1]):
        raise ModelError(f"node {call.name}: {call.op}: {name} {given} for {x.name} {x.shape}")
    return call.build.const(np.asarray(given, dtype), f"{call.name}.{name}")


FEATURES: dict[str, Callable[[Call], Value]] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "Scaler": scaler,
}
