"""Arithmetic of two and three operands, pointwise."""

import numpy as np
import torch
from mindspore.ops.auto_generate import gen_ops_prim as prim

from .. import fallback
from ..elementary import divide, log
from ..registry import Decline, aten, kernel, raw
from ..storage import cast, constant, ms, read, write
from ..tracing import recording
from .pointwise import (
    WIDE,
    WIDER,
    compute,
    decline_complex,
    has_nan,
    isnan,
    operand,
    pair,
    promoted,
    scalar,
    signbit,
    tiled,
    to_float,
)

P = ms.ops

_ADD, _SUB, _MUL, _DIV, _POW, _SQUARE = P.Add(), P.Sub(), P.Mul(), P.RealDiv(), P.Pow(), P.Square()
_ADD_SCALED, _SUB_SCALED = prim.AddExt(), prim.SubExt()  # x +- alpha y in one call
_MAXIMUM, _MINIMUM, _FMAX, _NEG, _ABS = P.Maximum(), P.Minimum(), P.Fmax(), P.Neg(), P.Abs()
_AND, _OR, _XOR, _NOT = P.LogicalAnd(), P.LogicalOr(), P.LogicalXor(), P.LogicalNot()
_EQ, _NE, _LESS = P.Equal(), P.NotEqual(), P.Less()
_SELECT, _MASKED_FILL = P.Select(), P.MaskedFill()
_TRUNCATE_MOD, _C_MOD, _FLOOR_MOD = P.TruncateMod(), P.Mod(), P.FloorMod()
_FLOOR_DIV, _INT_DIV = P.FloorDiv(), P.TruncateDiv()
_TRUNC, _FLOOR, _RINT, _GE = P.Trunc(), P.Floor(), P.Rint(), P.GreaterEqual()


# ----------------------------------------------------------------------------------------------------------- arithmetic


def add_scaled(a, b, alpha, dtype):
    """a + alpha b. AddExt would round alpha to float32, so float64 multiplies first."""
    a, b = tiled(a, b)
    if alpha == 1:
        return _ADD(a, b)
    if dtype is torch.float64 or recording() and dtype is torch.float32:  # in a graph alpha may be an input
        return _ADD(a, _MUL(b, scalar(alpha, dtype)))
    return _ADD_SCALED(a, b, alpha)


def sub_scaled(a, b, alpha, dtype):
    if alpha == 1 and dtype not in WIDE:  # Sub does not know bfloat16, SubExt does
        return _SUB(a, b)
    if dtype is torch.float64 or recording() and dtype is torch.float32:
        return _SUB(a, _MUL(b, scalar(alpha, dtype)))
    return _SUB_SCALED(a, b, alpha)


def _check_alpha(alpha, dtype):
    if isinstance(alpha, float) and not dtype.is_floating_point and not dtype.is_complex:
        raise Decline("alpha must be an integer")


@kernel("add.Tensor", "add.Scalar", layout=True, direct=_ADD)
def add(x, y, alpha=1):
    a, b, dtype = pair(x, y)
    if alpha != 1:
        _check_alpha(alpha, dtype)
    if dtype is torch.bool:
        return _OR(a, b) if alpha else _OR(a, scalar(False, dtype))
    return add_scaled(a, b, alpha, dtype)


def _no_bool(x):
    if isinstance(x, bool) or (isinstance(x, torch.Tensor) and x.dtype is torch.bool):
        raise Decline("torch does not subtract bools")


@kernel("sub.Tensor", "sub.Scalar", layout=True, direct=_SUB)
def sub(x, y, alpha=1):
    _no_bool(x), _no_bool(y)
    a, b, dtype = pair(x, y)
    if alpha != 1:
        _check_alpha(alpha, dtype)
    return sub_scaled(a, b, alpha, dtype)


@kernel("rsub.Tensor", "rsub.Scalar", layout=True)
def rsub(x, y, alpha=1):
    _no_bool(x), _no_bool(y)
    a, b, dtype = pair(x, y)
    _check_alpha(alpha, dtype)
    return sub_scaled(b, a, alpha, dtype)


@kernel("mul.Tensor", "mul.Scalar", layout=True, direct=_MUL)
def mul(x, y):
    if not _same(x, y) and (dtype := promoted(x, y)) in WIDER:
        return _wide_scalar(_MUL, dtype, x, y)
    a, b, _ = pair(x, y)
    return _MUL(*tiled(a, b))


def _same(x, y):
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype is y.dtype


