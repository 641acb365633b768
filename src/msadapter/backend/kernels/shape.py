"""Joining, repeating, turning and masking by position: values move, nothing is computed."""

import numpy as np
import torch

from .. import fallback
from ..registry import Decline, aten, kernel, raw
from ..storage import capacity, cast, constant, host, ms, read, wrap
from .index import check_dim, moved, moved_back
from .rows import on_rows

P = ms.ops
_CONCAT = [P.Concat(d) for d in range(8)]
_RESHAPE, _TILE, _UPDATE = P.Reshape(), P.Tile(), P.TensorScatterUpdate()
_SEARCH_SORTED = {d: P.SearchSorted(t, True) for d, t in ((torch.int64, ms.int64), (torch.int32, ms.int32))}
_CUM_SUM = P.CumSum()
_CACHE = {}  # (primitive, attribute) -> instance


def _with(primitive, attribute):
    key = primitive, attribute
    if key not in _CACHE:
        _CACHE[key] = primitive(attribute)
    return _CACHE[key]


# -------------------------------------------------------------------------------------------------------------- joining


@kernel("cat")
def cat(tensors, dim=0):
    first = tensors[0]
    dtype, ndim = first.dtype, first.dim()
    for x in tensors:
        if x.dtype is not dtype:
            dtype = torch.result_type(
                torch.empty(1, dtype=dtype, device="meta"), torch.empty(1, dtype=x.dtype, device="meta")
            )
        ndim = max(ndim, x.dim())
        if not x.dim():
            raise Decline("zero-dimensional tensors cannot be concatenated")
    # An empty vector joins anything: what torch once meant by "no tensor yet".
    some = [x for x in tensors if x.dim() == ndim] if ndim > 1 else tensors
    if any(x.dim() != ndim and (x.dim() != 1 or x.numel()) for x in tensors):
        raise Decline("tensors have different numbers of dimensions")
    dim = check_dim(dim, ndim)
    rest = (*some[0].shape[:dim], *some[0].shape[dim + 1 :])
    if any((*x.shape[:dim], *x.shape[dim + 1 :]) != rest for x in some):
        raise Decline("sizes must match except along dim")
    values = [cast(read(x), dtype) for x in some if x.numel()]
    if not values:
        return constant(0, dtype, (*some[0].shape[:dim], sum(x.size(dim) for x in some), *some[0].shape[dim + 1 :]))
    return values[0] if len(values) == 1 else _CONCAT[dim](tuple(values))


@raw("cat")
def cat_strided(tensors, dim=0):
    """`cat`, which keeps the channels-last format when all its inputs have it."""
    try:
        if tensors[0].dim() in (4, 5) and not tensors[0].is_contiguous():
            out = _cat_channels_last(tensors, check_dim(dim, tensors[0].dim()))
            if out is not None:
                return out
        return wrap(cat(tensors, dim))
    except Exception as error:
        return fallback.run(aten.cat.default, (tensors, dim), {}, error)


@kernel("stack")
def stack(tensors, dim=0):
    dim = check_dim(dim, tensors[0].dim() + 1)
    if any(x.shape != tensors[0].shape for x in tensors):
        raise Decline("tensors of different sizes")
    return cat([x.unsqueeze(dim) for x in tensors], dim)


def _cat_channels_last(tensors, dim):
    """The inputs are contiguous when seen channels last: join them there."""
    ndim = tensors[0].dim()
    form = torch.channels_last if ndim == 4 else torch.channels_last_3d
    if not all(x.dim() == ndim and x.is_contiguous(memory_format=form) for x in tensors):
        return None
    perm = (0, *range(2, ndim), 1)
    return cat_strided([x.permute(perm) for x in tensors], perm.index(dim)).permute((0, ndim - 1, *range(1, ndim - 1)))


# --------------------------------------------------------------------------------- a part of a tensor, and its gradient


