"""Pointwise ops of one operand, and how pointwise ops read their operands: promotion by torch's rules."""

import functools
import math

import torch

from .. import elementary as E
from .. import fallback
from ..registry import Decline, aten, kernel, raw
from ..storage import MS_DTYPE, as_strided, broadcast, cast, constant, ms, read, write
from ..tracing import lasting, recording, traced

P = ms.ops

FLOATING = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
WIDE = {torch.bfloat16: torch.float32}  # few primitives know bfloat16: it is computed in float32 and rounded once
WIDER = {**WIDE, torch.float16: torch.float32}  # for kernels of several primitives, and those inexact in float16


# ----------------------------------------------------------------------------------------------- operands and promotion


_cached = functools.lru_cache(1024)(lambda value, dtype: lasting(constant(value, dtype)))


def scalar(value, dtype):
    """The number `value` as a 0-dim `ms.Tensor` to compute with. Numbers repeat, and looking one up beats making it.

    Zeros are not looked up: the two of them are equal and not the same. Neither may a kernel return a scalar.
    """
    return _cached(value, dtype) if value and not recording() else constant(value, dtype)


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


_TILE = P.Tile()
_LARGE = 8192  # elements of a result from which Tile and then one loop beat a loop that broadcasts


def tiled(a, b):
    """a and b for a primitive that broadcasts element by element: large ones in the shape of the result."""
    if a.shape == b.shape or a.size == 1 or b.size == 1 or a.dtype == ms.bfloat16:
        return a, b
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return (a, b) if math.prod(shape) < _LARGE else (_tile(a, shape), _tile(b, shape))


def _tile(v, shape):
    if v.shape == shape:
        return v
    padded = (1,) * (len(shape) - v.ndim) + v.shape
    return _TILE(v, tuple(n // m for n, m in zip(shape, padded)))


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


def has_nan(v):
    """Whether v has a NaN, or might: numpy's maximum, which is one, is found faster than anything with it is computed."""
    return traced(v) or bool(v.size) and math.isnan(v.asnumpy().max())


_ABS, _ADD, _MUL, _SUB, _DIV, _TRUNC, _RINT = P.Abs(), P.Add(), P.Mul(), P.Sub(), P.RealDiv(), P.Trunc(), P.Rint()
_NE, _EQ, _LESS, _NOT, _OR, _AND = P.NotEqual(), P.Equal(), P.Less(), P.LogicalNot(), P.LogicalOr(), P.LogicalAnd()
_RECIPROCAL, _INVERT = P.Reciprocal(), P.Invert()


def signbit(v):
    """Whether v is negative; of zeros, the sign shows in the reciprocal."""
    zero = P.ZerosLike()(v)
    return _OR(_LESS(v, zero), _AND(_EQ(v, zero), _LESS(_RECIPROCAL(v), zero)))


# ---------------------------------------------------------------------------------------------------------------- unary

SAME = {
    "neg": P.Neg(),
    "relu": E.relu,
    "bitwise_not": lambda v: (_NOT if v.dtype == ms.bool_ else _INVERT)(v),
}  # every dtype
REAL = {"abs": _ABS, "sign": P.Sign(), "sgn": P.Sign()}  # every dtype but complex
COMPLEX = {"abs": E.complex_abs, "sgn": P.Sign()}
FLOAT = {  # integers become float
    "exp": E.exp, "log": E.log, "log1p": E.log1p, "expm1": E.expm1, "sqrt": P.Sqrt(), "rsqrt": P.Rsqrt(),
    "sin": P.Sin(), "cos": P.Cos(), "tan": P.Tan(), "asin": P.Asin(), "acos": P.ACos(), "atan": P.Atan(),
    "sinh": P.Sinh(), "cosh": P.Cosh(), "asinh": P.Asinh(), "acosh": P.Acosh(), "atanh": P.Atanh(), "tanh": E.tanh,
    "sigmoid": E.sigmoid, "erf": P.Erf(), "erfc": E.erfc, "reciprocal": _RECIPROCAL, "sinc": P.Sinc(),
    "lgamma": P.Lgamma(), "digamma": E.digamma, "erfinv": E.erfinv, "log2": E.log2, "log10": E.log10, "exp2": E.exp2,
}  # fmt: skip
INEXACT = {"sinc"}  # in float16
ROUNDING = {"floor": P.Floor(), "ceil": P.Ceil(), "trunc": _TRUNC, "round": _RINT}  # integers unchanged
NARROW = {torch.int16, torch.int8, torch.uint8}  # integers that Sign does not know


def _unary(name, fn, mode):
    @kernel(name, layout=True, direct=fn)
    def unary(x):
        dtype = x.dtype
        if dtype is torch.float32:
            return fn(read(x))
        if mode is REAL:
            if dtype.is_complex and name in COMPLEX:
                if not x.numel():  # MindSpore has no kernel for those
                    return constant(0, dtype.to_real() if name == "abs" else dtype, tuple(x.shape))
                return COMPLEX[name](read(x))
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
        if value.dtype.is_complex and not x.dtype.is_complex:
            raise Decline("a complex value does not fit")
        if value.device.type == "mindspore":
            return broadcast(cast(read(value), x.dtype), tuple(x.shape))
        value = value.item()
    if isinstance(value, complex) and not x.dtype.is_complex:
        raise Decline("a complex value does not fit")
    return constant(value, x.dtype, tuple(x.shape))


@raw("fill_.Scalar", "fill_.Tensor")
def fill_(x, value):
    """One write is enough for elements that share memory, and allowed."""
    once = x
    if 0 in x.stride() and 0 not in x.shape:
        size = [1 if s == 0 else n for n, s in zip(x.shape, x.stride())]
        once = as_strided(x, size, x.stride(), x.storage_offset())
    try:
        v = fill(once, value)
    except Exception as error:
        op = aten.fill_.Tensor if isinstance(value, torch.Tensor) else aten.fill_.Scalar
        return fallback.run(op, (x, value), {}, error)
    write(once, v)
    return x


@kernel("zero", layout=True)
def zero(x):
    return constant(0, x.dtype, tuple(x.shape))


@raw("zero_")
def zero_(x):
    return fill_(x, 0)


__all__ = ["FLOATING", "MS_DTYPE", "math", "operand", "pair", "promoted", "to_float"]
