"""Scattering along a dimension, with or without a reduction.

TensorScatterElements only replaces here: its "add" loses some of the summands that meet, as its threads do not wait for
one another. TensorScatterAdd and ScatterNd add up right; they are given one linear index.
"""

import functools
import math

import numpy as np
import torch

from ..registry import Decline, kernel
from ..storage import cast, constant, ms, read, wrap
from ..tracing import lasting
from .index import check_dim, index_of, moved, moved_back, same_dtype, values_of, widened

P = ms.ops
_ADD, _MUL, _DIV, _FLOORDIV, _MAXIMUM = P.Add(), P.Mul(), P.Div(), P.FloorDiv(), P.Maximum()
_RESHAPE, _UPDATE, _UPDATE_ADD = P.Reshape(), P.TensorScatterUpdate(), P.TensorScatterAdd()
_SCATTER_ND = P.ScatterNd()
_ELEMENTS = {}  # axis -> TensorScatterElements
_MANY = 2048  # summands from which ScatterNd and an addition beat TensorScatterAdd
_REDUCTION = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "add"}
_FLAT_REDUCE = {"mul": P.TensorScatterMul(), "max": P.TensorScatterMax(), "min": P.TensorScatterMin()}


def elements(axis):
    if axis not in _ELEMENTS:
        _ELEMENTS[axis] = P.TensorScatterElements(axis, "none")
    return _ELEMENTS[axis]


@kernel("scatter.src")
def scatter_src(x, dim, index, src):
    return _scatter(x, dim, index, src, "none")


@kernel("scatter.value")
def scatter_value(x, dim, index, value):
    return _scatter(x, dim, index, value, "none")


@kernel("scatter_add")
def scatter_add(x, dim, index, src):
    if _whole_rows(x, dim, index, src):
        vector = index.as_strided(index.shape[:1], index.stride()[:1])
        return _UPDATE_ADD(read(x), _RESHAPE(widened(index_of(vector, x.size(0))), (-1, 1)), read(src))
    return _scatter(x, dim, index, src, "add")


def _whole_rows(x, dim, index, src):
    """Whether index is a vector expanded along dimension 0, as graph networks make it."""
    return (
        index.dim() == x.dim() > 1
        and dim in (0, -x.dim())
        and not any(index.stride()[1:])
        and index.shape == src.shape
        and index.shape[1:] == x.shape[1:]
        and index.numel()
        and x.dtype is src.dtype
        and x.dtype in (torch.float32, torch.float64, torch.int64)
    )


@kernel("scatter.reduce")
def scatter_reduce_src(x, dim, index, src, *, reduce):
    return _scatter(x, dim, index, src, _REDUCTION[reduce])


@kernel("scatter.value_reduce")
def scatter_reduce_value(x, dim, index, value, *, reduce):
    return _scatter(x, dim, index, value, _REDUCTION[reduce])


def _scatter(x, dim, index, src, reduction):
    """x with src (a tensor or a number) put at index along dim; out of range indices decline."""
    dim = check_dim(dim, x.dim())
    tensor = isinstance(src, torch.Tensor)
    if not index.numel():
        if tensor and src.dtype is not x.dtype:
            raise Decline("dtypes differ")
        return read(x)
    if max(x.dim(), 1) != max(index.dim(), 1):
        raise Decline("index must have the input's dimensions")
    if any(n > m for d, (n, m) in enumerate(zip(index.shape, x.shape)) if d != dim):
        raise Decline("index is larger than input")
    if tensor:
        same_dtype(x, src)
        if max(src.dim(), 1) != max(index.dim(), 1) or any(n > m for n, m in zip(index.shape, src.shape)):
            raise Decline("index is larger than src")
        if tuple(src.shape) != tuple(index.shape) and index.dim() and src.dim():
            src = src[tuple(slice(n) for n in index.shape)]
        s = read(src)
    elif isinstance(src, complex) and not x.dtype.is_complex:
        raise Decline("a complex value does not fit")
    else:
        s = constant(src, x.dtype, tuple(index.shape))
    i, v = widened(index_of(index, x.size(dim) if x.dim() else 1)), read(x)
    if x.dtype is torch.bfloat16 and reduction != "none":
        return cast(_elements(cast(v, torch.float32), dim, i, cast(s, torch.float32), reduction), torch.bfloat16)
    return moved_back(_elements(moved(v), dim, i, moved(s), reduction), v)


