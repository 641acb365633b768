"""Indexing by tensors and by masks.

Gather takes negative indices, and TensorScatterElements ignores the ones out of range; torch refuses both. So index
values are checked here on the host (a read of the index buffer, no copy) before a primitive sees them.
"""

import math

import numpy as np
import torch

from .. import fallback
from ..registry import Decline, aten, in_place, kernel, raw
from ..storage import NP_DTYPE, broadcast, cast, constant, from_host, host, ms, read, wrap, wrap_strided
from ..tracing import expect, look, traced

P = ms.ops
_CAST = P.Cast()
_GATHER, _GATHER_ND, _ADD, _SELECT, _LESS = P.Gather(), P.GatherNd(), P.Add(), P.Select(), P.Less()
_RESHAPE, _TRANSPOSE, _SLICE, _CONCAT, _CONCAT_LAST = P.Reshape(), P.Transpose(), P.Slice(), P.Concat(0), P.Concat(-1)
_UPDATE, _UPDATE_ADD, _NON_ZERO = P.TensorScatterUpdate(), P.TensorScatterAdd(), P.NonZero()
_MASKED_SELECT, _MASKED_SCATTER = P.MaskedSelect(), P.MaskedScatter()
_COMPLEX, _REAL, _IMAG = P.Complex(), P.Real(), P.Imag()


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


def values_of(x):
    """The tensor's numbers on the host. For reading only."""
    return read(x).asnumpy() if x.device.type == "mindspore" else x.detach().numpy()


def update_add(v, index, s):
    """v with s added at the index: TensorScatterAdd has no complex numbers."""
    if v.dtype not in (ms.complex64, ms.complex128):
        return _UPDATE_ADD(v, index, s)
    return _COMPLEX(*(_UPDATE_ADD(part(v), index, part(s)) for part in (_REAL, _IMAG)))


def check_range(index, size, low=0):
    """Decline (torch then raises its IndexError) unless low <= index < size everywhere."""
    a = values_of(index) if index.device.type != "mindspore" else look(read(index))
    if index.device.type == "mindspore":
        expect(read(index), low, size)
    if a.size and (a.max() >= size or a.min() < low):
        raise Decline("index out of range")


def widened(v):
    """An int32 index as int64, on the host: Cast selects a kernel at each call, which takes 50 times as long."""
    if v.dtype == ms.int64:
        return v
    return _CAST(v, ms.int64) if traced(v) else ms.Tensor.from_numpy(v.asnumpy().astype(np.int64))


_UNSIGNED = {torch.int64: np.uint64, torch.int32: np.uint32}


def index_of(index, size):
    """The value of an index that counts from 0: checked (as unsigned numbers, negative ones are too large)."""
    if index.dtype not in _UNSIGNED:
        raise Decline(f"an index of dtype {index.dtype}")
    v = read(index)
    a = look(v)
    expect(v, 0, size)
    if a.size and a.view(_UNSIGNED[index.dtype]).max() >= size:
        raise Decline("index out of range")
    return v


def check_dim(dim, ndim):
    n = max(ndim, 1)
    if not -n <= dim < n:
        raise Decline("dim out of range")
    return dim % n


def same_dtype(x, y):
    if x.dtype is not y.dtype:
        raise Decline("dtypes differ")


def empty(x, shape):
    return constant(0, x.dtype, tuple(shape))


# ------------------------------------------------------------------------------------------------- tensors as the index


def nonnegative(index, size):
    """The value of an index whose negative entries count from the end."""
    i = read(index) if index.device.type == "mindspore" else from_host(index.contiguous())
    if index.numel() and (traced(i) or int(values_of(index).min()) < 0):
        i = _SELECT(_LESS(i, constant(0, index.dtype)), _ADD(i, constant(size, index.dtype)), i)
    return i


