"""Pointwise ops that compare, combine truth values, select or clamp."""

import math

import torch

from ..registry import Decline, in_place, kernel, raw
from ..storage import as_strided, cast, constant, ms, read
from .binary import maximum, minimum
from .pointwise import WIDE, as_bool, compute, decline_complex, isnan, operand, pair, promoted, scalar, tiled

P = ms.ops

_EQ, _MAXIMUM, _MINIMUM, _SELECT, _MASKED_FILL = P.Equal(), P.Maximum(), P.Minimum(), P.Select(), P.MaskedFill()


# ------------------------------------------------------------------------------------------------- comparison and logic


def _compare(name, primitive):
    @kernel(f"{name}.Tensor", f"{name}.Scalar", layout=True)
    def compare(x, y):
        a, b, dtype = pair(x, y)
        if dtype in WIDE:
            a, b = cast(a, WIDE[dtype]), cast(b, WIDE[dtype])
        return primitive(*tiled(a, b))


for _name, _primitive in {
    "eq": _EQ, "ne": P.NotEqual(), "gt": P.Greater(), "ge": P.GreaterEqual(), "lt": P.Less(), "le": P.LessEqual()
}.items():  # fmt: skip
    _compare(_name, _primitive)


def _logical(name, primitive):
    @kernel(f"logical_{name}", layout=True)
    def logical(x, y):
        return primitive(*tiled(as_bool(x), as_bool(y)))


for _name, _primitive in {"and": P.LogicalAnd(), "or": P.LogicalOr(), "xor": P.LogicalXor()}.items():
    _logical(_name, _primitive)


# ------------------------------------------------------------------------------------------------------------ selection


@kernel("where.self", layout=True)
def where(condition, x, y):
    if condition.dtype is not torch.bool:
        raise Decline("the condition is not bool")
    mask = operand(condition, torch.bool)
    return compute(lambda a, b: _SELECT(mask, a, b), promoted(x, y), x, y)


def _category(dtype):
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else dtype is not torch.bool


@kernel("masked_fill.Scalar", "masked_fill.Tensor", layout=True)
def masked_fill(x, mask, value):
    if mask.dtype is not torch.bool:
        raise Decline("the mask is not bool")
    if isinstance(value, torch.Tensor):
        if value.dim() or _category(value.dtype) > _category(x.dtype):
            raise Decline("a value that does not fit")
    elif _category(torch.result_type(x, value)) > _category(x.dtype):
        raise Decline("a value that does not fit")
    if not mask.numel():  # MaskedFill does not broadcast empty tensors
        return constant(0, x.dtype, tuple(torch.broadcast_shapes(x.shape, mask.shape)))
    return compute(lambda a, v: _MASKED_FILL(a, operand(mask, torch.bool), v), x.dtype, x, value)


def _fill_repeated(name):
    """On an expanded tensor, which torch still allows: elements that share memory are filled if any of them is chosen."""

    @raw(name)
    def fill(x, mask, value):
        repeated = [d for d, (n, s) in enumerate(zip(x.shape, x.stride())) if n > 1 and s == 0]
        if not repeated or mask.dtype is not torch.bool:
            return in_place(name)(x, mask, value)
        size = [1 if d in repeated else n for d, n in enumerate(x.shape)]
        once = as_strided(x, size, x.stride(), x.storage_offset())
        once.masked_fill_(mask.expand(x.shape).sum(repeated, keepdim=True).ne(0), value)
        return x


for _name in ("masked_fill_.Scalar", "masked_fill_.Tensor"):
    _fill_repeated(_name)


@kernel("clamp", layout=True)
def clamp(x, min=None, max=None):
    dtype = x.dtype
    for bound in (min, max):
        if bound is not None:
            if bound != bound or isinstance(bound, complex):
                raise Decline("a bound that is NaN")
            dtype = torch.promote_types(dtype, torch.result_type(x, bound))
    decline_complex(dtype)
    if dtype is torch.bool or (min is None and max is None):
        raise Decline("nothing to clamp")
    return compute(lambda v: clamped(v, min, max, WIDE.get(dtype, dtype)), dtype, x)


def clamped(v, low, high, dtype):
    """v between the numbers low and high; as the second operand, v hands on its NaN."""
    if low is not None:
        v = _MAXIMUM(scalar(_within(low, dtype), dtype), v)
    return _MINIMUM(scalar(_within(high, dtype), dtype), v) if high is not None else v


def _within(bound, dtype):
    """The bound, at most what dtype can hold."""
    if dtype.is_floating_point or -(2**31) < bound < 2**31:
        return bound
    info = torch.iinfo(dtype)
    return min(max(bound, info.min), info.max)


@kernel("clamp_min", layout=True)
def clamp_min(x, min):
    return clamp(x, min)


@kernel("clamp_max", layout=True)
def clamp_max(x, max):
    return clamp(x, None, max)


@kernel("clamp.Tensor", layout=True)
def clamp_tensor(x, min=None, max=None):
    bounds = [b for b in (min, max) if b is not None]
    dtype = promoted(x, *bounds)
    decline_complex(dtype)
    if dtype is torch.bool or not bounds:
        raise Decline("nothing to clamp")

    def fn(v, *bounds):
        bounds = list(bounds)
        if min is not None:
            v = maximum(bounds.pop(0), v)
        return minimum(bounds.pop(0), v) if max is not None else v

    return compute(fn, dtype, x, *bounds)


@kernel("clamp_min.Tensor", layout=True)
def clamp_min_tensor(x, min):
    return clamp_tensor(x, min)


@kernel("clamp_max.Tensor", layout=True)
def clamp_max_tensor(x, max):
    return clamp_tensor(x, None, max)


@kernel("nan_to_num", layout=True)
def nan_to_num(x, nan=None, posinf=None, neginf=None):
    decline_complex(x.dtype)
    if not x.dtype.is_floating_point:
        return read(x)
    info = torch.finfo(x.dtype)
    dtype = WIDE.get(x.dtype, x.dtype)

    def fn(v):
        for where, value in (
            (isnan(v), nan or 0.0),
            (_EQ(v, scalar(math.inf, dtype)), info.max if posinf is None else posinf),
            (_EQ(v, scalar(-math.inf, dtype)), info.min if neginf is None else neginf),
        ):
            v = _MASKED_FILL(v, where, scalar(value, dtype))
        return v

    return compute(fn, x.dtype, x)
