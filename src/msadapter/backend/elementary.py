"""Elementary functions as accurate as torch's, where MindSpore's float32 primitives are not.

Exp is off by 3e-6 (2e-5 at the ends of its range), Sigmoid by 5e-6, Tanh by 1e-4, Log by 3e-4; Log, Log1p, Expm1 and
Erfc have no correct digit where their value is near zero. The float64 primitives are right, but for Log1p and Expm1
near zero. So float32 is computed in float64: the error left is that of one rounding. Converting on the host, where the
values are, takes 20 us; Cast takes 800. On large tensors this costs 5 to 10 ns an element, where Exp takes one.

Everything here takes and returns `ms.Tensor`s of any float type.
"""

import functools
import math
import sys

import numpy as np
import torch

from .storage import TORCH_DTYPE, broadcast, constant, ms
from .tracing import lasting, look, made_of_numbers, traced

P = ms.ops
_CAST = P.Cast()

_ADD, _SUB, _MUL, _DIV, _NEG, _ABS, _SQUARE = P.Add(), P.Sub(), P.Mul(), P.RealDiv(), P.Neg(), P.Abs(), P.Square()
_EQ, _LESS, _AND, _SELECT, _MASKED_FILL = P.Equal(), P.Less(), P.LogicalAnd(), P.Select(), P.MaskedFill()
_MAXIMUM, _MINIMUM, _TRUNC, _RECIPROCAL, _DIV_NO_NAN = P.Maximum(), P.Minimum(), P.Trunc(), P.Reciprocal(), P.DivNoNan()
_SQRT, _SIGN, _TAN = P.Sqrt(), P.Sign(), P.Tan()
_EXP, _LOG, _LOG1P, _SINH, _TANH, _ERF = P.Exp(), P.Log(), P.Log1p(), P.Sinh(), P.Tanh(), P.Erf()

_D = functools.lru_cache(256)(lambda value: lasting(constant(value, torch.float64)))  # no key is zero: 0.0 and -0.0 are equal
_F = functools.lru_cache(256)(lambda value: lasting(constant(value, torch.float32)))
_ZERO = lasting(constant(0, torch.float64))
_NARROW = {ms.float32: np.float32, ms.float16: np.float16}


def widen(v):
    """v in float64. On the host: Cast takes 350 us to find its kernel."""
    if v.dtype == ms.float64:
        return v
    if traced(v):
        return _CAST(v, ms.float64)
    return ms.Tensor.from_numpy(v.asnumpy().astype(np.float64, order="C"))


def narrow(v, dtype):
    """v in the MindSpore float type `dtype`; what is too large becomes infinite."""
    if v.dtype == dtype:
        return v
    if traced(v):
        return _CAST(v, dtype)
    with np.errstate(over="ignore"):
        return ms.Tensor.from_numpy(v.asnumpy().astype(_NARROW[dtype], order="C"))


def in_double(fn, exact=None):
    """fn computed in float64 whatever the float type is; for float64 itself `exact`, where fn has too few digits."""

    @functools.wraps(fn)
    def run(v):
        if v.dtype in _NARROW:
            return narrow(fn(widen(v)), v.dtype)
        return (exact or fn)(v)

    return run


# ------------------------------------------------------------------------------------------ exponentials and logarithms

exp, log, sigmoid, tanh = in_double(_EXP), in_double(_LOG), in_double(P.Sigmoid()), in_double(_TANH)
erfc = in_double(P.Erfc())


_COMPLEX = (ms.complex64, ms.complex128)


def _like(v, value):
    return constant(value, TORCH_DTYPE[v.dtype]) if v.dtype in _COMPLEX else _D(value)


def _by_parts(fn, v):
    """fn of the real and of the imaginary parts."""
    return P.Complex()(fn(P.Real()(v)), fn(P.Imag()(v)))


def _scaled_log(base):
    by = lambda v: _DIV(v, constant(math.log(base), TORCH_DTYPE[v.dtype]))  # noqa: E731
    return in_double(lambda v: _by_parts(by, _LOG(v)) if v.dtype in _COMPLEX else by(_LOG(v)))