def _wide_scalar(fn, dtype, x, y):
    """torch's products and quotients of small floats take a scalar as it is, not rounded to the small type."""
    return cast(fn(operand(x, WIDER[dtype]), operand(y, WIDER[dtype])), dtype)


@kernel("div.Tensor", "div.Scalar", layout=True)
def div(x, y):
    dtype = to_float(promoted(x, y))
    if dtype in WIDER and not _same(x, y):
        return _wide_scalar(divide, dtype, x, y)
    return compute(divide, dtype, x, y)


def _floats(dtype):
    """Whether `dtype` divides as floats do; integers must not divide by zero, complex numbers have no remainder."""
    decline_complex(dtype)
    if dtype is torch.bool:
        raise Decline("no division of bools")
    return dtype.is_floating_point


def _integers(primitive, exact):
    """Integer division: MindSpore divides in float64, so int64 beyond that takes the exact way. None divides by zero."""

    def divide(a, b):
        if not b.asnumpy().all():
            raise Decline("ZeroDivisionError")
        if a.dtype == ms.int64 and any(v.size and _magnitude(v) > 1 << 53 for v in (a, b)):
            return exact(a, b, *_divided(a, b))
        return primitive(a, b)

    return divide


def _magnitude(v):
    return max(int(v.asnumpy().max()), -int(v.asnumpy().min()))


def _divided(a, b):
    """(quotient, remainder) of a / b rounded down: an inexact quotient leaves a smaller remainder to divide."""
    quotient, rest = _SUB(a, a), a
    for _ in range(3):
        q = _INT_DIV(rest, b)
        quotient, rest = _ADD(quotient, q), _SUB(rest, _MUL(q, b))
    for wrong, step in ((_fix_sign, -1), (lambda r, b: _GE(_ABS(r), _ABS(b)), 1)):
        where = wrong(rest, b)
        fix = _MASKED_FILL(_SUB(quotient, quotient), where, scalar(step, torch.int64))
        quotient, rest = _ADD(quotient, fix), _SUB(rest, _MUL(fix, b))
    return quotient, rest


def _toward_zero(a, b, rest):
    """Where division rounded down and away from zero: something is left and the signs of a and b differ."""
    zero = P.ZerosLike()(a)
    return _AND(_NE(rest, zero), _NE(_LESS(a, zero), _LESS(b, zero)))


def _fix_sign(m, b):
    """Where the remainder m of truncated division has the other sign than the divisor b."""
    zero = P.ZerosLike()(m)
    return _AND(_NE(m, zero), _NE(_LESS(b, zero), _LESS(m, zero)))


def _float_remainder(a, b):
    m = _TRUNCATE_MOD(a, b)
    return _SELECT(_fix_sign(m, b), _ADD(m, b), m)


def _float_floor_divide(a, b):
    """As Python does: the quotient of what fmod leaves, one less where the signs differ; a / b when b is 0."""
    m = _TRUNCATE_MOD(a, b)
    q = _DIV(_SUB(a, m), b)
    q = _RINT(_SELECT(_fix_sign(m, b), _SUB(q, P.OnesLike()(q)), q))
    zero, exact = P.ZerosLike()(q), divide(a, b)
    q = _SELECT(_EQ(q, zero), _MUL(exact, zero), q)  # a zero with the quotient's sign
    return _SELECT(_EQ(b, P.ZerosLike()(b)), exact, q)


def _division(names, float_fn, int_fn):
    @kernel(*names, layout=True)
    def divide(x, y):
        dtype = promoted(x, y)
        if _floats(dtype):
            return compute(float_fn, dtype, x, y, wide=WIDER)
        return int_fn(operand(x, dtype), operand(y, dtype))

    return divide


_floor_mod = _integers(_FLOOR_MOD, lambda a, b, q, r: r)
_c_mod = _integers(_C_MOD, lambda a, b, q, r: _SELECT(_toward_zero(a, b, r), _SUB(r, b), r))
_floor_div = _integers(_FLOOR_DIV, lambda a, b, q, r: q)
_int_div = _integers(_INT_DIV, lambda a, b, q, r: _SELECT(_toward_zero(a, b, r), _ADD(q, scalar(1, torch.int64)), q))

_division(("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"), _float_remainder, _floor_mod)
_division(("fmod.Tensor", "fmod.Scalar"), _TRUNCATE_MOD, _c_mod)
_floor_divide = _division(("floor_divide", "floor_divide.Scalar"), _float_floor_divide, _floor_div)