def _columns(mask):
    """The index vectors that select where mask is true."""
    v = read(mask) if mask.device.type == "mindspore" else from_host(mask.contiguous())
    where = _NON_ZERO(v)
    return [_RESHAPE(_SLICE(where, (0, d), (where.shape[0], 1)), (-1,)) for d in range(mask.dim())]


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
        tensors.append(widened(nonnegative(index, x.size(d))))
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
        return moved_back(_MASKED_SELECT(moved(v), mask), v) if x.numel() else empty(x, (0,)), None
    dims, adjacent, shape, tensors = _prepare(x, indices)
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    at = dims[0] if adjacent else 0
    out_shape = (*rest[:at], *shape, *rest[at:])
    if not math.prod(out_shape):
        return empty(x, out_shape), None
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
    if (
        not accumulate
        and values.numel() == 1
        and len(only) == 1
        and indices[0] is only[0]
        and only[0].dtype is torch.bool
    ):
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
        return cast(
            _put(cast(v, torch.float32), cast(s, torch.float32), dims, at, k, target, shape, tensors, True), x.dtype
        )
    return moved_back(_put(moved(v), moved(s), dims, at, k, target, shape, tensors, accumulate), v)


@raw("_index_put_impl_")
def index_put_in_place(x, indices, values, accumulate=False, unsafe=False):
    """`x[index] = number` on an expanded x, which torch still allows, is masked_fill_ where the index points."""
    if 0 in x.stride() and values.numel() == 1 and not accumulate and x.numel():
        chosen = torch.zeros(x.shape, dtype=torch.bool, device="mindspore")
        chosen.index_put_(indices, torch.ones((), dtype=torch.bool, device="mindspore"))
        return x.masked_fill_(chosen, values.to(x.dtype).reshape(()))
    return in_place("_index_put_impl_")(x, indices, values, accumulate, unsafe)


def _put(v, s, dims, at, k, target, shape, tensors, accumulate):
    if s.shape != target:
        s = broadcast(s, target)
    if at:
        s = _TRANSPOSE(s, (*range(at, at + k), *range(at), *range(at + k, s.ndim)))
    perm = (*dims, *(d for d in range(v.ndim) if d not in dims))
    straight = perm == tuple(range(v.ndim))
    out = (update_add if accumulate else _UPDATE)(v if straight else _TRANSPOSE(v, perm), _stacked(tensors, shape), s)
    return out if straight else _TRANSPOSE(out, tuple(np.argsort(perm).tolist()))


# --------------------------------------------------------------------------------------------------------- flat indices


@kernel("take")
def take(x, index):
    n = x.numel()
    if index.dtype is not torch.int64:
        raise Decline("indices of another type")
    check_range(index, n, -n)
    if not index.numel():
        return empty(x, index.shape)
    v = read(x)
    return moved_back(_GATHER(_RESHAPE(moved(v), (n,)), nonnegative(index, n), 0), v)


@kernel("put")
def put(x, index, source, accumulate=False):
    same_dtype(x, source)
    n = x.numel()
    check_range(index, n, -n)
    if index.numel() != source.numel() or accumulate and x.dtype in (torch.bool, torch.bfloat16):
        raise Decline("one source element for each index")
    if not index.numel():
        return read(x)
    v = read(x)
    out = (update_add if accumulate else _UPDATE)(
        _RESHAPE(moved(v), (n,)), _RESHAPE(nonnegative(index, n), (-1, 1)), _RESHAPE(moved(read(source)), (-1,))
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
    return moved_back(_MASKED_SELECT(v, m), read(x)) if v.size else empty(x, (0,))


@kernel("masked_scatter")
def masked_scatter(x, mask, source):
    same_dtype(x, source)
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


@kernel("nonzero_static")
def nonzero_static(x, *, size, fill_value=-1):
    """The first `size` places, filled up to that number."""
    if size < 0:
        raise Decline("a negative size")
    if not x.dim() or not size:
        return constant(0, torch.int64, (size, x.dim()))
    v = nonzero(x)
    missing = size - v.shape[0]
    if missing <= 0:
        return _SLICE(v, (0, 0), (size, x.dim()))
    rest = constant(fill_value, torch.int64, (missing, x.dim()))
    return _CONCAT((v, rest)) if v.size else rest