def _elements(v, dim, i, s, reduction):
    shape = v.shape
    if v.ndim == 0 or i.ndim == 0:
        v, i, s, dim = _RESHAPE(v, (-1,)), _RESHAPE(i, (-1,)), _RESHAPE(s, (-1,)), 0
    if reduction == "none":
        if v.dtype not in (ms.complex64, ms.complex128):
            return _RESHAPE(elements(dim)(v, i, s), shape)
        return _RESHAPE(_flat(v, dim, i, s, _UPDATE), shape)
    if v.dtype == ms.bool_:
        raise Decline("a sum of bools")
    if reduction in _FLAT_REDUCE:
        return _RESHAPE(_flat(v, dim, i, s, _FLAT_REDUCE[reduction]), shape)
    if i.size < _MANY:
        return _RESHAPE(_flat(v, dim, i, s, _UPDATE_ADD), shape)
    return _ADD(v, sums(v.shape, dim, i, s))


def sums(shape, dim, i, s):
    """Zeros of `shape` with s added at the positions i along dim."""
    index = _RESHAPE(_linear(shape, dim, i), (-1, 1))
    return _RESHAPE(_SCATTER_ND(index, _RESHAPE(s, (-1,)), (math.prod(shape),)), shape)


def _flat(v, dim, i, s, scatter):
    """The same by one linear index."""
    return scatter(_RESHAPE(v, (-1,)), _RESHAPE(_linear(v.shape, dim, i), (-1, 1)), _RESHAPE(s, (-1,)))


def _linear(shape, dim, i):
    """Row-major position in `shape` of element i along dim; the part that the shape alone decides is a constant."""
    if i.ndim == 1:
        return i
    step = math.prod(shape[dim + 1 :])
    return _ADD(i if step == 1 else _MUL(i, constant(step, torch.int64)), _base(shape, dim, i.shape))


@functools.lru_cache(16)
def _base(shape, dim, size):
    base = np.zeros(size, np.int64)
    for d, n in enumerate(size):
        if d != dim:
            base += (np.arange(n) * math.prod(shape[d + 1 :])).reshape([-1 if k == d else 1 for k in range(len(size))])
    return lasting(ms.Tensor.from_numpy(base))


@kernel("scatter_reduce.two")
def scatter_reduce(x, dim, index, src, reduce, *, include_self=True):
    dim = check_dim(dim, x.dim())
    if not index.numel() or reduce not in ("sum", "prod", "mean", "amax", "amin"):
        return _scatter(x, dim, index, src, "none")
    same_dtype(x, src)
    if x.dtype is torch.bool or x.dtype.is_complex:
        raise Decline(f"scatter_reduce of {x.dtype}")
    if x.dtype in (torch.float16, torch.bfloat16):  # rounded once
        return cast(scatter_reduce(x.float(), dim, index, src.float(), reduce, include_self=include_self), x.dtype)
    if not include_self:
        x = torch.scatter(x, dim, index, _identity(reduce, x.dtype))
    if reduce in ("amax", "amin") and x.dtype.is_floating_point:
        if bool(np.isnan(values_of(src)).any() or np.isnan(values_of(x)).any()):
            return _extreme_with_nan(x, dim, index, src, reduce)
    total = _scatter(x, dim, index, src, _REDUCTION[reduce])
    if reduce != "mean":
        return total
    dtype = x.dtype
    count = constant(1 if include_self else 0, dtype, tuple(x.shape))
    ones = constant(1, dtype, tuple(index.shape))
    count = _elements(count, dim, widened(read(index)), ones, "add")
    if not include_self:
        count = _MAXIMUM(count, constant(1, dtype))
    return _DIV(total, count) if dtype.is_floating_point else _FLOORDIV(total, count)


def _extreme_with_nan(x, dim, index, src, reduce):
    """TensorScatterMax loses NaN: it is kept out of the way, and put where it was or was scattered to."""
    bad, identity = src.isnan(), _identity(reduce, x.dtype)
    hit = torch.zeros_like(x).scatter_add(dim, index, bad.to(x.dtype)) > 0
    clean = x.masked_fill(x.isnan(), identity), dim, index, src.masked_fill(bad, identity)
    total = wrap(_scatter(*clean, _REDUCTION[reduce]))
    return read(total.masked_fill(hit | x.isnan(), math.nan))


def _identity(reduce, dtype):
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    sign = -1 if reduce == "amax" else 1
    if dtype.is_floating_point:
        return sign * math.inf
    info = torch.iinfo(dtype)
    return info.min if sign < 0 else info.max
