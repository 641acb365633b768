"""Order: sort, top-k, search, unique values, counts.

MindSpore's Sort is stable but puts nan anywhere; torch counts nan as the greatest. A nan is looked for on the host.
"""

import numpy as np
import torch

from .. import fallback
from ..registry import Decline, aten, kernel, raw
from ..storage import broadcast, cast, constant, host, ms, read, wrap, wrap_strided
from .index import check_dim, values_of, widened

P = ms.ops
_SORT, _SEARCH = {}, {}  # (axis, descending) and right -> instance
_TOP_K = P.TopK(True)
_GATHER, _GATHER_D, _RESHAPE, _SELECT, _TRANSPOSE = P.Gather(), P.GatherD(), P.Reshape(), P.Select(), P.Transpose()
_IS_NAN, _SLICE, _SEGMENT_SUM = P.IsNan(), P.Slice(), P.UnsortedSegmentSum()
_UPDATE = P.TensorScatterUpdate()
_SUB, _DIV, _MUL, _FLOOR = P.Sub(), P.Div(), P.Mul(), P.Floor()
_WORK = {torch.bool: torch.uint8, torch.bfloat16: torch.float32}  # what Sort and TopK lack


def _sort_primitive(axis, descending):
    key = axis, descending
    if key not in _SORT:
        _SORT[key] = P.Sort(axis, descending)
    return _SORT[key]


def has_nan(x):
    """Whether the float tensor x holds a nan."""
    if not x.dtype.is_floating_point:
        return False
    return bool(host(x).isnan().any())


def _sorted(v, axis, descending, nan):
    """(values, int32 indices) of v along axis, stably."""
    if v.dtype == ms.float64:
        raise Decline("MindSpore sorts float64 as float32")
    if not nan:
        return _sort_primitive(axis, descending)(v)
    # nan is greatest: order the numbers with nan out of the way, then move the nan entries to their end.
    is_nan = _IS_NAN(v)
    first = _sort_primitive(axis, descending)(_SELECT(is_nan, P.ZerosLike()(v), v))[1]
    flags = _GATHER_D(cast(is_nan, torch.int32), axis, first)
    second = _sort_primitive(axis, descending)(flags)[1]
    index = _GATHER_D(first, axis, second)
    return _GATHER_D(v, axis, index), index


@kernel("sort.stable")
def sort_stable(x, *, stable=None, dim=-1, descending=False):
    dim = check_dim(dim, x.dim())
    if not x.numel() or x.dim() == 0:
        return read(x), constant(0, torch.int64, tuple(x.shape))
    work = _WORK.get(x.dtype, x.dtype)
    values, index = _sorted(cast(read(x), work), dim, descending, has_nan(x))
    return cast(values, x.dtype), widened(index)


@raw("sort.stable")
def sort_strided(x, *, stable=None, dim=-1, descending=False):
    """`sort_stable`, whose results keep the input's order of dimensions in memory."""
    try:
        values = sort_stable(x, dim=dim, descending=descending)
    except Exception as error:
        return fallback.run(aten.sort.stable, (x,), {"stable": stable, "dim": dim, "descending": descending}, error)
    if x.is_contiguous() or not x.numel():
        return tuple(wrap(v) for v in values)
    stride = torch.empty_like(torch.empty_strided(x.shape, x.stride(), device="meta")).stride()
    return tuple(wrap_strided(v, stride) for v in values)


@kernel("topk")
def topk(x, k, dim=-1, largest=True, sorted=True):
    dim = check_dim(dim, x.dim())
    if not 0 <= k <= (x.size(dim) if x.dim() else 1):
        raise Decline("selected index k out of range")
    if x.dim() == 0:
        return read(x), constant(0, torch.int64)
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    if 0 in shape:
        return constant(0, x.dtype, shape), constant(0, torch.int64, shape)
    v = cast(read(x), _WORK.get(x.dtype, x.dtype))
    if not largest or has_nan(x):
        values, index = _sorted(v, dim, largest, has_nan(x))
        values, index = (_SLICE(t, (0,) * x.dim(), shape) for t in (values, index))
    elif dim == x.dim() - 1:
        values, index = _TOP_K(v, k)
    else:
        perm = (*(d for d in range(x.dim()) if d != dim), dim)
        back = tuple(perm.index(d) for d in range(x.dim()))
        values, index = (_TRANSPOSE(t, back) for t in _TOP_K(_TRANSPOSE(v, perm), k))
    return cast(values, x.dtype), widened(index)


