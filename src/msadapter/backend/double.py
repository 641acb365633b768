"""float64 values with arithmetic, so that the formulas of special functions read as formulas.

A `Double` holds a float64 `ms.Tensor`. Numbers mix in; comparisons give `ms.Tensor`s of bools, for `where`.
"""

import functools
import numbers

import numpy as np
import torch

from . import elementary as E
from .storage import constant, ms
from .tracing import lasting

P = ms.ops

_SUB, _ADD, _MUL, _DIV, _POW, _NEG = P.Sub(), P.Add(), P.Mul(), P.RealDiv(), P.Pow(), P.Neg()
_LT, _LE, _GT, _GE, _EQ, _NE = P.Less(), P.LessEqual(), P.Greater(), P.GreaterEqual(), P.Equal(), P.NotEqual()
_SELECT, _AND, _OR, _NOT = P.Select(), P.LogicalAnd(), P.LogicalOr(), P.LogicalNot()
FUNCTIONS = {
    "exp": P.Exp(), "log": P.Log(), "sqrt": P.Sqrt(), "sin": P.Sin(), "cos": P.Cos(), "acos": P.ACos(), "abs": P.Abs(),
    "floor": P.Floor(), "trunc": P.Trunc(), "erfc": P.Erfc(), "lgamma": P.Lgamma(),
    "log1p": E.log1p, "expm1": E.expm1, "square": P.Square(), "reciprocal": P.Reciprocal(),
}  # fmt: skip

_number = functools.lru_cache(4096)(lambda text: lasting(constant(float(text), torch.float64)))


def value(x):
    """The float64 `ms.Tensor` of a Double or a number. Numbers are looked up by their text, which tells 0.0 from -0.0."""
    return x.v if isinstance(x, Double) else _number(repr(float(x)))


def _infix(primitive):
    return lambda a, b: Double(primitive(value(a), value(b)))


def _comparison(primitive):
    return lambda a, b: primitive(value(a), value(b))


class Double:
    __slots__ = ("v",)
    __hash__ = None

    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        if isinstance(other, numbers.Number):  # Add takes five times as long as Sub
            return Double(_SUB(self.v, value(-other)))
        return Double(_ADD(self.v, other.v))

    __radd__ = __add__

    def __rsub__(self, other):
        return Double(_SUB(value(other), self.v))

    def __truediv__(self, other):
        return Double(_DIV(self.v, value(other)) if isinstance(other, numbers.Number) else E.divide(self.v, other.v))

    def __rtruediv__(self, other):
        return Double(E.divide(value(other), self.v))

    __sub__, __mul__, __pow__ = _infix(_SUB), _infix(_MUL), _infix(_POW)
    __rmul__ = __mul__

    def __neg__(self):
        return Double(_NEG(self.v))

    __lt__, __le__, __gt__, __ge__ = _comparison(_LT), _comparison(_LE), _comparison(_GT), _comparison(_GE)
    __eq__, __ne__ = _comparison(_EQ), _comparison(_NE)

    def host(self):
        """The values as a NumPy array, to decide by."""
        return self.v.asnumpy()


def _method(name, fn):
    setattr(Double, name, lambda self: Double(fn(self.v)))


for _name, _fn in FUNCTIONS.items():
    _method(_name, _fn)


def where(condition, a, b):
    """a where the condition holds, b elsewhere."""
    return Double(_SELECT(condition, value(a), value(b)))


def both(a, b):
    return _AND(a, b)


def either(a, b):
    return _OR(a, b)


def negation(a):
    return _NOT(a)


def polynomial(x, coefficients):
    """Horner's rule, from the highest power on."""
    first, *rest = coefficients
    y = first
    for c in rest:
        y = x * y + c
    return y


def of_host(array):
    """A Double of an array of numbers made on the host."""
    return Double(ms.Tensor.from_numpy(np.ascontiguousarray(array, np.float64)))
