"""Reductions: sums, extrema, norms and their like over some dimensions or all."""

import math

import torch
from mindspore.ops.auto_generate import gen_ops_prim as prim

from ..elementary import divide, exp, log
from ..registry import Decline, kernel
from ..storage import MS_DTYPE, cast, constant, ms, read
from ..tracing import traced
from .pointwise import WIDE, WIDER, as_bool, decline_complex, isnan, to_float

P = ms.ops

_SUM, _MEAN, _PROD = prim.SumExt(), prim.MeanExt(), {k: P.ReduceProd(k) for k in (False, True)}
_COMPLEX_SUM = {k: P.ReduceSum(k) for k in (False, True)}
_MAX, _MIN, _ALL, _ANY = ({k: p(k) for k in (False, True)} for p in (P.ReduceMax, P.ReduceMin, P.ReduceAll, P.ReduceAny))
_ADD, _SUB, _MUL, _DIV, _SQRT, _SQUARE = P.Add(), P.Sub(), P.Mul(), P.RealDiv(), P.Sqrt(), P.Square()
_ABS, _POW, _NE, _EQ = P.Abs(), P.Pow(), P.NotEqual(), P.Equal()
_MASKED_FILL, _SELECT, _RESHAPE = P.MaskedFill(), P.Select(), P.Reshape()
_LEFT_SHIFT, _RIGHT_SHIFT, _BIT_AND = P.LeftShift(), P.RightShift(), P.BitwiseAnd()


_MANY = 1 << 14  # elements from which reshaping to rows and back pays


# ----------------------------------------------------------------------------------------------------------- dimensions


def dims_of(x, dim):
    """The dimensions to reduce, ascending and not negative; None and () mean all."""
    n = x.dim()
    if n > 64:
        raise Decline("torch reduces up to 64 dimensions")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(n))
    dims = sorted(d + n if d < 0 else d for d in ((dim,) if isinstance(dim, int) else dim))
    if n == 0:
        dims = [d for d in dims if d not in (0, -1)]
    if (dims and not 0 <= dims[0] <= dims[-1] < n) or len(set(dims)) < len(dims):
        raise Decline("dimensions out of range, or twice")
    return tuple(dims)


def reduced(shape, dims, keepdim):
    return tuple(1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims)