@raw("floor_divide_.Tensor")
def floor_divide_(x, y):
    try:
        v = _floor_divide(x, y)
        if v.shape != tuple(x.shape) or not torch.can_cast(promoted(x, y), x.dtype):
            raise Decline("the result does not fit its in-place target")
    except Exception as error:
        return fallback.run(aten.floor_divide_.Tensor, (x, y), {}, error)
    write(x, v)
    return x


@kernel("div.Tensor_mode", "div.Scalar_mode", layout=True)
def div_mode(x, y, rounding_mode=None):
    if rounding_mode is None:
        return div(x, y)
    if rounding_mode == "floor":
        return _floor_divide(x, y)
    dtype = promoted(x, y)
    if _floats(dtype):
        return compute(lambda a, b: _TRUNC(divide(a, b)), dtype, x, y, wide=WIDER)
    return _int_div(operand(x, dtype), operand(y, dtype))


_POWERS = {  # exponents that need no Pow, which is slow
    1: lambda v: _MUL(v, P.OnesLike()(v)), 2: _SQUARE, 3: lambda v: _MUL(_SQUARE(v), v), 0.5: P.Sqrt(),
    -1: P.Reciprocal(), -2: lambda v: P.Reciprocal()(_SQUARE(v)), -0.5: P.Rsqrt(),
}  # fmt: skip


def _exact_power(base, exponent):
    """MindSpore computes integer powers in float64: refuse what that cannot hold."""
    with np.errstate(over="ignore"):
        power = np.power(base.asnumpy().astype(np.float64), exponent)
    if power.size and np.abs(power).max() > 1 << 53:
        raise Decline("MindSpore computes integer powers as float64")


@kernel("pow.Tensor_Scalar", layout=True)
def pow_scalar(x, exponent):
    dtype = promoted(x, exponent)
    floats = dtype.is_floating_point or dtype.is_complex
    if exponent == 0:
        return constant(1, dtype, tuple(x.shape))
    if dtype is torch.bool or (not floats and exponent < 0):
        raise Decline("integers to negative powers")
    if not floats and exponent not in _POWERS:
        _exact_power(operand(x, dtype), exponent)
    if exponent in _POWERS and (floats or exponent > 0) and not dtype.is_complex:
        return compute(_POWERS[exponent], dtype, x, wide=WIDER)
    return compute(_POW, dtype, x, exponent, wide=WIDER)


@kernel("pow.Tensor_Tensor", "pow.Scalar", layout=True)
def power(x, y):
    dtype = promoted(x, y)
    if dtype is torch.bool:
        raise Decline("pow of bools")
    if not dtype.is_floating_point and not dtype.is_complex and y.dtype is not torch.bool:
        v = read(y).asnumpy() if y.device.type == "mindspore" else y.numpy()
        if (v < 0).any():
            raise Decline("integers to negative powers")
        _exact_power(operand(x, dtype), v)
    return compute(_POW, dtype, x, y, wide=WIDER)


# ----------------------------------------------------------------------------------------------------- extrema, special


def _extremum(primitive):
    def extremum(a, b):
        """Maximum(a, b) is a > b ? a : b, which forgets a NaN in a. It does not broadcast empty tensors."""
        if not a.size or not b.size:
            return _ADD(a, b)
        a, b = tiled(a, b)
        out = primitive(a, b)
        return _SELECT(isnan(a), a, out) if a.dtype in _MS_FLOATS and has_nan(a) else out

    return extremum


maximum, minimum = _extremum(_MAXIMUM), _extremum(_MINIMUM)


_MS_FLOATS = (ms.float32, ms.float64, ms.float16)


def _fmax(a, b):
    return _FMAX(a, b) if a.dtype in _MS_FLOATS else _MAXIMUM(a, b)


def _fmin(a, b):
    return _NEG(_FMAX(_NEG(a), _NEG(b))) if a.dtype in _MS_FLOATS else _MINIMUM(a, b)


def _xlogy(a, b):
    """0 where a is 0, whatever the logarithm is, unless b is NaN."""
    zero = P.ZerosLike()(a)
    product = _MUL(a, log(b))
    return _SELECT(_AND(_EQ(a, zero), _NOT(isnan(b))), zero, product)


def _copysign(a, b):
    magnitude = _ABS(a)
    return _SELECT(signbit(b), _NEG(magnitude), magnitude)


def _on_bools(fn, for_bool):
    return lambda a, b: (for_bool if a.dtype == ms.bool_ else fn)(a, b)


