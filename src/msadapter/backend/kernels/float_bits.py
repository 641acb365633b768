"""`nextafter` and `frexp`: integer arithmetic on the bits of floats."""

import numpy as np
import torch

from .. import elementary as E
from ..registry import Decline, kernel
from ..storage import NP_DTYPE, broadcast, cast, constant, ms
from .pointwise import FLOATING, isnan, operand, pair

P = ms.ops
_SELECT, _LESS, _EQ, _SUB, _ADD, _OR, _AND = P.Select(), P.Less(), P.Equal(), P.Sub(), P.Add(), P.LogicalOr(), P.LogicalAnd()
_BIT_AND, _BIT_OR, _SHIFT, _MUL, _ABS = P.BitwiseAnd(), P.BitwiseOr(), P.RightShift(), P.Mul(), P.Abs()
_IS_INF = P.IsInf()

_INTEGER = {2: np.int16, 4: np.int32, 8: np.int64}
_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(v):
    """The bits of floats as integers of the same size."""
    return ms.Tensor.from_numpy(np.ascontiguousarray(v.asnumpy()).view(_INTEGER[v.itemsize]).reshape(v.shape))


def floats(v, dtype):
    """The other way."""
    return ms.Tensor.from_numpy(v.asnumpy().view(NP_DTYPE[dtype]).reshape(v.shape))


@kernel("nextafter", layout=True)
def nextafter(x, y):
    a, b, dtype = pair(x, y)
    if dtype not in FLOATING:
        raise Decline("only floats have neighbours")
    shape = tuple(torch.broadcast_shapes(a.shape, b.shape))
    if 0 in shape:
        return constant(0, dtype, shape)
    a, b = (v if v.shape == shape else broadcast(v, shape) for v in (a, b))
    if dtype is torch.bfloat16:
        unknown = _OR(*(isnan(cast(v, torch.float32)) for v in (a, b)))
    else:
        unknown = _OR(isnan(a), isnan(b))
    integer = _SIGNED[dtype.itemsize]
    low, zero, one = constant(torch.iinfo(integer).min, integer), constant(0, integer), constant(1, integer)

    def flip(v):  # between the bits of floats and integers in the same order; its own inverse, but for -0
        return _SELECT(_LESS(v, zero), _SUB(low, v), v)

    i, j = bits(a), bits(b)
    m, n = flip(i), flip(j)
    up, down = _LESS(m, n), _LESS(n, m)
    after = _SELECT(up, _ADD(m, one), _SUB(m, one))
    after = _SELECT(_AND(up, _EQ(after, zero)), low, flip(after))
    after = _SELECT(_OR(up, down), after, j)
    after = _SELECT(unknown, constant(int(_nan_bits(dtype)), integer), after)
    return floats(after, dtype)


def _nan_bits(dtype):
    return torch.tensor(float("nan"), dtype=dtype, device="cpu").view(_SIGNED[dtype.itemsize]).item()


_EXPONENT = constant(0x7FF, torch.int64)
_MANTISSA = constant(-1 - (0x7FF << 52), torch.int64)  # and the sign
_HALF = constant(1022 << 52, torch.int64)
_TINY, _SCALE, _ZERO = constant(2.0**-1022, torch.float64), constant(2.0**54, torch.float64), constant(0, torch.int64)


@kernel("frexp.Tensor", layout="input")
def frexp(x):
    if x.dtype not in FLOATING:
        raise Decline("only floats have an exponent")
    if not x.numel():
        return constant(0, x.dtype, tuple(x.shape)), constant(0, torch.int32, tuple(x.shape))
    v = operand(x, torch.float32 if x.dtype is torch.bfloat16 else x.dtype)
    v = v if x.dtype is torch.float64 else E.widen(v)
    tiny = _LESS(_ABS(v), _TINY)
    i = bits(_SELECT(tiny, _MUL(v, _SCALE), v))
    itself = _OR(_OR(_EQ(v, constant(0, torch.float64)), _IS_INF(v)), isnan(v))
    exponent = _SUB(_BIT_AND(_SHIFT(i, constant(52, torch.int64)), _EXPONENT), constant(1022, torch.int64))
    exponent = _SELECT(tiny, _SUB(exponent, constant(54, torch.int64)), exponent)
    mantissa = _SELECT(itself, v, floats(_BIT_OR(_BIT_AND(i, _MANTISSA), _HALF), torch.float64))
    if x.dtype is not torch.float64:
        mantissa = cast(E.narrow(mantissa, ms.float16 if x.dtype is torch.float16 else ms.float32), x.dtype)
    return mantissa, cast(_SELECT(itself, _ZERO, exponent), torch.int32)
