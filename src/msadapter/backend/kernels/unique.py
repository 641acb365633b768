"""Unique values: runs of equal neighbours, after sorting or as they come."""

import torch
from torch._decomp import decomposition_table

from .. import fallback
from ..registry import Decline, aten, kernel, overload, raw
from ..storage import cast, constant, ms, read, wrap
from .index import check_dim, widened
from .sort import WORK, has_nan, sorted_values

P = ms.ops
_CONSECUTIVE = {}  # axis -> UniqueConsecutive
_GATHER, _RESHAPE, _SLICE, _UPDATE = P.Gather(), P.Reshape(), P.Slice(), P.TensorScatterUpdate()
_NOT_EQUAL, _ANY, _NON_ZERO = P.NotEqual(), P.ReduceAny(), P.NonZero()
_CUM_SUM, _SUB, _CONCAT = P.CumSum(), P.Sub(), P.Concat(0)
_NONE = (0,)


def _runs(v, axis=None, nan=False):
    """(first of each run, run of each element, run lengths) of v, int64."""
    if nan or v.dtype == ms.float64:  # UniqueConsecutive takes nan for equal
        return _runs_by_comparison(v)
    if axis not in _CONSECUTIVE:
        _CONSECUTIVE[axis] = P.UniqueConsecutive(True, True, axis)
    values, inverse, counts = _CONSECUTIVE[axis](v)
    return values, widened(inverse), widened(counts)


def _runs_by_comparison(v):
    """The runs along the first dimension: one begins where an element differs from the one before it."""
    n, *rest = v.shape
    differs = _NOT_EQUAL(_part(v, 1, n), _part(v, 0, n - 1)) if n > 1 else constant(True, torch.bool, (0,))
    differs = _ANY(_RESHAPE(differs, (n - 1, -1)), 1) if rest and n > 1 else differs
    begins = _CONCAT((constant(True, torch.bool, (1,)), differs)) if n > 1 else constant(True, torch.bool, (1,))
    start = _RESHAPE(_NON_ZERO(begins), (-1,))
    stop = (
        _CONCAT((_part(start, 1, start.size), constant(n, torch.int64, (1,))))
        if start.size > 1
        else constant(n, torch.int64, (1,))
    )
    run = _SUB(_CUM_SUM(cast(begins, torch.int64), 0), constant(1, torch.int64))
    return _GATHER(v, start, 0), run, _SUB(stop, start)


def _part(v, start, stop):
    return _SLICE(v, (start, *[0] * (v.ndim - 1)), (stop - start, *v.shape[1:]))


def _asked(value, wanted):
    return value if wanted else constant(0, torch.int64, _NONE)


@kernel("_unique2")
def unique2(x, sorted=True, return_inverse=False, return_counts=False):
    n = x.numel()
    if not n:
        empty = constant(0, torch.int64, _NONE)
        return constant(0, x.dtype, _NONE), constant(0, torch.int64, tuple(x.shape)) if return_inverse else empty, empty
    nan = has_nan(x)
    v, index = sorted_values(_RESHAPE(cast(read(x), WORK.get(x.dtype, x.dtype)), (n,)), 0, False, nan)
    values, run, counts = _runs(v, nan=nan)
    if return_inverse:
        run = _RESHAPE(_UPDATE(run, _RESHAPE(index, (n, 1)), run), tuple(x.shape))
    return cast(values, x.dtype), _asked(run, return_inverse), _asked(counts, return_counts)


@kernel("_unique")
def unique(x, sorted=True, return_inverse=False):
    return unique2(x, sorted, return_inverse)[:2]


@raw("unique_consecutive")
def unique_consecutive(x, return_inverse=False, return_counts=False, dim=None):
    try:
        if dim is not None and (check_dim(dim, x.dim()), x.dim()) != (0, 1):
            return _along(x, dim, _order_kept, return_inverse, return_counts)
        if not x.numel():
            inverse = constant(0, torch.int64, tuple(x.shape) if return_inverse else _NONE)
            values = constant(0, x.dtype, _NONE), inverse, constant(0, torch.int64, _NONE)
        else:
            v = _RESHAPE(cast(read(x), WORK.get(x.dtype, x.dtype)), (x.numel(),))
            found, run, counts = _runs(v, nan=has_nan(x))
            run = _asked(_RESHAPE(run, tuple(x.shape)), return_inverse)
            values = cast(found, x.dtype), run, _asked(counts, return_counts)
    except Exception as error:
        return fallback.run(aten.unique_consecutive.default, (x, return_inverse, return_counts, dim), {}, error)
    return tuple(wrap(v) for v in values)


@raw("unique_dim")
def unique_dim(x, dim, sorted=True, return_inverse=False, return_counts=False):
    try:
        return _along(x, dim, _lexicographic, return_inverse, return_counts)
    except Exception as error:
        return fallback.run(aten.unique_dim.default, (x, dim, sorted, return_inverse, return_counts), {}, error)


@raw("unique_dim_consecutive")
def unique_dim_consecutive(x, dim, return_inverse=False, return_counts=False):
    try:
        return _along(x, dim, _order_kept, return_inverse, return_counts)
    except Exception as error:
        args = x, dim, return_inverse, return_counts
        return fallback.run(aten.unique_dim_consecutive.default, args, {}, error)


def _along(x, dim, order, return_inverse, return_counts):
    """The slices along dim without repetitions, put back along dim as a view, as torch does."""
    dim = check_dim(dim, x.dim())
    if x.dim() and not x.size(dim) and x.shape.count(0) == 1:
        none = constant(0, torch.int64, _NONE)
        return wrap(constant(0, x.dtype, tuple(x.shape))), wrap(none), wrap(none)
    if not x.numel() or x.dim() == 0:
        raise Decline("nothing to compare")
    n, nan = x.size(dim), has_nan(x)
    v = cast(read(x.movedim(dim, 0).reshape(n, -1)), WORK.get(x.dtype, x.dtype))
    v, index = order(v, nan)
    values, run, counts = _runs(v, 0, nan)
    values = cast(_RESHAPE(values, (values.shape[0], *x.shape[:dim], *x.shape[dim + 1 :])), x.dtype)
    if return_inverse and index is not None:
        run = _UPDATE(run, _RESHAPE(index, (n, 1)), run)
    return wrap(values).movedim(0, dim), wrap(_asked(run, return_inverse)), wrap(_asked(counts, return_counts))


def _order_kept(v, nan):
    return v, None


def _lexicographic(v, nan):
    """(the rows of v in order, the index that orders them): sort by the last column first, stably."""
    if nan:
        raise Decline("rows with nan have no order")
    index = None
    for column in reversed(range(v.shape[1])):
        key = _RESHAPE(_SLICE(v, (0, column), (v.shape[0], 1)), (v.shape[0],))
        order = sorted_values(key if index is None else _GATHER(key, index, 0), 0, False, False)[1]
        index = order if index is None else _GATHER(index, order, 0)
    return _GATHER(v, index, 0), index


# ------------------------------------------------------------------------------------------------------------ isin


def _isin(name):
    decomposition = decomposition_table[overload(name)]

    @kernel(name)
    def isin(elements, test_elements, *, assume_unique=False, invert=False):
        if torch.bool in (getattr(elements, "dtype", None), getattr(test_elements, "dtype", None)):
            raise Decline("torch has none for bool")
        return read(decomposition(elements, test_elements, assume_unique=assume_unique, invert=invert))


for _name in ("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor"):
    _isin(_name)
