"""Indexing: gather, scatter, index, masks, embedding.

Gather-like primitives take negative indices, and TensorScatterElements ignores the ones out of range; torch refuses both.
So index values are checked here on the host (a read of the index buffer, no copy) before a primitive sees them.
"""

import math

import numpy as np
import torch

from .. import fallback
from ..registry import Decline, aten, kernel, raw
from ..storage import NP_DTYPE, broadcast, cast, constant, from_host, host, ms, read, wrap, wrap_strided

P = ms.ops
_GATHER, _GATHER_D, _GATHER_ND = P.Gather(), P.GatherD(), P.GatherNd()
_ADD, _SUB, _MUL, _DIV, _FLOORDIV = P.Add(), P.Sub(), P.Mul(), P.Div(), P.FloorDiv()
_RESHAPE, _TRANSPOSE, _SELECT, _LESS, _EQUAL = P.Reshape(), P.Transpose(), P.Select(), P.Less(), P.Equal()
_UPDATE, _UPDATE_ADD = P.TensorScatterUpdate(), P.TensorScatterAdd()
_SCATTER_ND, _SEGMENT_SUM, _NON_ZERO = P.ScatterNd(), P.UnsortedSegmentSum(), P.NonZero()
_MASKED_SELECT, _MASKED_SCATTER = P.MaskedSelect(), P.MaskedScatter()
_CONCAT_LAST, _EXPAND = P.Concat(-1), P.ExpandDims()
_ELEMENTS = {}  # (axis, reduction) -> TensorScatterElements
_REDUCTION = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "add"}
_FLAT_REDUCE = {"mul": P.TensorScatterMul(), "max": P.TensorScatterMax(), "min": P.TensorScatterMin()}


def elements(axis, reduction="none"):
    key = axis, reduction
    if key not in _ELEMENTS:
        _ELEMENTS[key] = P.TensorScatterElements(axis, reduction)
    return _ELEMENTS[key]


# -------------------------------------------------------------------------------------------------------------- helpers


def moved(v):
    """v as a type that the moving primitives take: bfloat16 (which they lack) is seen as int16, with no copy."""
    if v.dtype != ms.bfloat16:
        return v
    return ms.Tensor.from_numpy(v.contiguous().asnumpy().view(np.int16))


def moved_back(v, like):
    if like.dtype != ms.bfloat16 or v.dtype == ms.bfloat16:
        return v
    return ms.Tensor.from_numpy(v.asnumpy().view(NP_DTYPE[torch.bfloat16]))


def values_of(index):
    """The index tensor's numbers on the host."""
    return (host(index) if index.device.type == "mindspore" else index).numpy()


def check_range(index, size, low=0):
    """Decline (torch then raises its IndexError) unless low <= index < size everywhere."""
    a = values_of(index)
    if a.size and (int(a.max()) >= size or int(a.min()) < low):
        raise Decline("index out of range")


def _index(index, size):
    """The value of an index that counts from 0: checked."""
    if index.dtype not in (torch.int64, torch.int32):
        raise Decline(f"an index of dtype {index.dtype}")
    check_range(index, size)
    return read(index)


def _dim(dim, ndim):
    n = max(ndim, 1)
    if not -n <= dim < n:
        raise Decline("dim out of range")
    return dim % n


def _same_dtype(x, y):
    if x.dtype is not y.dtype:
        raise Decline("dtypes differ")


def _empty(x, shape):
    return constant(0, x.dtype, tuple(shape))


def _to_front(v, dim):
    return v if dim == 0 else _TRANSPOSE(v, (dim, *(d for d in range(v.ndim) if d != dim)))


def _from_front(v, dim):
    return v if dim == 0 else _TRANSPOSE(v, (*range(1, dim + 1), 0, *range(dim + 1, v.ndim)))


# ------------------------------------------------------------------------------------------- one index along one dimension


@kernel("gather")
def gather(x, dim, index, sparse_grad=False):
    dim = _dim(dim, x.dim())
    if max(x.dim(), 1) != max(index.dim(), 1):
        raise Decline("index and input must have the same number of dimensions")
    if any(n > m for d, (n, m) in enumerate(zip(index.shape, x.shape)) if d != dim):
        raise Decline("index is larger than input")
    if not index.numel():
        return _empty(x, index.shape)
    i, v = _index(index, x.size(dim) if x.dim() else 1), moved(read(x))
    if x.dim() == 0 or index.dim() == 0:
        out = _RESHAPE(_GATHER(_RESHAPE(v, (-1,)), _RESHAPE(i, (-1,)), 0), tuple(index.shape))
    else:
        out = _GATHER_D(v, dim, i)
    return moved_back(out, read(x))