def _by_rows(v, fn, n):
    """fn (SumExt or MeanExt) over runs of n elements: (v.size // n,). Other shapes take five times as long as a matrix."""
    part = math.gcd(n, 1024)
    if n < 4096:
        return fn(_RESHAPE(v, (v.size // n, n)), (1,), False, None)
    if part >= 16:  # in two steps: one over many elements is less exact
        return _by_rows(fn(_RESHAPE(v, (v.size // part, part)), (1,), False, None), fn, n // part)
    return fn(_RESHAPE(v, (v.size // n, 1, n)), (1, 2), False, None)  # slow, but more exact than a row as long


def _by_columns(v, fn, m):
    """fn over m runs of equal length, element by element, in two steps: one over many runs is less exact."""
    part = math.gcd(m, 1 << m.bit_length() // 2)
    return fn(_RESHAPE(fn(_RESHAPE(v, (m // part, -1)), (0,), False, None), (part, -1)), (0,), False, None)


def sum_along(v, dim):
    """The sum over one dimension, which stays with size 1."""
    return _reduce(v, _SUM, (dim,), True)


def total(v, fn):
    """fn (SumExt or MeanExt) over all elements of v: 0-dim."""
    if v.size >= 4096 and v.is_contiguous():
        return _RESHAPE(_by_rows(v, fn, v.size), ())
    return fn(v, None, False, None)


def _reduce(v, fn, dims, keepdim):
    """fn over dims of v, which has elements."""
    if not dims:
        return fn(_RESHAPE(v, (*v.shape, 1)), (v.ndim,), False, None)
    if len(dims) == v.ndim:
        out = total(v, fn)
        return _RESHAPE(out, (1,) * len(dims)) if keepdim else out
    if dims[0] == v.ndim - len(dims) > 0 and v.ndim > 2 and v.size >= _MANY and v.is_contiguous():
        return _RESHAPE(_by_rows(v, fn, math.prod(v.shape[dims[0] :])), reduced(v.shape, dims, keepdim))
    many = math.prod(v.shape[: len(dims)])
    if dims[-1] == len(dims) - 1 and many >= 4096 and v.is_contiguous():
        return _RESHAPE(_by_columns(v, fn, many), reduced(v.shape, dims, keepdim))
    return fn(v, dims, keepdim, None)


def _integers(v, dims, keepdim, narrow):
    """The sum of int64, modulo 2^64. SumExt adds in float64: where that may not hold the sum, 16 bits at a time.

    narrow: the largest absolute value that v's elements had in their own type, None if that is int64.
    """
    largest = narrow
    if largest is None and not traced(v):
        a = v.asnumpy()
        largest = max(int(a.max()), -int(a.min()))
    if largest is not None and largest * v.size < 1 << 53:
        return _reduce(v, _SUM, dims, keepdim)
    total_of = lambda part: _reduce(part, _SUM, dims, keepdim)  # noqa: E731
    at = [constant(16 * k, torch.int64) for k in range(4)]
    low = constant(0xFFFF, torch.int64)
    out = _LEFT_SHIFT(total_of(_RIGHT_SHIFT(v, at[3])), at[3])
    for k in range(3):
        out = _ADD(out, _LEFT_SHIFT(total_of(_BIT_AND(_RIGHT_SHIFT(v, at[k]), low)), at[k]))
    return out


# ------------------------------------------------------------------------------------------------------- sums and means


def _as(x, dtype):
    """x's value in the torch dtype, without Cast for bools."""
    if x.dtype is torch.bool and dtype is not torch.bool:
        return _SELECT(read(x), constant(1, dtype), constant(0, dtype))
    return cast(read(x), dtype)


# The largest absolute value of a type; int64's own is found out.
_LARGEST = {torch.int64: None, torch.bool: 1}
_LARGEST |= {
    d: max(torch.iinfo(d).max, -torch.iinfo(d).min)
    for d in MS_DTYPE
    if not (d.is_floating_point or d.is_complex or d in _LARGEST)
}


def _accumulate(x, dim, keepdim, dtype, fn, empty):
    """A sum or a mean of x: small floats accumulate in float32, an empty tensor gives `empty`."""
    dims = dims_of(x, dim)
    if x.numel() == 0:
        return constant(complex(empty, empty) if dtype.is_complex else empty, dtype, reduced(x.shape, dims, keepdim))
    if dtype.is_complex:
        v = _COMPLEX_SUM[keepdim](cast(read(x), dtype), dims)
        return v if fn is _SUM else divide(v, constant(x.numel() // max(v.size, 1), dtype))
    if dtype is torch.int64 and fn is _SUM and not x.dtype.is_floating_point:
        return _integers(_as(x, dtype), dims, keepdim, _LARGEST[x.dtype])
    return cast(_reduce(_as(x, WIDER.get(dtype, dtype)), fn, dims, keepdim), dtype)


@kernel("sum.dim_IntList")
def sum_dim(x, dim=None, keepdim=False, dtype=None):
    dtype = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    return _accumulate(x, dim, keepdim, dtype, _SUM, 0)


@kernel("sum")
def sum_all(x, dtype=None):
    return sum_dim(x, None, False, dtype)


@kernel("mean.dim")
def mean_dim(x, dim=None, keepdim=False, dtype=None):
    dtype = dtype or x.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        raise Decline("the mean of integers")
    return _accumulate(x, dim, keepdim, dtype, _MEAN, math.nan)


@kernel("mean")
def mean(x, dtype=None):
    return mean_dim(x, None, False, dtype)


@kernel("nansum")
def nansum(x, dim=None, keepdim=False, dtype=None):
    decline_complex(x.dtype)
    if not x.dtype.is_floating_point:
        return sum_dim(x, dim, keepdim, dtype)
    dims, wide = dims_of(x, dim), WIDER.get(x.dtype, x.dtype)
    if x.numel() == 0:
        return constant(0, dtype or x.dtype, reduced(x.shape, dims, keepdim))
    v = cast(read(x), wide)
    return cast(_reduce(_MASKED_FILL(v, isnan(v), constant(0, wide)), _SUM, dims, keepdim), dtype or x.dtype)


@kernel("prod.dim_int")
def prod_dim(x, dim, keepdim=False, dtype=None):
    dtype = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    dims = dims_of(x, dim)
    if x.numel() == 0:
        return constant(1, dtype, reduced(x.shape, dims, keepdim))
    v = _as(x, WIDER.get(dtype, dtype))
    return cast(_PROD[keepdim](v, dims) if dims else _MUL(v, constant(1, WIDER.get(dtype, dtype))), dtype)


@kernel("prod")
def prod(x, dtype=None):
    return prod_dim(x, None, False, dtype)


@kernel("count_nonzero.dim_IntList")
def count_nonzero(x, dim):
    dims = dims_of(x, dim)
    if x.numel() == 0:
        return constant(0, torch.int64, reduced(x.shape, dims, False))
    ones = _SELECT(as_bool(x), constant(1, torch.int64), constant(0, torch.int64))
    return _reduce(ones, _SUM, dims, False)


@kernel("count_nonzero")
def count_nonzero_all(x, dim=None):
    return count_nonzero(x, dim)


# ------------------------------------------------------------------------------------------------------------- variance


def _variance(x, dim, correction, keepdim):
    """(variance, mean) in two passes, as torch's Welford is as exact."""
    if not x.dtype.is_floating_point:
        raise Decline("the variance of integers or complex numbers")
    dims, wide = dims_of(x, dim), WIDER.get(x.dtype, x.dtype)
    shape = reduced(x.shape, dims, keepdim)
    if x.numel() == 0:
        return constant(math.nan, x.dtype, shape), constant(math.nan, x.dtype, shape)
    v, n = cast(read(x), wide), math.prod(x.shape[d] for d in dims)
    m = _reduce(v, _MEAN, dims, True)
    squares = _reduce(_SQUARE(_SUB(v, m)), _SUM, dims, keepdim)
    correction = 1 if correction is None else correction
    return divide(squares, constant(max(n - correction, 0), wide)), _RESHAPE(m, shape)


@kernel("var.correction")
def var(x, dim=None, correction=None, keepdim=False):
    return cast(_variance(x, dim, correction, keepdim)[0], x.dtype)


@kernel("std.correction")
def std(x, dim=None, correction=None, keepdim=False):
    return cast(_SQRT(_variance(x, dim, correction, keepdim)[0]), x.dtype)


@kernel("var_mean.correction")
def var_mean(x, dim=None, correction=None, keepdim=False):
    return tuple(cast(v, x.dtype) for v in _variance(x, dim, correction, keepdim))


@kernel("std_mean.correction")
def std_mean(x, dim=None, correction=None, keepdim=False):
    v, m = _variance(x, dim, correction, keepdim)
    return cast(_SQRT(v), x.dtype), cast(m, x.dtype)


# -------------------------------------------------------------------------------------------------------------- extrema


def extremum(x, dims, keepdim, largest):
    """amax or amin. MindSpore's skip NaN, torch's hand it on."""
    decline_complex(x.dtype)
    if 0 in (x.shape[d] for d in dims):
        raise Decline("the extremum of nothing")
    if x.numel() == 0:
        return constant(0, x.dtype, reduced(x.shape, dims, keepdim))
    if x.dtype is torch.bool:
        return (_ANY if largest else _ALL)[keepdim](read(x), dims) if dims else read(x)
    wide = WIDE.get(x.dtype, x.dtype)
    v = cast(read(x), wide)
    if not dims:
        return read(x)
    out = (_MAX if largest else _MIN)[keepdim](v, dims)
    if x.dtype.is_floating_point:
        out = _MASKED_FILL(out, _ANY[keepdim](isnan(v), dims), constant(math.nan, wide))
    return cast(out, x.dtype)


@kernel("amax")
def amax(x, dim=(), keepdim=False):
    return extremum(x, dims_of(x, dim), keepdim, True)


@kernel("amin")
def amin(x, dim=(), keepdim=False):
    return extremum(x, dims_of(x, dim), keepdim, False)


@kernel("max")
def max_all(x):
    return extremum(x, dims_of(x, None), False, True)


@kernel("min")
def min_all(x):
    return extremum(x, dims_of(x, None), False, False)


@kernel("aminmax")
def aminmax(x, dim=None, keepdim=False):
    dims = dims_of(x, dim)
    return extremum(x, dims, keepdim, False), extremum(x, dims, keepdim, True)


_WITH_INDEX = {}  # (largest, dim, keepdim): primitive


def with_index(v, dim, keepdim, largest):
    key = largest, dim, keepdim
    if key not in _WITH_INDEX:
        _WITH_INDEX[key] = (P.ArgMaxWithValue if largest else P.ArgMinWithValue)(dim, keepdim)
    return _WITH_INDEX[key](v)


def extremum_with_index(x, dim, keepdim, largest):
    """(values, indices) along dim: the first extremum, or the first NaN where there is one."""
    decline_complex(x.dtype)
    dims = dims_of(x, dim)
    shape = reduced(x.shape, dims, keepdim)
    if 0 in (x.shape[d] for d in dims):
        raise Decline("the extremum of nothing")
    if x.numel() == 0 or not dims:
        return (constant(0, x.dtype, shape) if x.numel() == 0 else read(x)), constant(0, torch.int64, shape)
    wide = torch.int32 if x.dtype is torch.bool else WIDE.get(x.dtype, x.dtype)
    v = _as(x, wide)
    index, value = with_index(v, dims[0], keepdim, largest)
    if x.dtype.is_floating_point:
        nan = isnan(v)
        if traced(nan) or P.ReduceAny()(nan).asnumpy():
            bad = _ANY[keepdim](nan, dims)
            first, _ = with_index(_SELECT(nan, constant(1, torch.float32), constant(0, torch.float32)), dims[0], keepdim, True)
            index, value = _SELECT(bad, first, index), _MASKED_FILL(value, bad, constant(math.nan, wide))
    return cast(value, x.dtype), cast(index, torch.int64)


@kernel("max.dim")
def max_dim(x, dim, keepdim=False):
    return extremum_with_index(x, dim, keepdim, True)


@kernel("min.dim")
def min_dim(x, dim, keepdim=False):
    return extremum_with_index(x, dim, keepdim, False)


def _arg(x, dim, keepdim, largest):
    if x.dtype is torch.bool:
        raise Decline("argmax of bools")
    if dim is not None:
        return extremum_with_index(x, dim, keepdim, largest)[1]
    index = extremum_with_index(x.reshape(-1), 0, False, largest)[1]
    return _RESHAPE(index, (1,) * x.dim()) if keepdim else index


@kernel("argmax")
def argmax(x, dim=None, keepdim=False):
    return _arg(x, dim, keepdim, True)


@kernel("argmin")
def argmin(x, dim=None, keepdim=False):
    return _arg(x, dim, keepdim, False)


# ------------------------------------------------------------------------------------------------------------- all, any


def _truth(name, primitive, empty):
    """`all` or `any`. ReduceAll and ReduceAny misread what is not bool, so it becomes bool first."""

    @kernel(f"{name}.dim", f"{name}.dims")
    def along(x, dim=None, keepdim=False):
        dims = () if dim == () or dim == [] else dims_of(x, dim)
        dtype = torch.uint8 if x.dtype is torch.uint8 else torch.bool
        if x.numel() == 0:
            return constant(empty, dtype, reduced(x.shape, dims, keepdim))
        v = as_bool(x)
        return cast(primitive[keepdim](v, dims) if dims else v, dtype)

    @kernel(name)
    def over_all(x):
        return along(x, None, False)


_truth("all", _ALL, True)
_truth("any", _ANY, False)


# ---------------------------------------------------------------------------------------------------------------- norms


@kernel("linalg_vector_norm")
def vector_norm(x, ord=2, dim=None, keepdim=False, dtype=None):
    decline_complex(x.dtype)
    result = dtype or x.dtype
    if not result.is_floating_point:
        raise Decline("the norm of integers")
    dims, wide = dims_of(x, dim), WIDER.get(result, result)
    if x.numel() == 0:
        if ord < 0 or ord == math.inf:
            raise Decline("no identity")
        return constant(0, result, reduced(x.shape, dims, keepdim))
    v = cast(read(x), wide)
    if ord in (math.inf, -math.inf):
        out = (_MAX if ord > 0 else _MIN)[keepdim](_ABS(v), dims) if dims else _ABS(v)
        bad = _ANY[keepdim](isnan(v), dims) if dims else isnan(v)
        out = _MASKED_FILL(out, bad, constant(math.nan, wide))
    elif ord == 0:
        out = _reduce(_SELECT(_NE(v, constant(0, wide)), constant(1, wide), constant(0, wide)), _SUM, dims, keepdim)
    elif ord == 1 or not dims:
        out = _reduce(_ABS(v), _SUM, dims, keepdim)
    elif ord == 2:
        out = _SQRT(_reduce(_SQUARE(v), _SUM, dims, keepdim))
    else:
        out = _POW(_reduce(_POW(_ABS(v), constant(ord, wide)), _SUM, dims, keepdim), constant(1 / ord, wide))
    return cast(out, result)


@kernel("norm.ScalarOpt_dim_dtype")
def norm_dim_dtype(x, p, dim, keepdim=False, *, dtype):
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype)


@kernel("norm.ScalarOpt_dim")
def norm_dim(x, p, dim, keepdim=False):
    return vector_norm(x, 2 if p is None else p, dim, keepdim)


@kernel("norm.ScalarOpt_dtype")
def norm_dtype(x, p, *, dtype):
    return vector_norm(x, 2 if p is None else p, None, False, dtype)


@kernel("norm.Scalar")
def norm(x, p=2):
    return vector_norm(x, p)


@kernel("logsumexp")
def logsumexp(x, dim, keepdim=False):
    """log sum exp(x - m) + m with the maximum m, or 0 for an infinite one."""
    decline_complex(x.dtype)
    dims, dtype = dims_of(x, dim), to_float(x.dtype)
    if x.numel() == 0:
        return constant(-math.inf, dtype, reduced(x.shape, dims, keepdim))
    wide = WIDER.get(dtype, dtype)
    v = _as(x, wide)
    if not dims:
        return cast(_ADD(v, constant(0, wide)), dtype)
    m = _MAX[True](v, dims)
    m = _MASKED_FILL(m, _EQ(_ABS(m), constant(math.inf, wide)), constant(0, wide))
    out = log(_reduce(exp(_SUB(v, m)), _SUM, dims, keepdim))
    return cast(_ADD(out, _RESHAPE(m, out.shape)), dtype)