def _replaced(x, dim, start, stop, v):
    """x (a tensor, or the shape of zeros) with start:stop along dim replaced by v."""
    if isinstance(x, torch.Tensor):
        head, tail = x.narrow(dim, 0, start), x.narrow(dim, stop, x.size(dim) - stop)
        parts = [read(head)] * bool(start) + [v] + [read(tail)] * bool(tail.size(dim))
    else:
        dtype, shape = x
        parts = []
        for n in (start, shape[dim] - stop):
            parts.append(constant(0, dtype, (*shape[:dim], n, *shape[dim + 1 :])) if n else None)
        parts = [p for p in (parts[0], v, parts[1]) if p is not None]
    return parts[0] if len(parts) == 1 else _CONCAT[dim](tuple(parts))


def _select_range(size, index):
    if not -size <= index < size:
        raise Decline("index out of range")
    return index % size


@kernel("select_backward")
def select_backward(grad, sizes, dim, index):
    dim = check_dim(dim, len(sizes))
    if not grad.numel():
        return constant(0, grad.dtype, tuple(sizes))
    index = _select_range(sizes[dim], index)
    return _replaced((grad.dtype, tuple(sizes)), dim, index, index + 1, read(grad.unsqueeze(dim)))


@kernel("select_scatter", layout=True)
def select_scatter(x, src, dim, index):
    dim = check_dim(dim, x.dim())
    if src.dtype is not x.dtype or tuple(src.shape) != (*x.shape[:dim], *x.shape[dim + 1 :]):
        raise Decline("src does not fit")
    index = _select_range(x.size(dim), index)
    return _replaced(x, dim, index, index + 1, read(src.unsqueeze(dim))) if x.numel() else read(x)


def _slice(size, start, end, step):
    """(start, number of elements) of a slice, by Python's rules."""
    if step <= 0:
        raise Decline("slice step must be positive")
    start, end, _ = slice(start, end, step).indices(size)
    return start, len(range(start, end, step))


@kernel("slice_backward")
def slice_backward(grad, sizes, dim, start, end, step):
    dim, shape = check_dim(dim, len(sizes)), tuple(sizes)
    if not grad.numel():
        return constant(0, grad.dtype, shape)
    start, n = _slice(sizes[dim], start, end, step)
    if step == 1:
        return _replaced((grad.dtype, shape), dim, start, start + n, read(grad))
    return _strided(constant(0, grad.dtype, shape), dim, start, n, step, read(grad))


@kernel("slice_scatter", layout=True)
def slice_scatter(x, src, dim=0, start=None, end=None, step=1):
    dim = check_dim(dim, x.dim())
    start, n = _slice(x.size(dim), start, end, step)
    if src.dtype is not x.dtype or tuple(src.shape) != (*x.shape[:dim], n, *x.shape[dim + 1 :]):
        raise Decline("src does not fit")
    if not src.numel():
        return read(x)
    return (
        _replaced(x, dim, start, start + n, read(src))
        if step == 1
        else _strided(read(x), dim, start, n, step, read(src))
    )


@kernel("diagonal_scatter", layout=True)
def diagonal_scatter(x, src, offset=0, dim1=0, dim2=1):
    out = x.clone()
    out.diagonal(offset, dim1, dim2).copy_(src)
    return read(out)


@raw("as_strided_scatter")
def as_strided_scatter(x, src, size, stride, storage_offset=None):
    """A copy of x and of all its storage, with src written where the strides say."""
    try:
        read(x), read(src)
        whole = x.as_strided((capacity(x.untyped_storage()),), (1,), 0)
        out = whole.clone().as_strided(x.shape, x.stride(), x.storage_offset())
        part = out.as_strided(size, stride, storage_offset)
        if part.shape != src.shape:
            raise Decline("src does not fit")
        part.copy_(src)
        return out
    except Exception as error:
        args = x, src, size, stride, storage_offset
        return fallback.run(aten.as_strided_scatter.default, args, {}, error)