@kernel("index_select")
def index_select(x, dim, index):
    dim = _dim(dim, x.dim())
    if index.dim() > 1:
        raise Decline("index must be a vector")
    i = _index(index, x.size(dim) if x.dim() else 1)
    if x.dim() == 0:
        if index.numel() != 1:
            raise Decline("a 0-dim input takes one index")
        return read(x)
    shape = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    if not math.prod(shape):
        return _empty(x, shape)
    if index.dim() == 0:
        i = _RESHAPE(i, (1,))
    v = read(x)
    return moved_back(_GATHER(moved(v), i, dim), v)


@kernel("index_add")
def index_add(x, dim, index, source, alpha=1):
    _same_dtype(x, source)
    dim = _dim(dim, x.dim())
    _check_rows(x, dim, index, source)
    i = _index(index, x.size(dim) if x.dim() else 1)
    v, s = read(x), read(source)
    if not source.numel():
        return v
    if alpha != 1:
        s = _MUL(s, constant(alpha, x.dtype))
    return _rows(_UPDATE_ADD, v, dim, i, s, exact=False)


@kernel("index_copy")
def index_copy(x, dim, index, source):
    _same_dtype(x, source)
    dim = _dim(dim, x.dim())
    _check_rows(x, dim, index, source)
    i = _index(index, x.size(dim) if x.dim() else 1)
    return _rows(_UPDATE, read(x), dim, i, read(source)) if source.numel() else read(x)


@kernel("index_fill.int_Scalar", "index_fill.int_Tensor", layout=True)
def index_fill(x, dim, index, value):
    dim = _dim(dim, x.dim())
    if index.dim() > 1:
        raise Decline("index must be a vector")
    n = x.size(dim) if x.dim() else 1
    check_range(index, n, -n)
    if isinstance(value, torch.Tensor):
        if value.dim():
            raise Decline("value must be 0-dim")
        fill = cast(read(value), x.dtype)
    elif isinstance(value, complex) and not x.dtype.is_complex:
        raise Decline("a complex value does not fit")
    else:
        fill = constant(value, x.dtype)
    if not index.numel() or not x.numel():
        return read(x)
    shape = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :]) if x.dim() else (1,)
    return _rows(_UPDATE, read(x), dim, _nonnegative(index, n), broadcast(moved(fill), shape))


def _check_rows(x, dim, index, source):
    if index.dim() > 1 or source.dim() != x.dim() and not (source.dim() <= 1 and x.dim() <= 1):
        raise Decline("index must be a vector and source must have the input's dimensions")
    if index.numel() != (source.size(dim) if source.dim() else 1):
        raise Decline("one index for each slice of source")
    if x.dim() and source.dim() and (*x.shape[:dim], *x.shape[dim + 1 :]) != (*source.shape[:dim], *source.shape[dim + 1 :]):
        raise Decline("slices of input and source differ in shape")


def _rows(scatter, v, dim, i, s, exact=True):
    """Scatter the slices of s along `dim` into v. `exact`: values only move, so that their bits are enough."""
    shape, like = v.shape, v
    if like.dtype == ms.bfloat16 and not exact:
        return cast(_rows(scatter, cast(v, torch.float32), dim, i, cast(s, torch.float32)), torch.bfloat16)
    v, s = moved(v), moved(s)
    if not shape:
        v = _RESHAPE(v, (1,))
    v = scatter(_to_front(v, dim), _RESHAPE(i, (-1, 1)), _to_front(_RESHAPE(s, (-1,)) if s.ndim == 0 else s, dim))
    return moved_back(_from_front(v, dim) if shape else _RESHAPE(v, ()), like)


# -------------------------------------------------------------------------------------------------------------- scatter


@kernel("scatter.src")
def scatter_src(x, dim, index, src):
    return _scatter(x, dim, index, src, "none")


@kernel("scatter.value")
def scatter_value(x, dim, index, value):
    return _scatter(x, dim, index, value, "none")


@kernel("scatter_add")
def scatter_add(x, dim, index, src):
    return _scatter(x, dim, index, src, "add")


@kernel("scatter.reduce")
def scatter_reduce_src(x, dim, index, src, *, reduce):
    return _scatter(x, dim, index, src, _REDUCTION[reduce])


