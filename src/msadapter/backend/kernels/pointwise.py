"""Pointwise ops of one operand, and how pointwise ops read their operands: promotion by torch's rules."""

import functools
import math

import torch

from ..registry import Decline, kernel
from ..storage import MS_DTYPE, broadcast, cast, constant, ms, read

P = ms.ops

FLOATING = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
WIDE = {torch.bfloat16: torch.float32}  # few primitives know bfloat16: it is computed in float32 and rounded once
WIDER = {**WIDE, torch.float16: torch.float32}  # for kernels of several primitives, and those inexact in float16


# ----------------------------------------------------------------------------------------------- operands and promotion


_cached = functools.lru_cache(1024)(constant)


def scalar(value, dtype):
    """The number `value` as a 0-dim `ms.Tensor` to compute with. Numbers repeat, and looking one up beats making it.

    Zeros are not looked up: the two of them are equal and not the same. Neither may a kernel return a scalar.
    """
    return _cached(value, dtype) if value else constant(value, dtype)


def operand(x, dtype):
    """x (a device tensor, a 0-dim host tensor or a Python number) as an `ms.Tensor` of the torch dtype `dtype`."""
    if isinstance(x, torch.Tensor):
        if x.dim() == 0 and x.device.type == "cpu":
            return scalar(x.item(), dtype)
        return cast(read(x), dtype)
    return scalar(x, dtype)


def promoted(*xs):
    """torch's result type of the operands."""
    if all(isinstance(x, torch.Tensor) and x.dtype is xs[0].dtype for x in xs):
        return xs[0].dtype
    dtype = torch.result_type(xs[0], xs[1])
    for x in xs[2:]:
        dims = max(getattr(x, "ndim", 0) for x in xs)
        dtype = torch.result_type(torch.empty((1,) * dims, dtype=dtype, device="meta"), x)
    return dtype