BINARY = {  # names: (function, do integers become float)
    ("maximum",): (_on_bools(maximum, _OR), False),
    ("minimum",): (_on_bools(minimum, _AND), False),
    ("fmax",): (_on_bools(_fmax, _OR), False),
    ("fmin",): (_on_bools(_fmin, _AND), False),
    ("atan2",): (P.Atan2(), True),
    ("hypot",): (P.Hypot(), False),
    ("copysign.Tensor", "copysign.Scalar"): (_copysign, True),
    ("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other"): (_xlogy, True),
    ("gcd",): (P.Gcd(), False),
    **{
        (f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar", f"bitwise_{name}.Scalar_Tensor"): (fn, False)
        for name, fn in {"and": P.BitwiseAnd(), "or": P.BitwiseOr(), "xor": P.BitwiseXor()}.items()
    },
}


def _binary(names, fn, float_result):
    @kernel(*names, layout=True)
    def binary(x, y):
        dtype = promoted(x, y)
        decline_complex(dtype)
        to = to_float(dtype) if float_result else dtype
        return compute(lambda a, b: fn(*tiled(a, b)), to, x, y, wide=WIDER)


for _names, _entry in BINARY.items():
    _binary(_names, *_entry)


def _shift(name, symbol, primitive):
    @kernel(f"bitwise_{name}_shift.Tensor", f"bitwise_{name}_shift.Tensor_Scalar",
            f"bitwise_{name}_shift.Scalar_Tensor", f"{symbol}.Scalar", f"{symbol}.Tensor", layout=True)  # fmt: skip
    def shift(x, y):
        dtype = promoted(x, y)
        a, b = operand(x, dtype), operand(y, dtype)
        n = b.asnumpy()
        if ((n < 0) | (n >= 8 * dtype.itemsize)).any():
            raise Decline("a shift by more than the width")
        return primitive(a, b)


_shift("left", "__lshift__", P.LeftShift())
_shift("right", "__rshift__", P.RightShift())


# ------------------------------------------------------------------------------------------------------- three operands


@kernel("lerp.Scalar", layout=True)
def lerp_scalar(start, end, weight):
    """From the nearer end, as torch does. The primitive Lerp is slow on large tensors."""
    _same_dtype(start, end)
    dtype, wide = start.dtype, WIDER.get(start.dtype, start.dtype)

    def fn(a, b):
        step = _SUB(b, a)
        near = weight < 0.5
        return add_scaled(a, step, weight, wide) if near else sub_scaled(b, step, 1 - weight, wide)

    return compute(fn, dtype, start, end, wide=WIDER)


@kernel("lerp.Tensor", layout=True)
def lerp_tensor(start, end, weight):
    _same_dtype(start, end)
    if weight.dim() == 0 and weight.device.type == "cpu":
        return lerp_scalar(start, end, weight.item())
    _same_dtype(start, weight)

    def fn(a, b, w):
        step = _SUB(b, a)
        from_start = _ADD(a, _MUL(step, w))
        rest = _SUB(P.OnesLike()(w), w)
        near = _LESS(w, scalar(0.5, WIDER.get(start.dtype, start.dtype)))
        return _SELECT(near, from_start, _SUB(b, _MUL(step, rest)))

    return compute(fn, start.dtype, start, end, weight, wide=WIDER)


def _same_dtype(x, y):
    if x.dtype is not y.dtype or not x.dtype.is_floating_point:
        raise Decline("lerp of different or integer dtypes")


@kernel("addcmul", layout=True)
def addcmul(x, a, b, value=1):
    dtype = promoted(x, a, b)
    _check_alpha(value, dtype)
    if dtype is torch.bool:
        raise Decline("addcmul of bools")
    wide = WIDER.get(dtype, dtype)
    return compute(lambda x, a, b: add_scaled(x, _MUL(*tiled(a, b)), value, wide), dtype, x, a, b, wide=WIDER)


@kernel("addcdiv", layout=True)
def addcdiv(x, a, b, value=1):
    dtype = promoted(x, a, b)
    if not promoted(a, b).is_floating_point:
        raise Decline("addcdiv of integers")
    # In a graph the plain primitive: what an optimizer divides by is never a negative zero.
    wide, fn = WIDER.get(dtype, dtype), _DIV if dtype.is_complex or recording() else divide
    return compute(lambda x, a, b: add_scaled(x, fn(a, b), value, wide), dtype, x, a, b, wide=WIDER)
