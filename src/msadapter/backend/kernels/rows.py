"""One index along one dimension: gather, and the `index_*` family, which reads or writes whole slices."""

import math

import torch

from ..registry import Decline, kernel
from ..storage import broadcast, cast, constant, ms, read
from .index import check_dim, check_range, empty, index_of, moved, moved_back, nonnegative, same_dtype, update_add
from .scatter import scatter_reduce

P = ms.ops
_GATHER, _GATHER_D, _UPDATE = P.Gather(), P.GatherD(), P.TensorScatterUpdate()
_MUL, _RESHAPE, _TRANSPOSE = P.Mul(), P.Reshape(), P.Transpose()


@kernel("gather")
def gather(x, dim, index, sparse_grad=False):
    dim = check_dim(dim, x.dim())
    if not index.numel():
        return empty(x, index.shape)
    if max(x.dim(), 1) != max(index.dim(), 1):
        raise Decline("index and input must have the same number of dimensions")
    if any(n > m for d, (n, m) in enumerate(zip(index.shape, x.shape)) if d != dim):
        raise Decline("index is larger than input")
    i, v = index_of(index, x.size(dim) if x.dim() else 1), moved(read(x))
    if x.dim() == 0 or index.dim() == 0:
        out = _RESHAPE(_GATHER(_RESHAPE(v, (-1,)), _RESHAPE(i, (-1,)), 0), tuple(index.shape))
    else:
        out = _GATHER_D(v, dim, i)
    return moved_back(out, read(x))


@kernel("index_select")
def index_select(x, dim, index):
    dim = check_dim(dim, x.dim())
    if index.dim() > 1:
        raise Decline("index must be a vector")
    i = index_of(index, x.size(dim) if x.dim() else 1)
    if x.dim() == 0:
        if index.numel() != 1:
            raise Decline("a 0-dim input takes one index")
        return read(x)
    shape = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    if not math.prod(shape):
        return empty(x, shape)
    if index.dim() == 0:
        i = _RESHAPE(i, (1,))
    v = read(x)
    return moved_back(_GATHER(moved(v), i, dim), v)


@kernel("index_add")
def index_add(x, dim, index, source, alpha=1):
    same_dtype(x, source)
    dim = check_dim(dim, x.dim())
    _check_rows(x, dim, index, source)
    i = index_of(index, x.size(dim) if x.dim() else 1)
    v, s = read(x), read(source)
    if not source.numel():
        return v
    if alpha != 1:
        s = _MUL(s, constant(alpha, x.dtype))
    return on_rows(update_add, v, dim, i, s, exact=False)


@kernel("index_reduce")
def index_reduce(x, dim, index, source, reduce, *, include_self=True):
    """As `scatter_reduce` with the index repeated along the other dimensions."""
    same_dtype(x, source)
    dim = check_dim(dim, x.dim())
    _check_rows(x, dim, index, source)
    index_of(index, x.size(dim) if x.dim() else 1)
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise Decline("no such reduction")
    if not source.numel():
        return read(x)
    flat = x.reshape(1) if not x.dim() else x
    source = source.reshape(flat.shape) if not x.dim() else source.reshape(-1) if not source.dim() else source
    index = index.reshape([-1 if d == dim else 1 for d in range(flat.dim())]).expand(source.shape)
    out = scatter_reduce(flat, dim, index, source, reduce, include_self=include_self)
    return out if x.dim() else _RESHAPE(out, ())


@kernel("index_copy")
def index_copy(x, dim, index, source):
    same_dtype(x, source)
    dim = check_dim(dim, x.dim())
    _check_rows(x, dim, index, source)
    i = index_of(index, x.size(dim) if x.dim() else 1)
    return on_rows(_UPDATE, read(x), dim, i, read(source)) if source.numel() else read(x)


@kernel("index_fill.int_Scalar", "index_fill.int_Tensor", layout=True)
def index_fill(x, dim, index, value):
    dim = check_dim(dim, x.dim())
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
    return on_rows(_UPDATE, read(x), dim, nonnegative(index, n), broadcast(moved(fill), shape))


def _check_rows(x, dim, index, source):
    if index.dim() > 1 or source.dim() != x.dim() and not (source.dim() <= 1 and x.dim() <= 1):
        raise Decline("index must be a vector and source must have the input's dimensions")
    if index.numel() != (source.size(dim) if source.dim() else 1):
        raise Decline("one index for each slice of source")
    if (
        x.dim()
        and source.dim()
        and (*x.shape[:dim], *x.shape[dim + 1 :]) != (*source.shape[:dim], *source.shape[dim + 1 :])
    ):
        raise Decline("slices of input and source differ in shape")


def on_rows(scatter, v, dim, i, s, exact=True):
    """Scatter the slices of s along `dim` into v. `exact`: values only move, so that their bits are enough."""
    shape, like = v.shape, v
    if like.dtype == ms.bfloat16 and not exact:
        return cast(on_rows(scatter, cast(v, torch.float32), dim, i, cast(s, torch.float32)), torch.bfloat16)
    v, s = moved(v), moved(s)
    if not shape:
        v = _RESHAPE(v, (1,))
    v = scatter(_to_front(v, dim), _RESHAPE(i, (-1, 1)), _to_front(_RESHAPE(s, (-1,)) if s.ndim == 0 else s, dim))
    return moved_back(_from_front(v, dim) if shape else _RESHAPE(v, ()), like)


def _to_front(v, dim):
    return v if dim == 0 else _TRANSPOSE(v, (dim, *(d for d in range(v.ndim) if d != dim)))


def _from_front(v, dim):
    return v if dim == 0 else _TRANSPOSE(v, (*range(1, dim + 1), 0, *range(dim + 1, v.ndim)))