@kernel("kthvalue")
def kthvalue(x, k, dim=-1, keepdim=False):
    dim = check_dim(dim, x.dim())
    n = x.size(dim) if x.dim() else 1
    if not 1 <= k <= n:
        raise Decline("selected number k out of range")
    if x.dim() == 0:
        return read(x), constant(0, torch.int64)
    one = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    shape = one if keepdim else (*x.shape[:dim], *x.shape[dim + 1 :])
    if not x.numel():
        return constant(0, x.dtype, shape), constant(0, torch.int64, shape)
    start = tuple(k - 1 if d == dim else 0 for d in range(x.dim()))
    values, index = _sorted(cast(read(x), _WORK.get(x.dtype, x.dtype)), dim, False, has_nan(x))
    values, index = (_RESHAPE(_SLICE(t, start, one), shape) for t in (values, index))
    return cast(values, x.dtype), widened(index)


def _median(x, dim, keepdim, skip_nan):
    """(value, index) of the lower median along dim; without `skip_nan`, a nan is the median of its row."""
    dim = check_dim(dim, x.dim())
    if x.dim() == 0:
        return read(x), constant(0, torch.int64)
    if not x.numel() or x.dtype is torch.bool:
        raise Decline("no median of nothing, or of bools")
    n = x.size(dim)
    if not has_nan(x):
        return kthvalue(x, (n + 1) // 2, dim, keepdim)
    one = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    values, index = _sorted(cast(read(x), _WORK.get(x.dtype, x.dtype)), dim, False, True)
    count = (~host(x).isnan()).sum(dim, keepdim=True).numpy()  # a choice of position, read on the host like an index
    at = np.maximum(count - 1, 0) // 2 if skip_nan else np.where(count < n, count, (n - 1) // 2)
    at = ms.Tensor.from_numpy(np.ascontiguousarray(at.astype(np.int64)))
    shape = one if keepdim else (*x.shape[:dim], *x.shape[dim + 1 :])
    values, index = (_RESHAPE(_GATHER_D(t, dim, at), shape) for t in (values, index))
    return cast(values, x.dtype), widened(index)


@kernel("median.dim")
def median_dim(x, dim, keepdim=False):
    return _median(x, dim, keepdim, skip_nan=False)


@kernel("nanmedian.dim")
def nanmedian_dim(x, dim, keepdim=False):
    return _median(x, dim, keepdim, skip_nan=True)


@kernel("median")
def median(x):
    return _median(x.reshape(-1), 0, False, skip_nan=False)[0]


@kernel("nanmedian")
def nanmedian(x):
    return _median(x.reshape(-1), 0, False, skip_nan=True)[0]


# --------------------------------------------------------------------------------------------------------------- search

_SEARCHABLE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.uint8: torch.int32}


def _search(sequence, v, dtype, out_int32, right, sequence_value):
    """Where the values v go in `sequence` (whose value is `sequence_value`), both of the torch dtype `dtype`."""
    if right not in _SEARCH:
        _SEARCH[right] = P.SearchSorted(ms.int64, right)  # its int32 form refuses int64 values
    shape = v.shape
    if sequence.dim() == 1:
        v = _RESHAPE(v, (-1,))
    work = _SEARCHABLE.get(dtype, dtype)
    out = _RESHAPE(_SEARCH[right](cast(sequence_value, work), cast(v, work)), shape)
    return cast(out, torch.int32) if out_int32 else out