@kernel("scatter.value_reduce")
def scatter_reduce_value(x, dim, index, value, *, reduce):
    return _scatter(x, dim, index, value, _REDUCTION[reduce])


def _scatter(x, dim, index, src, reduction):
    """x with src (a tensor or a number) put at index along dim; out of range indices decline."""
    dim = _dim(dim, x.dim())
    tensor = isinstance(src, torch.Tensor)
    if not index.numel():
        if tensor and src.dtype is not x.dtype:
            raise Decline("dtypes differ")
        return read(x)
    if index.dtype is not torch.int64 or max(x.dim(), 1) != max(index.dim(), 1):
        raise Decline("index must be int64 and have the input's dimensions")
    if any(n > m for d, (n, m) in enumerate(zip(index.shape, x.shape)) if d != dim):
        raise Decline("index is larger than input")
    if tensor:
        _same_dtype(x, src)
        if max(src.dim(), 1) != max(index.dim(), 1) or any(n > m for n, m in zip(index.shape, src.shape)):
            raise Decline("index is larger than src")
        if tuple(src.shape) != tuple(index.shape) and index.dim() and src.dim():
            src = src[tuple(slice(n) for n in index.shape)]
        s = read(src)
    elif isinstance(src, complex) and not x.dtype.is_complex:
        raise Decline("a complex value does not fit")
    else:
        s = constant(src, x.dtype, tuple(index.shape))
    i, v = _index(index, x.size(dim) if x.dim() else 1), read(x)
    if x.dtype is torch.bfloat16 and reduction != "none":
        return cast(_elements(cast(v, torch.float32), dim, i, cast(s, torch.float32), reduction, index), torch.bfloat16)
    return moved_back(_elements(moved(v), dim, i, moved(s), reduction, index), v)


def _elements(v, dim, i, s, reduction, index=None):
    shape = v.shape
    if v.ndim == 0 or i.ndim == 0:
        v, i, s, dim = _RESHAPE(v, (-1,)), _RESHAPE(i, (-1,)), _RESHAPE(s, (-1,)), 0
    if v.dtype in (ms.complex64, ms.complex128):
        return _RESHAPE(_flat(v, dim, i, s, _UPDATE if reduction == "none" else _UPDATE_ADD), shape)
    if reduction in _FLAT_REDUCE:
        return _RESHAPE(_flat(v, dim, i, s, _FLAT_REDUCE[reduction]), shape)
    if reduction == "add" and dim == 0 and v.ndim > 1 and v.dtype != ms.bool_ and v.shape[1:] == i.shape[1:]:
        if index is not None and not any(index.stride()[1:]):  # an expanded vector, as graph networks make: whole rows
            return _UPDATE_ADD(v, _RESHAPE(read(index[(slice(None), *[0] * (v.ndim - 1))]), (-1, 1)), s)
    return _RESHAPE(elements(dim, reduction)(v, i, s), shape)


def _flat(v, dim, i, s, scatter):
    """The same by one linear index, for what TensorScatterElements lacks."""
    return scatter(_RESHAPE(v, (-1,)), _RESHAPE(_linear(v.shape, dim, i), (-1, 1)), _RESHAPE(s, (-1,)))


