"""Orthogonal polynomials of degree n, an integer per element: recurrences in float64, run up to the largest degree."""

import math

import numpy as np
import torch

from ..double import both, either, negation, where
from ..registry import Decline, kernel
from .pointwise import promoted, to_float
from .special import in_double

NAN = math.nan
LONGEST = 5000  # steps of a recurrence


def _recurrence(n, q, step, needed):
    """The polynomial of degree n, from those of degree 0 and 1, which are 1 and q, where `needed` holds."""
    degrees = {int(k) for k in np.unique(n.host()[needed.asnumpy()]) if k > 0}
    last = max(degrees, default=0)
    if last > LONGEST:
        raise Decline("a recurrence too long to run")
    p, result = 1.0, where(n == 0, 1.0, q)
    for k in range(1, last):
        p, q = q, step(k, p, q)
        if k + 1 in degrees:
            result = where(n == k + 1, q, result)
    return result


def _polynomial(name, fn):
    """Register fn(x, n, dtype); n is whole there, and not finite counts as negative."""

    @kernel(f"special_{name}", layout=True)
    def run(x, n):
        dtype = to_float(promoted(x, n))

        def compute(v, m):
            m = where(m.abs() < math.inf, m.trunc(), -1.0)
            return where(m < 0, 0.0, fn(v, m, dtype))

        return in_double(compute, (x, n))


def _sign(n):
    """-1 for odd n, else 1."""
    return 1 - 2 * (n - 2 * (n / 2).floor())


# ----------------------------------------------------------------------------------------------------------- Chebyshev

# For each kind: the polynomial of degree 1, the value for x = cos(a), and the values at 1 and, but for the sign, at -1.
CHEBYSHEV = {
    "t": (lambda x: x, lambda n, a: (n * a).cos(), lambda n: 1.0, lambda n: 1.0),
    "u": (lambda x: 2 * x, lambda n, a: ((n + 1) * a).sin() / a.sin(), lambda n: n + 1, lambda n: n + 1),
    "v": (
        lambda x: 2 * x - 1.0,
        lambda n, a: ((n + 0.5) * a).cos() / (a / 2).cos(),
        lambda n: 1.0,
        lambda n: 2 * n + 1,
    ),
    "w": (lambda x: 2 * x + 1, lambda n, a: ((n + 0.5) * a).sin() / (a / 2).sin(), lambda n: 2 * n + 1, lambda n: 1.0),
}
# The degree from which torch computes by angle.
BY_ANGLE = {"t": 6, "u": 8, "v": 8, "w": 8}
SHIFTED_BY_ANGLE = {"t": 6, "u": 6, "v": 6, "w": 4}


def _chebyshev(kind, limit, shifted):
    first, by_angle, at_one, at_minus_one = CHEBYSHEV[kind]

    def chebyshev(x, n, dtype):
        x = 2 * x - 1.0 if shifted else x
        inside, end = x.abs() < 1, x.abs() == 1
        angular = both(inside, n > limit)
        slope = 2 * x
        y = _recurrence(n, first(x), lambda k, p, q: slope * q - p, negation(either(angular, end)))
        y = where(angular, by_angle(n, where(inside, x, 0.5).acos()), y)
        return where(x == 1, at_one(n), where(x == -1, _sign(n) * at_minus_one(n), y))

    return chebyshev


for _kind in CHEBYSHEV:
    _polynomial(f"chebyshev_polynomial_{_kind}", _chebyshev(_kind, BY_ANGLE[_kind], False))
    _polynomial(f"shifted_chebyshev_polynomial_{_kind}", _chebyshev(_kind, SHIFTED_BY_ANGLE[_kind], True))


# -------------------------------------------------------------------------------------------------------------- others


def _all(n):
    return n == n


def _hermite_h(x, n, dtype):
    n = _within(n, dtype)
    y = _recurrence(n, 2 * x, lambda k, p, q: 2 * x * q - 2.0 * k * p, _all(n))
    return where(n < 0, NAN, y)


def _hermite_he(x, n, dtype):
    n = _within(n, dtype)
    y = _recurrence(n, x, lambda k, p, q: x * q - float(k) * p, _all(n))
    return where(n < 0, NAN, y)


def _within(n, dtype):
    """n, or -1 above the degree that torch computes."""
    return where(n > (512 if dtype is torch.float64 else 128), -1.0, n)


def _laguerre(x, n, dtype):
    y = _recurrence(n, 1 - x, lambda k, p, q: ((2 * k + 1 - x) * q - float(k) * p) / (k + 1), x != 0)
    return where(x == 0, 1.0, y)


def _legendre(x, n, dtype):
    end = x.abs() == 1
    y = _recurrence(n, x, lambda k, p, q: ((2 * k + 1) * x * q - float(k) * p) / (k + 1), negation(end))
    return where(x == 1, 1.0, where(x == -1, _sign(n), y))


_polynomial("hermite_polynomial_h", _hermite_h)
_polynomial("hermite_polynomial_he", _hermite_he)
_polynomial("laguerre_polynomial_l", _laguerre)
_polynomial("legendre_polynomial_p", _legendre)