@kernel("searchsorted.Tensor")
def searchsorted(sorted_sequence, self, *, out_int32=False, right=False, side=None, sorter=None):
    sequence, x = sorted_sequence, self
    if side == "left" and right or sequence.dtype is not x.dtype or sequence.dim() == 0:
        raise Decline("side and right, or the dtypes, disagree")
    if sequence.dim() != 1 and tuple(sequence.shape[:-1]) != tuple(x.shape[:-1]):
        raise Decline("the sequences do not fit the values")
    if not x.numel() or not sequence.numel():
        return constant(0, torch.int32 if out_int32 else torch.int64, tuple(x.shape))
    if has_nan(x) or has_nan(sequence):
        raise Decline("SearchSorted orders nan otherwise")
    v = read(sequence)
    if sorter is not None:
        if sorter.shape != sequence.shape or sorter.dtype is not torch.int64:
            raise Decline("sorter does not fit")
        a = values_of(sorter)
        if a.min() < 0 or a.max() >= sequence.size(-1):
            raise Decline("sorter index out of range")
        v = _GATHER_D(v, sequence.dim() - 1, read(sorter))
    return _search(sequence, read(x), x.dtype, out_int32, right or side == "right", v)


@kernel("searchsorted.Scalar")
def searchsorted_scalar(sorted_sequence, self, *, out_int32=False, right=False, side=None, sorter=None):
    if side == "left" and right or sorted_sequence.dim() != 1 or sorter is not None or has_nan(sorted_sequence):
        raise Decline("a scalar needs a vector")
    if not sorted_sequence.numel():
        return constant(0, torch.int32 if out_int32 else torch.int64)
    dtype = torch.result_type(sorted_sequence, self)
    v = cast(read(sorted_sequence), dtype)
    return _search(sorted_sequence, constant(self, dtype), dtype, out_int32, right or side == "right", v)


@kernel("bucketize.Tensor")
def bucketize(self, boundaries, *, out_int32=False, right=False):
    if boundaries.dim() != 1:
        raise Decline("boundaries must be a vector")
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


@kernel("bucketize.Scalar")
def bucketize_scalar(self, boundaries, *, out_int32=False, right=False):
    return searchsorted_scalar(boundaries, self, out_int32=out_int32, right=right)


# --------------------------------------------------------------------------------------------------------------- unique

_CONSECUTIVE = {}  # axis -> UniqueConsecutive
_NONE = (0,)


def _runs(v, axis=None):
    """(first of each run, run of each element, run lengths) of v, int64."""
    if axis not in _CONSECUTIVE:
        _CONSECUTIVE[axis] = P.UniqueConsecutive(True, True, axis)
    values, inverse, counts = _CONSECUTIVE[axis](v)
    return values, widened(inverse), widened(counts)


def _asked(value, wanted):
    return value if wanted else constant(0, torch.int64, _NONE)


@kernel("_unique2")
def unique2(x, sorted=True, return_inverse=False, return_counts=False):
    n = x.numel()
    if not n:
        empty = constant(0, torch.int64, _NONE)
        return constant(0, x.dtype, _NONE), constant(0, torch.int64, tuple(x.shape)) if return_inverse else empty, empty
    if has_nan(x):
        raise Decline("UniqueConsecutive takes nan for equal")
    v, index = _sort_primitive(0, False)(_RESHAPE(cast(read(x), _WORK.get(x.dtype, x.dtype)), (n,)))
    values, run, counts = _runs(v)
    if return_inverse:
        run = _RESHAPE(_UPDATE(run, _RESHAPE(index, (n, 1)), run), tuple(x.shape))
    return cast(values, x.dtype), _asked(run, return_inverse), _asked(counts, return_counts)


@kernel("_unique")
def unique(x, sorted=True, return_inverse=False):
    return unique2(x, sorted, return_inverse)[:2]


@kernel("unique_consecutive")
def unique_consecutive(x, return_inverse=False, return_counts=False, dim=None):
    if not x.numel() or has_nan(x) or x.dim() == 0:
        raise Decline("nothing to compare, or nan")
    axis = None if dim is None else check_dim(dim, x.dim())
    v = cast(read(x), _WORK.get(x.dtype, x.dtype))
    if axis is None:
        v = _RESHAPE(v, (x.numel(),))
    values, run, counts = _runs(v, axis)
    if axis is None:
        run = _RESHAPE(run, tuple(x.shape))
    return cast(values, x.dtype), _asked(run, return_inverse), _asked(counts, return_counts)