log2, log10 = _scaled_log(2), _scaled_log(10)
exp2 = in_double(lambda v: P.Exp()(_MUL(v, _like(v, math.log(2)))) if v.dtype in _COMPLEX else P.Pow()(_D(2), v))


# On large float64 tensors Add and Mul take 9 ns an element, Sub and RealDiv less than two: so a + b is a - -b.


def _log1p_double(v):
    """log(u) for u = 1 + v as rounded, plus what rounding took, which is u - 1 - v too much."""
    top = _D(sys.float_info.max)
    u = _MINIMUM(top, _SUB(v, _D(-1)))
    y = _SUB(_LOG(u), _DIV_NO_NAN(_SUB(_SUB(u, _D(1)), _MINIMUM(top, v)), u))
    y = _MASKED_FILL(y, _EQ(v, _D(math.inf)), _D(math.inf))
    return _SELECT(_EQ(u, _D(1)), v, y)  # keeps the sign of zero


def _expm1_double(v):
    """Near zero 2 sinh(v / 2) exp(v / 2)."""
    half = _MUL(v, _D(0.5))
    near = _MUL(_MUL(_SINH(half), _EXP(half)), _D(2))
    return _SELECT(_LESS(_ABS(v), _D(1)), near, _SUB(_EXP(v), _D(1)))


def _or_itself(fn):
    """fn, which is v itself to seven digits below 1e-8."""
    return lambda v: _SELECT(_LESS(_ABS(v), _D(1e-8)), v, fn(v))


log1p, expm1 = in_double(_or_itself(P.Log1p()), _log1p_double), in_double(_or_itself(P.Expm1()), _expm1_double)


def _tail(v):
    """log(1 + t) for t = exp(-|v|): the primitive rounds 1 + t to u, so u - 1 - t is too much."""
    t = _EXP(_NEG(_ABS(v)))
    return _SUB(_LOG1P(t), _SUB(_SUB(_SUB(t, _D(-1)), _D(1)), t))


softplus_tail = in_double(_tail)  # softplus(v) = relu(v) + tail(v)
softplus = in_double(lambda v: _SUB(_tail(v), _MINIMUM(_ZERO, _NEG(v))))
log_sigmoid = in_double(lambda v: _SUB(_MINIMUM(_ZERO, v), _tail(v)))
exp_minus_abs = in_double(lambda v: _EXP(_NEG(_ABS(v))))
logit = in_double(lambda v: _LOG(_DIV(v, _SUB(_D(1), v))))
silu = in_double(lambda v: _DIV(v, _SUB(_EXP(_NEG(v)), _D(-1))))


def _coth_softplus(v):
    """coth(log(1 + w)) = 1 + 2 / (w (w + 2)) for w = e^v; from 40 on it is 1."""
    w = _EXP(_MINIMUM(_D(40), v))
    return _SUB(_DIV(_DIV(_D(2), w), _SUB(w, _D(-2))), _D(-1))


tanh_softplus = in_double(lambda v: _RECIPROCAL(_coth_softplus(v)))
mish = in_double(lambda v: _DIV(v, _coth_softplus(v)))


def tanh_plus_one_halved(v):
    """(1 + tanh(2 v)) / 2 = 1/2 + t / (1 + t^2) for t = tanh(v). As exact as torch's sum with 1, so without digits below 1e-7.

    Tanh is off by 2e-7 up to 2.5, and by 1e-4 where t is nearly 1, which t / (1 + t^2) squares.
    """
    if v.dtype != ms.float32:
        return sigmoid(_MUL(v, _D(4)))
    t = _TANH(v)
    return _ADD(_DIV(t, _ADD(_MUL(t, t), _F(1))), _F(0.5))


def relu(v):
    """ReLU makes 0 of NaN; Maximum answers its second operand when the comparison fails."""
    return _MAXIMUM(constant(0, torch.float32), v) if v.dtype == ms.float32 else _MAXIMUM(P.ZerosLike()(v), v)


