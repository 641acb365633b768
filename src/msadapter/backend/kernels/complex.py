"""Complex numbers: making them, their parts and directions. Also `equal`, which answers with a Python bool."""

import math

import torch

from .. import fallback
from ..registry import Decline, aten, in_place, kernel, raw
from ..storage import TORCH_DTYPE, cast, constant, ms, read, resize_output, wrap, wrap_strided, write
from .pointwise import compute, isnan, operand, to_float

P = ms.ops

_COMPLEX, _CONJ, _POLAR, _ANGLE, _ZEROS = P.Complex(), P.Conj(), P.Polar(), P.Angle(), P.ZerosLike()
_SELECT, _LESS, _EQUAL, _ALL = P.Select(), P.Less(), P.Equal(), P.ReduceAll()


def _parts(op, a, b):
    if a.dtype is not b.dtype or a.dtype not in (torch.float32, torch.float64):
        raise Decline("parts that torch does not join, or complex32")
    return op(read(a), read(b))


@kernel("complex", layout=True)
def complex_kernel(real, imag):
    shape = torch.broadcast_shapes(real.shape, imag.shape)
    return _parts(_COMPLEX, real.expand(shape), imag.expand(shape))


_complex_out = in_place("complex.out")


@raw("complex.out")
def complex_out(real, imag, *, out):
    if out.dtype is not real.dtype.to_complex():  # elsewhere torch converts to the dtype of out=; not here
        return fallback.run(aten.complex.out, (real, imag), {"out": out})
    return _complex_out(real, imag, out=out)


@kernel("polar", layout=True)
def polar(abs, angle):
    shape = torch.broadcast_shapes(abs.shape, angle.shape)
    return _parts(_POLAR, abs.expand(shape), angle.expand(shape))


# --------------------------------------------------------------------------------------------------------- conjugation


def _conjugate(x):
    return _CONJ(read(x)) if x.dtype.is_complex and x.numel() else read(x)


@kernel("_conj_physical", layout=True)
def conj_physical(x):
    return _conjugate(x)


# torch makes the functional op of `_conj_physical`, and these two reach us under their own names.


@raw("conj_physical_")
def conj_physical_(x):
    if x.dtype.is_complex:
        write(x, _conjugate(x))
    return x


@raw("conj_physical.out")
def conj_physical_out(x, *, out):
    if not torch.can_cast(x.dtype, out.dtype):
        return fallback.run(aten.conj_physical.out, (x,), {"out": out})
    v = _conjugate(x)
    if resize_output(out, x.shape) and not x.is_contiguous():
        aten.as_strided_(out, x.shape, torch.empty_like(x, device="meta").stride())
    write(out, cast(v, out.dtype))
    return out


# ------------------------------------------------------------------------------------------------------ size and angle


_abs_ = in_place("abs_")


@raw("abs_")
def abs_(x):
    if x.dtype.is_complex:  # a real result, which could be converted
        return fallback.run(aten.abs_.default, (x,), {})
    return _abs_(x)


def _contiguous_if_complex(op, args, kwargs, v):
    x = args[0]
    if x.dtype.is_complex or x.is_contiguous():
        return wrap(v)
    return wrap_strided(v, fallback.on_meta(op, args, kwargs).stride())


@kernel("angle", layout=_contiguous_if_complex)
def angle(x):
    if x.dtype.is_complex:
        return _ANGLE(read(x)) if x.numel() else constant(0, x.dtype.to_real(), tuple(x.shape))
    return compute(_angle_of_real, to_float(x.dtype), x)


def _angle_of_real(v):
    zeros = _ZEROS(v)
    return _SELECT(isnan(v), v, _SELECT(_LESS(v, zeros), constant(math.pi, TORCH_DTYPE[v.dtype], v.shape), zeros))


# ------------------------------------------------------------------------------------------------------------ equality


@raw("equal")
def equal(x, y):
    if x.dtype is not y.dtype or x.device != y.device:
        return fallback.run(aten.equal.default, (x, y), {})
    if x.shape != y.shape:
        return False
    if not x.numel():
        return True
    wide = torch.float32 if x.dtype is torch.bfloat16 else x.dtype
    return bool(_ALL(_EQUAL(operand(x, wide), operand(y, wide))).asnumpy())