def _linear(shape, dim, i):
    """Row-major position in `shape` of element i along dim; the part that the shape alone decides is a constant."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    base = np.zeros(i.shape, np.int64)
    for d, n in enumerate(i.shape):
        if d != dim:
            base += (np.arange(n) * strides[d]).reshape([-1 if k == d else 1 for k in range(i.ndim)])
    return _ADD(_MUL(i, constant(strides[dim], torch.int64)), ms.Tensor.from_numpy(base))


@kernel("scatter_reduce.two")
def scatter_reduce(x, dim, index, src, reduce, *, include_self=True):
    dim = _dim(dim, x.dim())
    if not index.numel() or reduce not in ("sum", "prod", "mean", "amax", "amin"):
        return _scatter(x, dim, index, src, "none")
    _same_dtype(x, src)
    if x.dtype in (torch.bool, torch.float16, torch.bfloat16) or x.dtype.is_complex:
        raise Decline(f"scatter_reduce of {x.dtype}")
    if not include_self:
        x = torch.scatter(x, dim, index, _identity(reduce, x.dtype))
    if reduce in ("amax", "amin") and x.dtype.is_floating_point and bool(np.isnan(values_of(src)).any() or np.isnan(values_of(x)).any()):
        raise Decline("TensorScatterMax loses nan")
    total = _scatter(x, dim, index, src, _REDUCTION[reduce])
    if reduce != "mean":
        return total
    dtype = x.dtype
    count = constant(1 if include_self else 0, dtype, tuple(x.shape))
    ones = constant(1, dtype, tuple(index.shape))
    count = _elements(count, dim, read(index), ones, "add")
    if not include_self:
        count = P.Maximum()(count, constant(1, dtype))
    return _DIV(total, count) if dtype.is_floating_point else _FLOORDIV(total, count)


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


# ----------------------------------------------------------------------------------------------- tensors as the index


def _nonnegative(index, size):
    """The value of an index whose negative entries count from the end."""
    i = read(index) if index.device.type == "mindspore" else from_host(index.contiguous())
    if index.numel() and int(values_of(index).min()) < 0:
        i = _SELECT(_LESS(i, constant(0, index.dtype)), _ADD(i, constant(size, index.dtype)), i)
    return i


def _columns(mask):
    """The index vectors that select where mask is true."""
    v = read(mask) if mask.device.type == "mindspore" else from_host(mask.contiguous())
    where = _NON_ZERO(v)
    return [_RESHAPE(P.Slice()(where, (0, d), (where.shape[0], 1)), (-1,)) for d in range(mask.dim())]


def _prepare(x, indices):
    """(first dimension, adjacent, broadcast shape, indexed dimensions, their index values)."""
    dims, tensors, d = [], [], 0
    for index in indices:
        if index is None:
            d += 1
            continue
        if index.dtype in (torch.bool, torch.uint8):
            if index.dim() == 0 or tuple(index.shape) != tuple(x.shape[d : d + index.dim()]):
                raise Decline("the mask does not fit")
            for column in _columns(index):
                dims.append(d)
                tensors.append(column)
                d += 1
            continue
        if index.dtype not in (torch.int64, torch.int32) or d >= x.dim():
            raise Decline(f"an index of dtype {index.dtype}, or too many")
        check_range(index, x.size(d), -x.size(d))
        tensors.append(cast(_nonnegative(index, x.size(d)), torch.int64) if index.dtype is torch.int32 and len(indices) > 1
                       else _nonnegative(index, x.size(d)))  # fmt: skip
        dims.append(d)
        d += 1
    if d > x.dim():
        raise Decline("too many indices")
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    tensors = [t if t.shape == shape else broadcast(t, shape) for t in tensors]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return dims, adjacent, shape, tensors


def _stacked(tensors, shape):
    """The index vectors side by side, as GatherNd and TensorScatter* want them: (*shape, k)."""
    columns = [_RESHAPE(t, (*shape, 1)) for t in tensors]
    return columns[0] if len(columns) == 1 else _CONCAT_LAST(tuple(columns))


@kernel("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(x, indices):
    return _index_tensor(x, indices)[0]


@raw("index.Tensor")
def index_strided(x, indices):
    """`index_tensor` with torch's strides, which follow those of a non-contiguous input or index."""
    try:
        v, place = _index_tensor(x, indices)
        if place is not None and not (x.is_contiguous() and all(i is None or i.is_contiguous() for i in indices)):
            return wrap_strided(v, _index_strides(x, indices, *place))
    except Exception as error:
        return fallback.run(aten.index.Tensor, (x, indices), {}, error)
    return wrap(v)


def _index_strides(x, indices, dims, at, shape):
    """TensorIterator's order of dimensions, by its own insertion sort."""
    rest = [d for d in range(x.dim()) if d not in dims]
    before, after, k = rest[:at], rest[at:], len(shape)
    size = (*(x.size(d) for d in before), *shape, *(x.size(d) for d in after))
    operands = [(*(x.stride(d) for d in before), *[0] * k, *(x.stride(d) for d in after))]
    for i in indices:
        if i is not None:
            own = (1,) * k if i.dtype in (torch.bool, torch.uint8) else i.expand(shape).stride()
            operands.append((*[0] * len(before), *own, *[0] * len(after)))

    def swapped(a, b):
        for stride in operands:
            if stride[a] and stride[b]:
                if stride[a] != stride[b]:
                    return 1 if stride[a] > stride[b] else -1
                if size[a] > size[b]:
                    return 1
        return 0

    perm = list(range(len(size)))[::-1]  # fastest first
    for i in range(1, len(perm)):
        at = i
        for j in range(i - 1, -1, -1):
            order = swapped(perm[j], perm[at])
            if order > 0:
                perm[j], perm[at] = perm[at], perm[j]
                at = j
            elif order < 0:
                break
    strides, step = [0] * len(size), 1
    for d in perm:
        strides[d] = step
        step *= size[d]
    return tuple(strides)