def _strided(v, dim, start, n, step, s):
    index = ms.Tensor.from_numpy(np.arange(start, start + n * step, step, dtype=np.int64))
    return on_rows(_UPDATE, v, dim, index, s)


# ------------------------------------------------------------------------------------------------------------ repeating


@kernel("repeat")
def repeat(x, repeats):
    if len(repeats) < x.dim() or min(repeats, default=0) < 0:
        raise Decline("one repeat for each dimension")
    shape = (*[1] * (len(repeats) - x.dim()), *x.shape)
    if not x.numel() or 0 in repeats:
        return constant(0, x.dtype, tuple(n * r for n, r in zip(shape, repeats)))
    v = read(x)
    m = moved(v)
    if m.shape != shape:
        m = _RESHAPE(m, shape)
    return moved_back(_TILE(m, tuple(repeats)) if repeats else m, v)


@kernel("repeat_interleave.Tensor")
def repeat_interleave(repeats, output_size=None):
    """The index that repeats entry i repeats[i] times: where position k falls among the running sums."""
    if repeats.dim() != 1 or repeats.dtype not in _SEARCH_SORTED:
        raise Decline("repeats must be an integer vector")
    counts = host(repeats).numpy()
    total = int(counts.sum())
    if (counts < 0).any() or output_size not in (None, total):
        raise Decline("repeats must not be negative and must add up to output_size")
    if not total:
        return constant(0, repeats.dtype, (0,))
    positions = ms.Tensor.from_numpy(np.arange(total, dtype=counts.dtype))
    return _SEARCH_SORTED[repeats.dtype](_CUM_SUM(read(repeats), 0), positions)


# -------------------------------------------------------------------------------------------------------------- turning


@kernel("roll")
def roll(x, shifts, dims=()):
    shifts, dims = tuple(shifts), tuple(dims)
    if not dims and len(shifts) == 1:
        flat = read(x)
        n = flat.size
        k = shifts[0] % n if n else 0
        flat = _RESHAPE(flat, (n,))
        parts = (_slice_of(flat, n - k, k), _slice_of(flat, 0, n - k))
        return _RESHAPE(_CONCAT[0](parts) if k else flat, tuple(x.shape))
    if len(shifts) != len(dims) or not dims or not x.dim():
        raise Decline("one shift for each dim")
    for shift, dim in zip(shifts, dims):
        dim = check_dim(dim, x.dim())
        n = x.size(dim) if x.dim() else 1
        k = shift % n if n else 0
        if k:
            x = wrap(_CONCAT[dim]((read(x.narrow(dim, n - k, k)), read(x.narrow(dim, 0, n - k)))))
    return read(x)


_SLICE = P.Slice()


def _slice_of(flat, start, n):
    return _SLICE(flat, (start,), (n,))


@kernel("flip", layout=True)
def flip(x, dims):
    dims = tuple(sorted(check_dim(d, x.dim()) for d in dims))
    if len(set(dims)) != len(dims):
        raise Decline("dims must differ")
    v = read(x)
    return moved_back(_with_list(dims)(moved(v)), v) if x.numel() and x.dim() and dims else v


def _with_list(dims):
    key = "flip", dims
    if key not in _CACHE:
        _CACHE[key] = P.ReverseV2(list(dims))
    return _CACHE[key]


# ------------------------------------------------------------------------------------------------------------ triangles


_COMPLEX, _REAL, _IMAG = P.Complex(), P.Real(), P.Imag()


def _triangle(name, primitive):
    @kernel(name)
    def triangle(x, diagonal=0):
        if x.dim() < 2:
            raise Decline("a matrix is needed")
        v = read(x)
        rows, columns = x.shape[-2:]
        if not x.numel():
            return v
        diagonal = max(-rows, min(columns, diagonal))
        part = _with(primitive, diagonal)
        if x.dtype.is_complex:
            return _COMPLEX(part(_REAL(v)), part(_IMAG(v)))
        return moved_back(part(moved(v)), v)


_triangle("tril", P.Tril)
_triangle("triu", P.Triu)
