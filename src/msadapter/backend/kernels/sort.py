"""Order: sort, top-k, search.

MindSpore's Sort is stable but puts nan anywhere; torch counts nan as the greatest. A nan is looked for on the host.
"""

import numpy as np
import torch

from .. import fallback
from ..registry import Decline, aten, kernel, raw
from ..storage import cast, constant, host, ms, read, wrap, wrap_strided
from .index import check_dim, values_of, widened

P = ms.ops
_SORT, _SEARCH = {}, {}  # (axis, descending) and right -> instance
_TOP_K = P.TopK(True)
_GATHER, _GATHER_D, _RESHAPE, _SELECT, _TRANSPOSE = P.Gather(), P.GatherD(), P.Reshape(), P.Select(), P.Transpose()
_IS_NAN, _SLICE, _ADD, _LESS, _XOR = P.IsNan(), P.Slice(), P.Add(), P.Less(), P.BitwiseXor()
WORK = {torch.bool: torch.uint8, torch.bfloat16: torch.float32}  # what Sort and TopK lack


def sort_primitive(axis, descending):
    key = axis, descending
    if key not in _SORT:
        _SORT[key] = P.Sort(axis, descending)
    return _SORT[key]


def has_nan(x):
    """Whether the float tensor x holds a nan."""
    if not x.dtype.is_floating_point:
        return False
    return bool(host(x).isnan().any())


def sorted_values(v, axis, descending, nan):
    """(values, int32 indices) of v along axis, stably."""
    if v.dtype == ms.float64:  # MindSpore sorts it as float32
        index = sort_primitive(axis, descending)(_keys(v))[1]
        return _GATHER_D(v, axis, index), index
    if not nan:
        return sort_primitive(axis, descending)(v)
    # nan is greatest: order the numbers with nan out of the way, then move the nan entries to their end.
    is_nan = _IS_NAN(v)
    first = sort_primitive(axis, descending)(_SELECT(is_nan, P.ZerosLike()(v), v))[1]
    flags = _GATHER_D(cast(is_nan, torch.int32), axis, first)
    second = sort_primitive(axis, descending)(flags)[1]
    index = _GATHER_D(first, axis, second)
    return _GATHER_D(v, axis, index), index


def _keys(v):
    """The bits of float64 as int64 numbers in the same order: -0.0 is 0.0, and nan, whatever its sign, the greatest."""
    bits = _ADD(v, constant(0, torch.float64)).asnumpy().view(np.int64)
    bits = ms.Tensor.from_numpy(np.ascontiguousarray(bits))
    zero = constant(0, torch.int64)
    keys = _SELECT(_LESS(bits, zero), _XOR(bits, constant(2**63 - 1, torch.int64)), bits)
    return _SELECT(_IS_NAN(v), constant(2**63 - 1, torch.int64, v.shape), keys)


@kernel("sort.stable")
def sort_stable(x, *, stable=None, dim=-1, descending=False):
    dim = check_dim(dim, x.dim())
    if not x.numel() or x.dim() == 0:
        return read(x), constant(0, torch.int64, tuple(x.shape))
    work = WORK.get(x.dtype, x.dtype)
    values, index = sorted_values(cast(read(x), work), dim, descending, has_nan(x))
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
    v = cast(read(x), WORK.get(x.dtype, x.dtype))
    if not largest or has_nan(x):
        values, index = sorted_values(v, dim, largest, has_nan(x))
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
    values, index = sorted_values(cast(read(x), WORK.get(x.dtype, x.dtype)), dim, False, has_nan(x))
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
    values, index = sorted_values(cast(read(x), WORK.get(x.dtype, x.dtype)), dim, False, True)
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
    if has_nan(sequence):
        raise Decline("SearchSorted orders nan otherwise")
    v = _in_order(sequence, read(sequence), sorter)
    out = _search(sequence, read(x), x.dtype, out_int32, right or side == "right", v)
    if has_nan(x):  # behind everything
        n = constant(sequence.size(-1), torch.int32 if out_int32 else torch.int64, tuple(x.shape))
        out = _SELECT(_IS_NAN(cast(read(x), _SEARCHABLE.get(x.dtype, x.dtype))), n, out)
    return out


def _in_order(sequence, v, sorter):
    """The value v of `sequence`, in the order that the index `sorter` says."""
    if sorter is None:
        return v
    if sorter.shape != sequence.shape or sorter.dtype is not torch.int64:
        raise Decline("sorter does not fit")
    a = values_of(sorter)
    if a.min() < 0 or a.max() >= sequence.size(-1):
        raise Decline("sorter index out of range")
    return _GATHER_D(v, sequence.dim() - 1, read(sorter))


@kernel("searchsorted.Scalar")
def searchsorted_scalar(sorted_sequence, self, *, out_int32=False, right=False, side=None, sorter=None):
    if side == "left" and right or sorted_sequence.dim() != 1 or has_nan(sorted_sequence) or self != self:
        raise Decline("a scalar needs a vector")
    if not sorted_sequence.numel():
        return constant(0, torch.int32 if out_int32 else torch.int64)
    dtype = torch.result_type(sorted_sequence, self)
    v = _in_order(sorted_sequence, cast(read(sorted_sequence), dtype), sorter)
    return _search(sorted_sequence, constant(self, dtype), dtype, out_int32, right or side == "right", v)


@kernel("bucketize.Tensor")
def bucketize(self, boundaries, *, out_int32=False, right=False):
    if boundaries.dim() != 1:
        raise Decline("boundaries must be a vector")
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


@kernel("bucketize.Scalar")
def bucketize_scalar(self, boundaries, *, out_int32=False, right=False):
    return searchsorted_scalar(boundaries, self, out_int32=out_int32, right=right)