def _index_tensor(x, indices):
    """(value, (indexed dimensions, where their result goes, its shape), or None for a contiguous result)."""
    only = [i for i in indices if i is not None]
    if len(only) == 1 and only[0].dtype is torch.bool and only[0].shape == x.shape and x.dim():
        v = read(x)
        mask = read(only[0]) if only[0].device.type == "mindspore" else from_host(only[0])
        return moved_back(_MASKED_SELECT(moved(v), mask), v) if x.numel() else _empty(x, (0,)), None
    dims, adjacent, shape, tensors = _prepare(x, indices)
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    at = dims[0] if adjacent else 0
    out_shape = (*rest[:at], *shape, *rest[at:])
    if not math.prod(out_shape):
        return _empty(x, out_shape), None
    place = dims, at, shape
    v = read(x)
    m = moved(v)
    if len(dims) == 1:
        return moved_back(_GATHER(m, tensors[0], dims[0]), v), place
    perm = (*dims, *(d for d in range(x.dim()) if d not in dims))
    m = m if perm == tuple(range(x.dim())) else _TRANSPOSE(m, perm)
    out = _GATHER_ND(m, _stacked(tensors, shape))
    if at:
        k = len(shape)
        out = _TRANSPOSE(out, (*range(k, k + at), *range(k), *range(k + at, out.ndim)))
    return moved_back(out, v), place


@kernel("_index_put_impl")
def index_put_impl(x, indices, values, accumulate=False, unsafe=False):
    if values.dtype is not x.dtype:
        raise Decline("dtypes differ")
    v = read(x)
    s = read(values) if values.device.type == "mindspore" else from_host(values)
    only = [i for i in indices if i is not None]
    if not accumulate and values.numel() == 1 and len(only) == 1 and indices[0] is only[0] and only[0].dtype is torch.bool:
        mask = only[0]
        if mask.dim() and tuple(mask.shape) == tuple(x.shape[: mask.dim()]) and x.numel():
            m = read(mask) if mask.device.type == "mindspore" else from_host(mask)
            m = _RESHAPE(m, (*mask.shape, *[1] * (x.dim() - mask.dim())))
            m = m if m.shape == v.shape else broadcast(m, v.shape)
            return moved_back(_SELECT(m, broadcast(_RESHAPE(moved(s), ()), v.shape), moved(v)), v)
    dims, adjacent, shape, tensors = _prepare(x, indices)
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    at, k = (dims[0] if adjacent else 0), len(shape)
    target = (*rest[:at], *shape, *rest[at:])
    if not math.prod(target):
        if np.broadcast_shapes(tuple(values.shape), target) != target:
            raise Decline("values do not fit")
        return v
    if accumulate and x.dtype in (torch.bfloat16, torch.bool):
        if x.dtype is torch.bool:
            raise Decline("accumulate into bool")
        return cast(_put(cast(v, torch.float32), cast(s, torch.float32), dims, at, k, target, shape, tensors, True), x.dtype)
    return moved_back(_put(moved(v), moved(s), dims, at, k, target, shape, tensors, accumulate), v)


def _put(v, s, dims, at, k, target, shape, tensors, accumulate):
    if s.shape != target:
        s = broadcast(s, target)
    if at:
        s = _TRANSPOSE(s, (*range(at, at + k), *range(at), *range(at + k, s.ndim)))
    perm = (*dims, *(d for d in range(v.ndim) if d not in dims))
    straight = perm == tuple(range(v.ndim))
    out = (_UPDATE_ADD if accumulate else _UPDATE)(v if straight else _TRANSPOSE(v, perm), _stacked(tensors, shape), s)
    return out if straight else _TRANSPOSE(out, tuple(np.argsort(perm).tolist()))


# ---------------------------------------------------------------------------------------------------------- flat indices


@kernel("take")
def take(x, index):
    n = x.numel()
    check_range(index, n, -n)
    if not index.numel():
        return _empty(x, index.shape)
    v = read(x)
    return moved_back(_GATHER(_RESHAPE(moved(v), (n,)), _nonnegative(index, n), 0), v)