@raw("unique_dim")
def unique_dim(x, dim, sorted=True, return_inverse=False, return_counts=False):
    """The unique slices, put back along dim as a view, as torch does."""
    try:
        dim = check_dim(dim, x.dim())
        values, *rest = map(wrap, _unique_slices(x, dim, return_inverse, return_counts))
    except Exception as error:
        return fallback.run(aten.unique_dim.default, (x, dim, sorted, return_inverse, return_counts), {}, error)
    return values.movedim(0, dim), *rest


def _unique_slices(x, dim, return_inverse, return_counts):
    if not x.numel() or has_nan(x) or x.dim() == 0:
        raise Decline("nothing to compare, or nan")
    n = x.size(dim)
    v = cast(read(x.movedim(dim, 0).reshape(n, -1)), _WORK.get(x.dtype, x.dtype))
    index = None  # order of the rows: sort by the last column first, stably
    for column in reversed(range(v.shape[1])):
        key = _RESHAPE(_SLICE(v, (0, column), (n, 1)), (n,))
        order = _sort_primitive(0, False)(key if index is None else _GATHER(key, index, 0))[1]
        index = order if index is None else _GATHER(index, order, 0)
    values, run, counts = _runs(_GATHER(v, index, 0), 0)
    values = cast(_RESHAPE(values, (values.shape[0], *x.shape[:dim], *x.shape[dim + 1 :])), x.dtype)
    if return_inverse:
        run = _UPDATE(run, _RESHAPE(index, (n, 1)), run)
    return values, _asked(run, return_inverse), _asked(counts, return_counts)


@kernel("unique_dim_consecutive")
def unique_dim_consecutive(x, dim, return_inverse=False, return_counts=False):
    return unique_consecutive(x, return_inverse, return_counts, dim)


# --------------------------------------------------------------------------------------------------------------- counts


@kernel("bincount")
def bincount(x, weights=None, minlength=0):
    if x.dim() != 1 or x.dtype.is_floating_point or x.dtype is torch.bool or minlength < 0:
        raise Decline("an integer vector is needed")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    if not x.numel():
        return constant(0, torch.int64, (minlength,))
    a = values_of(x)
    if a.min() < 0 or weights is not None and weights.shape != x.shape:
        raise Decline("only non-negative integers, one weight for each")
    bins = max(int(a.max()) + 1, minlength)
    v = constant(1, dtype, (x.numel(),)) if weights is None else cast(read(weights), dtype)
    return _SEGMENT_SUM(v, cast(read(x), torch.int64), bins)


@kernel("histc")
def histc(x, bins=100, min=0, max=0):
    if x.dtype not in (torch.float32, torch.float64) or bins <= 0:
        raise Decline(f"histc of {x.dtype}")
    if not x.numel():
        return constant(0, x.dtype, (bins,))
    a = host(x)
    if min == max:
        min, max = float(a.min()), float(a.max())
        if min == max:
            min, max = min - 1, max + 1
    if not np.isfinite((min, max)).all() or min > max:
        raise Decline("the range must be finite")
    v = _RESHAPE(read(x), (x.numel(),))
    low, high = constant(min, x.dtype), constant(max, x.dtype)
    inside = P.LogicalAnd()(P.GreaterEqual()(v, low), P.LessEqual()(v, high))
    width = constant(
        torch.tensor(max, dtype=x.dtype, device="cpu").sub(torch.tensor(min, dtype=x.dtype, device="cpu")).item(),
        x.dtype,
    )
    position = _MUL(_DIV(_SUB(v, low), width), constant(bins, x.dtype))
    position = P.Minimum()(_FLOOR(position), constant(bins - 1, x.dtype))
    outside = broadcast(constant(-1, x.dtype), position.shape)  # UnsortedSegmentSum leaves negative segments out
    position = cast(_SELECT(inside, position, outside), torch.int64)
    return _SEGMENT_SUM(constant(1, x.dtype, (x.numel(),)), position, bins)
