"""Handlers of trigonometric and hyperbolic functions that the vector engine has no instruction for, spelled in those it has.

Polynomials are Cephes' for single precision (relative errors below 2e-7); nothing cancels near zero, nothing overflows
before the result does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from libnpu.compiler.ir import Expr

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Value

X: Expr = ("in", 0)
ONE: Expr = ("const", 1.0)
HALF: Expr = ("const", 0.5)
_LARGE: Expr = ("const", 1e9)  # from here on x² + 1 is x² in float32
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_SINH = (1 / 362880, 1 / 5040, 1 / 120, 1 / 6)


def trigonometry(call: Call) -> Value:
    return call.build.elementwise(FUNCTIONS[call.op](X), [call.input(0)])


def log_of_one_plus(x: Expr) -> Expr:
    """Return log(1 + x) that is right for small x too: the rounding of 1 + x cancels in log(u) · x / (u - 1)."""
    u: Expr = ("add", x, ONE)
    return ("where", ("eq", u, ONE), x, ("div", ("mul", ("log", u), x), ("sub", u, ONE)))


def _odd_polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Return x + x³ · (the polynomial in x², its highest coefficient first)."""
    square: Expr = ("mul", x, x)
    total: Expr = ("const", coefficients[0])
    for coefficient in coefficients[1:]:
        total = ("add", ("mul", total, square), ("const", coefficient))
    return ("add", ("mul", ("mul", total, square), x), x)


def _signed(magnitude: Expr, x: Expr) -> Expr:
    """Return a magnitude with the sign of `x`; of zero, `x` itself."""
    return ("where", ("lt", x, ("const", 0.0)), ("neg", magnitude), ("where", ("eq", x, ("const", 0.0)), x, magnitude))


def _tan(x: Expr) -> Expr:
    return ("div", ("sin", x), ("cos", x))


def _asin(x: Expr) -> Expr:
    """Near 1: pi/2 - 2 asin(sqrt((1 - x) / 2)). Beyond 1 the root is NaN."""
    a: Expr = ("abs", x)
    steep: Expr = ("gt", a, HALF)
    core = _odd_polynomial(_ASIN, ("where", steep, ("sqrt", ("mul", HALF, ("sub", ONE, a))), a))
    return _signed(("where", steep, ("sub", ("const", math.pi / 2), ("add", core, core)), core), x)


def _acos(x: Expr) -> Expr:
    """As asin: 2 asin(sqrt((1 - |x|) / 2)) from 0.5 on, turned over for negative x; between, pi/2 - asin(x)."""
    a: Expr = ("abs", x)
    steep: Expr = ("gt", a, HALF)
    core = _odd_polynomial(_ASIN, ("where", steep, ("sqrt", ("mul", HALF, ("sub", ONE, a))), x))
    twice: Expr = ("add", core, core)
    ends: Expr = ("where", ("lt", x, ("const", 0.0)), ("sub", ("const", math.pi), twice), twice)
    return ("where", steep, ends, ("sub", ("const", math.pi / 2), core))


def _atan(x: Expr) -> Expr:
    """Of |x| by thirds: from tan(3 pi / 8) on pi/2 - atan(1/x), from tan(pi / 8) on pi/4 + atan((x - 1) / (x + 1))."""
    a: Expr = ("abs", x)
    far: Expr = ("gt", a, ("const", math.tan(3 * math.pi / 8)))
    middle: Expr = ("gt", a, ("const", math.tan(math.pi / 8)))
    small: Expr = ("where", middle, ("div", ("sub", a, ONE), ("add", a, ONE)), a)
    core = _odd_polynomial(_ATAN, ("where", far, ("neg", ("reciprocal", a)), small))
    start: Expr = ("where", middle, ("const", math.pi / 4), ("const", 0.0))
    return _signed(("add", ("where", far, ("const", math.pi / 2), start), core), x)


def _half_power(x: Expr) -> Expr:
    return ("exp", ("mul", HALF, ("abs", x)))


def _sinh(x: Expr) -> Expr:
    """e^|x| as the square of its root, which does not overflow before the result; a polynomial near 0."""
    root = _half_power(x)
    large: Expr = ("sub", ("mul", ("mul", HALF, root), root), ("div", ("div", HALF, root), root))
    return ("where", ("lt", ("abs", x), ONE), _odd_polynomial(_SINH, x), _signed(large, x))


def _cosh(x: Expr) -> Expr:
    root = _half_power(x)
    return ("add", ("mul", ("mul", HALF, root), root), ("div", ("div", HALF, root), root))


def _asinh(x: Expr) -> Expr:
    """log(a + sqrt(a² + 1)), as log(1 + (a + a² / (1 + sqrt(a² + 1)))) so that small a does not cancel."""
    a: Expr = ("abs", x)
    square: Expr = ("mul", a, a)
    small = log_of_one_plus(("add", a, ("div", square, ("add", ONE, ("sqrt", ("add", square, ONE))))))
    return _signed(("where", ("lt", a, _LARGE), small, ("add", ("log", a), ("const", math.log(2)))), x)


def _acosh(x: Expr) -> Expr:
    """log(x + sqrt(x² - 1)) in t = x - 1; below 1 the root is NaN."""
    t: Expr = ("sub", x, ONE)
    small = log_of_one_plus(("add", t, ("sqrt", ("add", ("add", t, t), ("mul", t, t)))))
    return ("where", ("gt", x, _LARGE), ("add", ("log", x), ("const", math.log(2))), small)


def _atanh(x: Expr) -> Expr:
    """log((1 + a) / (1 - a)) / 2; below 0.5 as log(1 + 2a / (1 - a)) / 2."""
    a: Expr = ("abs", x)
    rest: Expr = ("sub", ONE, a)
    small = log_of_one_plus(("div", ("add", a, a), rest))
    near_one: Expr = ("log", ("div", ("add", ONE, a), rest))
    return _signed(("mul", HALF, ("where", ("lt", a, HALF), small, near_one)), x)


FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "Tan": _tan,
    "Asin": _asin,
    "Acos": _acos,
    "Atan": _atan,
    "Sinh": _sinh,
    "Cosh": _cosh,
    "Asinh": _asinh,
    "Acosh": _acosh,
    "Atanh": _atanh,
}