def to_float(dtype):
    """Integers and bools compute in the default float type."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def pair(x, y, dtype=None):
    """(x, y, dtype) promoted; the common case of two device tensors of one dtype takes no detour."""
    if dtype is None and isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype is y.dtype:
        if x.device.type == y.device.type == "mindspore":
            return read(x), read(y), x.dtype
    dtype = dtype or torch.result_type(x, y)
    return operand(x, dtype), operand(y, dtype), dtype


def compute(fn, dtype, *xs, wide=WIDE):
    """fn over the operands xs as `dtype`, giving `dtype`; the small floats in `wide` compute in what it says."""
    to = wide.get(dtype)
    if to is None:
        return fn(*[operand(x, dtype) for x in xs])
    return cast(fn(*[cast(operand(x, dtype), to) for x in xs]), dtype)


def decline_complex(dtype):
    if dtype.is_complex:
        raise Decline("no complex kernel")


def isnan(v):
    """Where v is NaN: a comparison is the fastest test."""
    return _NE(v, v)


# ------------------------------------------------------------------------------------------ where primitives fall short

_EXP, _POW, _TANH, _ADD, _MUL, _SUB, _DIV = P.Exp(), P.Pow(), P.Tanh(), P.Add(), P.Mul(), P.Sub(), P.RealDiv()
_ABS, _SQUARE, _TRUNC, _RINT, _LOG, _ERF = P.Abs(), P.Square(), P.Trunc(), P.Rint(), P.Log(), P.Erf()
_NE, _EQ, _LESS, _NOT, _OR, _AND = P.NotEqual(), P.Equal(), P.Less(), P.LogicalNot(), P.LogicalOr(), P.LogicalAnd()
_DIV_NO_NAN, _RECIPROCAL, _MAXIMUM, _INVERT = P.DivNoNan(), P.Reciprocal(), P.Maximum(), P.Invert()

ONE, TWO, HALF, E = (constant(v, torch.float32) for v in (1, 2, 0.5, math.e))
_EXP_BY_POW = 4096  # elements up to which Pow, forty times slower per element, costs no more than the call


def exp(v):
    """float32 Exp is off by 3e-6 (2e-5 at the ends of its range), Pow by 3e-7: small values take the better one."""
    return _POW(E, v) if v.dtype == ms.float32 and v.size <= _EXP_BY_POW else _EXP(v)


def tanh(v):
    """float32 Tanh is off by 1e-4 between 2.5 and 5, and good below: tanh 2x = 2t / (1 + t^2) with t = tanh x."""
    if v.dtype != ms.float32:
        return _TANH(v)
    t = _TANH(_MUL(v, HALF))
    return _DIV(_ADD(t, t), _ADD(_SQUARE(t), ONE))


def relu(v):
    """ReLU makes 0 of NaN; Maximum answers its second operand when the comparison fails."""
    return _MAXIMUM(constant(0, torch.float32), v) if v.dtype == ms.float32 else _MAXIMUM(P.ZerosLike()(v), v)


def _in_double(fn):
    """fn computed in float64 whatever the float type is: its float32 primitives are not good enough."""

    def run(v):
        if v.dtype == ms.float64:
            return fn(v)
        return P.Cast()(fn(P.Cast()(v, ms.float64)), v.dtype)

    return run


def _scaled_log(base):
    factor = constant(1 / math.log(base), torch.float64)
    return _in_double(lambda v: _MUL(_LOG(v), factor))


def _d(value):
    return constant(value, torch.float64)


@_in_double
def erfinv(v):
    """Erfinv is off by 1 % near +-1. Winitzki's formula is off by 0.2 % at most, and Newton steps on Erf mend that.

    At +-1 the formula is infinite, where both differences of a step are 0: 0 / 0 has to be 0.
    """
    half_log = _MUL(_LOG(_SUB(_d(1), _SQUARE(v))), _d(0.5))
    t = _ADD(half_log, _d(2 / (math.pi * 0.147)))
    root = P.Sqrt()(_SUB(_SQUARE(t), _MUL(half_log, _d(2 / 0.147))))
    y = _MUL(P.Sign()(v), P.Sqrt()(_SUB(root, t)))
    for _ in range(3):
        slope = _MUL(_EXP(P.Neg()(_SQUARE(y))), _d(2 / math.sqrt(math.pi)))
        y = _SUB(y, _DIV_NO_NAN(_SUB(_ERF(y), v), slope))
    return y


@_in_double
def digamma(v):
    """The asymptotic series behind seven steps of recurrence; below 1/2 by reflection. Digamma is off by 1e-5."""
    low = _LESS(v, _d(0.5))
    y, steps = P.Select()(low, _SUB(_d(1), v), v), None
    for _ in range(7):
        step = _RECIPROCAL(y)
        steps, y = step if steps is None else _ADD(steps, step), _ADD(y, _d(1))
    w, series = _RECIPROCAL(_SQUARE(y)), _d(1 / 132)
    for coefficient in (1 / 240, 1 / 252, 1 / 120, 1 / 12):
        series = _SUB(_d(coefficient), _MUL(w, series))
    psi = _SUB(_SUB(_SUB(_LOG(y), _MUL(_RECIPROCAL(y), _d(0.5))), _MUL(w, series)), steps)
    reflected = _SUB(psi, _DIV(_d(math.pi), P.Tan()(_MUL(_SUB(v, _TRUNC(v)), _d(math.pi)))))
    pole = _AND(_EQ(v, _TRUNC(v)), _LESS(v, _d(0)))
    psi = P.MaskedFill()(P.Select()(low, reflected, psi), pole, _d(math.nan))
    at_zero = P.Neg()(_RECIPROCAL(v))  # infinite, with the sign that torch gives it
    return P.Select()(_EQ(v, _d(0)), at_zero, psi)


def signbit(v):
    """Whether v is negative; of zeros, the sign shows in the reciprocal."""
    zero = P.ZerosLike()(v)
    return _OR(_LESS(v, zero), _AND(_EQ(v, zero), _LESS(_RECIPROCAL(v), zero)))


# ---------------------------------------------------------------------------------------------------------------- unary

SAME = {
    "neg": P.Neg(),
    "relu": relu,
    "bitwise_not": lambda v: (_NOT if v.dtype == ms.bool_ else _INVERT)(v),
}  # every dtype
REAL = {"abs": _ABS, "sign": P.Sign(), "sgn": P.Sign()}  # every dtype but complex
FLOAT = {  # integers become float
    "exp": exp, "log": _LOG, "log1p": P.Log1p(), "expm1": P.Expm1(), "sqrt": P.Sqrt(), "rsqrt": P.Rsqrt(),
    "sin": P.Sin(), "cos": P.Cos(), "tan": P.Tan(), "asin": P.Asin(), "acos": P.ACos(), "atan": P.Atan(),
    "sinh": P.Sinh(), "cosh": P.Cosh(), "asinh": P.Asinh(), "acosh": P.Acosh(), "atanh": P.Atanh(), "tanh": tanh,
    "sigmoid": P.Sigmoid(), "erf": _ERF, "erfc": P.Erfc(), "reciprocal": _RECIPROCAL, "sinc": P.Sinc(),
    "lgamma": P.Lgamma(), "digamma": digamma, "erfinv": erfinv, "log2": _scaled_log(2), "log10": _scaled_log(10),
    "exp2": lambda v: _POW(_d(2) if v.dtype == ms.float64 else TWO, v),
}  # fmt: skip
INEXACT = {"sinc", "exp2", "log1p"}  # in float16
ROUNDING = {"floor": P.Floor(), "ceil": P.Ceil(), "trunc": _TRUNC, "round": _RINT}  # integers unchanged
NARROW = {torch.int16, torch.int8, torch.uint8}  # integers that Sign does not know


def _unary(name, fn, mode):
    @kernel(name, layout=True)
    def unary(x):
        dtype = x.dtype
        if dtype is torch.float32:
            return fn(read(x))
        if mode is REAL:
            decline_complex(dtype)
            if dtype in NARROW and name != "abs":
                return cast(fn(cast(read(x), torch.int32)), dtype)
        if dtype is torch.bool and mode is not FLOAT:
            if name in ("sign", "sgn"):
                return read(x)
            if name != "bitwise_not":
                raise Decline("not for bools")
        if not dtype.is_floating_point and not dtype.is_complex:
            if mode is ROUNDING:
                return read(x)
            if mode is FLOAT:
                dtype = torch.get_default_dtype()
        return compute(fn, dtype, x, wide=WIDER if name in INEXACT else WIDE)


for _mode in (SAME, REAL, FLOAT, ROUNDING):
    for _name, _fn in _mode.items():
        _unary(_name, _fn, _mode)


@kernel("frac", layout=True)
def frac(x):
    if not x.dtype.is_floating_point:
        raise Decline("frac is for floats")
    return compute(lambda v: _SUB(v, _TRUNC(v)), x.dtype, x)


@kernel("round.decimals", layout=True)
def round_decimals(x, decimals=0):
    if not x.dtype.is_floating_point:
        raise Decline("round with decimals is for floats")
    ten = constant(10 ** abs(decimals), WIDER.get(x.dtype, x.dtype))
    if decimals >= 0:
        return compute(lambda v: _DIV(_RINT(_MUL(v, ten)), ten), x.dtype, x, wide=WIDER)
    return compute(lambda v: _MUL(_RINT(_DIV(v, ten)), ten), x.dtype, x, wide=WIDER)


@kernel("isnan", layout=True)
def isnan_kernel(x):
    return isnan(operand(x, WIDE.get(x.dtype, x.dtype)))


@kernel("isinf", layout=True)
def isinf(x):
    decline_complex(x.dtype)
    if not x.dtype.is_floating_point:
        return constant(False, torch.bool, tuple(x.shape))
    return P.IsInf()(operand(x, WIDE.get(x.dtype, x.dtype)))


@kernel("signbit", layout=True)
def signbit_kernel(x):
    decline_complex(x.dtype)
    if x.dtype is torch.bool:
        return constant(False, torch.bool, tuple(x.shape))
    if not x.dtype.is_floating_point:
        return _LESS(read(x), constant(0, x.dtype))
    return signbit(operand(x, WIDE.get(x.dtype, x.dtype)))


@kernel("logical_not", layout=True)
def logical_not(x):
    return _NOT(as_bool(x))


def as_bool(x):
    """x != 0: the way from any dtype to bool that costs no Cast, and calls NaN true."""
    if isinstance(x, torch.Tensor) and x.dtype is not torch.bool:
        wide = WIDE.get(x.dtype, x.dtype)
        return _NE(operand(x, wide), constant(0, wide))
    return operand(x, torch.bool)


# ----------------------------------------------------------------------------------------------------------------- fill


@kernel("fill.Scalar", "fill.Tensor", layout=True)
def fill(x, value):
    if isinstance(value, torch.Tensor):
        if value.dim():
            raise Decline("torch fills with 0-dim tensors only")
        if value.device.type == "mindspore":
            return broadcast(cast(read(value), x.dtype), tuple(x.shape))
        value = value.item()
    return constant(value, x.dtype, tuple(x.shape))


@kernel("zero", layout=True)
def zero(x):
    return constant(0, x.dtype, tuple(x.shape))


__all__ = ["FLOATING", "MS_DTYPE", "math", "operand", "pair", "promoted", "to_float"]