@kernel("put")
def put(x, index, source, accumulate=False):
    _same_dtype(x, source)
    n = x.numel()
    check_range(index, n, -n)
    if index.numel() != source.numel() or accumulate and x.dtype in (torch.bool, torch.bfloat16):
        raise Decline("one source element for each index")
    if not index.numel():
        return read(x)
    v = read(x)
    out = (_UPDATE_ADD if accumulate else _UPDATE)(
        _RESHAPE(moved(v), (n,)), _RESHAPE(_nonnegative(index, n), (-1, 1)), _RESHAPE(moved(read(source)), (-1,))
    )
    return moved_back(_RESHAPE(out, tuple(x.shape)), v)


# ---------------------------------------------------------------------------------------------------------------- masks


def _mask_pair(x, mask):
    if mask.dtype is not torch.bool:
        raise Decline("the mask must be bool")
    v, m = moved(read(x)), read(mask)
    shape = tuple(np.broadcast_shapes(v.shape, m.shape)) or (1,)
    v, m = (_RESHAPE(t, (1,)) if not t.shape else t for t in (v, m))
    return v if v.shape == shape else broadcast(v, shape), m if m.shape == shape else broadcast(m, shape)


@kernel("masked_select")
def masked_select(x, mask):
    v, m = _mask_pair(x, mask)
    return moved_back(_MASKED_SELECT(v, m), read(x)) if v.size else _empty(x, (0,))


@kernel("masked_scatter")
def masked_scatter(x, mask, source):
    _same_dtype(x, source)
    shape = tuple(np.broadcast_shapes(tuple(x.shape), tuple(mask.shape)))
    v, m = _mask_pair(x, mask)
    if source.numel() < int(np.count_nonzero(values_of(mask.expand(shape)))):
        raise Decline("source has fewer elements than the mask has ones")
    if not v.size or not source.numel():
        return broadcast(read(x), shape)
    if x.dtype.is_complex:
        raise Decline("MaskedScatter has no complex")
    return moved_back(_RESHAPE(_MASKED_SCATTER(v, m, moved(read(source))), shape), read(x))


@kernel("nonzero")
def nonzero(x):
    v = read(x)
    if x.dtype is torch.bfloat16:
        v = cast(v, torch.float32)
    if x.dim() == 0:
        return constant(0, torch.int64, (int(host(x).item() != 0), 0))
    return _NON_ZERO(v) if x.numel() else constant(0, torch.int64, (0, x.dim()))


@raw("nonzero")
def nonzero_strided(x):
    """torch's result is column-major, so that its transpose (a list of edges, say) is contiguous."""
    try:
        v = nonzero(x)
    except Exception as error:
        return fallback.run(aten.nonzero.default, (x,), {}, error)
    return wrap_strided(v, (1, v.shape[0])) if v.size and v.shape[1] > 1 else wrap(v)


# ------------------------------------------------------------------------------------------------------------ embedding


@kernel("embedding")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if weight.dim() != 2:
        raise Decline("weight must be a matrix")
    i = _index(indices, weight.size(0))
    if not indices.numel() or not weight.size(1):
        return _empty(weight, (*indices.shape, weight.size(1)))
    w = read(weight)
    return moved_back(_GATHER(moved(w), i, 0), w)


@kernel("embedding_dense_backward")
def embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq):
    width = grad.size(-1)
    if not indices.numel() or not width:
        return constant(0, grad.dtype, (num_weights, width))
    g = read(grad)
    if grad.dtype is torch.bfloat16:
        g = cast(g, torch.float32)
    g, i = _RESHAPE(g, (-1, width)), _RESHAPE(read(indices), (-1,))
    if scale_grad_by_freq:
        count = _SEGMENT_SUM(constant(1, torch.float32, i.shape), i, num_weights)
        g = _DIV(g, cast(_RESHAPE(_GATHER(count, i, 0), (-1, 1)), torch.float32 if g.dtype == ms.float32 else grad.dtype))
    if padding_idx >= 0 and bool((values_of(indices) == padding_idx).any()):
        minus = broadcast(constant(-1, indices.dtype), i.shape)  # UnsortedSegmentSum leaves negative segments out
        out = _SEGMENT_SUM(g, _SELECT(_EQUAL(i, constant(padding_idx, indices.dtype)), minus, i), num_weights)
    else:
        out = _SCATTER_ND(_RESHAPE(i, (-1, 1)), g, (num_weights, width))  # half of UnsortedSegmentSum's time
    return cast(out, grad.dtype)