def complex_abs(v):
    """|v|: the primitive overflows in complex64, and calls the absolute value of inf + nan i NaN."""
    if v.dtype == ms.complex64:
        return narrow(complex_abs(ms.Tensor.from_numpy(v.asnumpy().astype(np.complex128, order="C"))), ms.float32)
    infinite = P.LogicalOr()(P.IsInf()(P.Real()(v)), P.IsInf()(P.Imag()(v)))
    return _MASKED_FILL(P.ComplexAbs()(v), infinite, _D(math.inf))


# ------------------------------------------------------------------------------------------------------------- division


def divide(a, b):
    """a / b. RealDiv ignores the sign of a zero b, and calls NaN / 0 -inf; Reciprocal and Mul do not."""
    y = _DIV(a, b)
    if made_of_numbers(b) and look(b).all() or not traced(b) and b.asnumpy().all():
        return y
    if y.dtype in _COMPLEX:
        return _complex_by_zero(a, b, y)
    if b.shape != y.shape:
        b = broadcast(b, y.shape)
    return _SELECT(_EQ(b, P.ZerosLike()(b)), _MUL(a, _RECIPROCAL(b)), y)


def _complex_by_zero(a, b, y):
    """y = a / b, where b is zero the parts of a by +0, as torch has it: the primitive gives zero."""
    a, b = (broadcast(v, y.shape) if v.shape != y.shape else v for v in (a, b))
    real, imaginary = P.Real()(b), P.Imag()(b)
    zero = P.ZerosLike()(real)
    at = _AND(_EQ(real, zero), _EQ(imaginary, zero))
    infinity = constant(math.inf, TORCH_DTYPE[real.dtype])
    return P.Complex()(*(_SELECT(at, _MUL(part(a), infinity), part(y)) for part in (P.Real(), P.Imag())))


# ---------------------------------------------------------------------------------------------------- special functions


@in_double
def erfinv(v):
    """Erfinv is off by 1 % near +-1. Winitzki's formula is off by 0.2 % at most, and Newton steps on Erf mend that.

    At +-1 the formula is infinite, where both differences of a step are 0: 0 / 0 has to be 0.
    """
    half_log = _MUL(_LOG(_SUB(_D(1), _SQUARE(v))), _D(0.5))
    t = _ADD(half_log, _D(2 / (math.pi * 0.147)))
    root = _SQRT(_SUB(_SQUARE(t), _MUL(half_log, _D(2 / 0.147))))
    y = _MUL(_SIGN(v), _SQRT(_SUB(root, t)))
    for _ in range(3):
        slope = _MUL(_EXP(_NEG(_SQUARE(y))), _D(2 / math.sqrt(math.pi)))
        y = _SUB(y, _DIV_NO_NAN(_SUB(_ERF(y), v), slope))
    return _SELECT(_EQ(v, P.ZerosLike()(v)), v, y)  # keeps the sign of zero


@in_double
def digamma(v):
    """The asymptotic series behind seven steps of recurrence; below 1/2 by reflection. Digamma is off by 1e-5."""
    low = _LESS(v, _D(0.5))
    y, steps = _SELECT(low, _SUB(_D(1), v), v), None
    for _ in range(7):
        step = _RECIPROCAL(y)
        steps, y = step if steps is None else _ADD(steps, step), _ADD(y, _D(1))
    w, series = _RECIPROCAL(_SQUARE(y)), _D(1 / 132)
    for coefficient in (1 / 240, 1 / 252, 1 / 120, 1 / 12):
        series = _SUB(_D(coefficient), _MUL(w, series))
    psi = _SUB(_SUB(_SUB(_LOG(y), _MUL(_RECIPROCAL(y), _D(0.5))), _MUL(w, series)), steps)
    reflected = _SUB(psi, _DIV(_D(math.pi), _TAN(_MUL(_SUB(v, _TRUNC(v)), _D(math.pi)))))
    pole = _AND(_EQ(v, _TRUNC(v)), _LESS(v, _D(0)))
    psi = _MASKED_FILL(_SELECT(low, reflected, psi), pole, _D(math.nan))
    at_zero = _NEG(_RECIPROCAL(v))  # infinite, with the sign that torch gives it
    return _SELECT(_EQ(v, _D(0)), at_zero, psi)
