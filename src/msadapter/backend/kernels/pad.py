"""Padding, and the two ways to resample a dimension that it shares with interpolation: by index and by matrix."""

import functools

import numpy as np
import torch

from ..registry import Decline, _as_image, kernel
from ..storage import cast, constant, from_host, ms, read, wrap, wrap_strided

P = ms.ops
HALF = {torch.float16, torch.bfloat16}  # computed in float32
_RESHAPE, _GATHER, _MATMUL, _BATCH_MATMUL, _PAD = P.Reshape(), P.Gather(), P.MatMul(), P.BatchMatMul(), P.PadV3()


@functools.lru_cache(256)
def _broadcast(shape):
    return P.BroadcastTo(shape)


def computed(x):
    """x's value; halves in float32."""
    return cast(read(x), torch.float32) if x.dtype in HALF else read(x)


def take(v, indices):
    """v with its last dimensions indexed: `indices` has an int array, or None, for each of them."""
    for axis, index in enumerate(indices, len(v.shape) - len(indices)):
        if index is not None:
            v = _GATHER(v, ms.Tensor.from_numpy(index), axis)
    return v


def along(v, matrices):
    """v with its last dimensions multiplied by matrices of (size, new size), each a host tensor or None."""
    for axis, matrix in enumerate(matrices, len(v.shape) - len(matrices)):
        if matrix is None:
            continue
        shape, (n, size) = v.shape, matrix.shape
        if axis == len(shape) - 1:
            v = _MATMUL(_RESHAPE(v, (-1, n)), from_host(matrix))
        else:
            v = _RESHAPE(v, (int(np.prod(shape[:axis])), n, -1))
            v = _BATCH_MATMUL(_broadcast((v.shape[0], size, n))(from_host(matrix.t().contiguous())), v)
        v = _RESHAPE(v, (*shape[:axis], size, *shape[axis + 1 :]))
    return v


def indicator(index, n, dtype):
    """The matrix that sums what was read through `index` back into n places."""
    matrix = torch.zeros(len(index), n, dtype=dtype, device="cpu")
    matrix[torch.arange(len(index), device="cpu"), torch.from_numpy(index)] = 1
    return matrix


# ------------------------------------------------------------------------------------------------------------ constant


def _padded(op, args, kwargs, v):
    """Where nothing is added torch clones, which keeps the order of the strides."""
    x, pad = args[:2]
    if any(p > 0 for p in pad):
        return wrap(v) if x.is_contiguous() else _as_image(op, args, kwargs, v)
    return wrap_strided(v, torch.empty_like(torch.empty_strided(v.shape, x.stride(), device="meta")).stride())


@kernel("constant_pad_nd", layout=_padded)
def constant_pad(x, pad, value=0):
    if len(pad) % 2 or len(pad) > 2 * x.dim():
        raise Decline("padding")
    # Where an end is cut off, a view does it; then padding is not negative.
    for d in range(len(pad) // 2):
        axis, low, high = x.dim() - 1 - d, max(-pad[2 * d], 0), max(-pad[2 * d + 1], 0)
        if low or high:
            x = x.narrow(axis, low, x.shape[axis] - low - high)
    pad = tuple(max(p, 0) for p in pad)
    rest = x.dim() - len(pad) // 2
    shape = tuple(n + a + b for n, a, b in zip(x.shape, (0,) * rest + pad[-2::-2], (0,) * rest + pad[::-2]))
    if not x.numel():
        return constant(value, x.dtype, shape)
    if not any(pad):
        return read(x)
    dtype = torch.float32 if x.dtype in HALF else x.dtype
    return cast(_PAD(computed(x), pad, constant(value, dtype)), x.dtype)


# --------------------------------------------------------------------------------------------- reflection, replication


def _reflect(n, low, high):
    if low >= n or high >= n:
        raise Decline("padding not smaller than the input")
    return (
        np.abs(np.arange(-low, n + high)) if n == 1 else (n - 1) - np.abs((n - 1) - np.abs(np.arange(-low, n + high)))
    )


def _replicate(n, low, high):
    return np.clip(np.arange(-low, n + high), 0, n - 1)


def _indices(x, pad, rank, index_of):
    if len(pad) != 2 * rank or x.dim() not in (rank + 1, rank + 2) or 0 in x.shape[-rank - 1 :]:
        raise Decline("padding")
    indices = []
    for d in range(rank):
        low, high = pad[2 * (rank - 1 - d)], pad[2 * (rank - 1 - d) + 1]
        n = x.shape[d - rank]
        if n + low + high < 1:
            raise Decline("no output")
        indices.append(np.ascontiguousarray(index_of(n, low, high), np.int64) if low or high else None)
    return indices


def _edge_pad(kind, rank, index_of):
    name = f"{kind}_pad{rank}d"

    @kernel(name, layout="image")
    def forward(x, padding):
        indices = _indices(x, padding, rank, index_of)
        if not x.numel():
            size = [n if i is None else len(i) for n, i in zip(x.shape[-rank:], indices)]
            return constant(0, x.dtype, (*x.shape[:-rank], *size))
        return cast(take(computed(x), indices), x.dtype)

    @kernel(f"{name}_backward")
    def backward(grad, x, padding):
        indices = _indices(x, padding, rank, index_of)
        expected = [n if i is None else len(i) for n, i in zip(x.shape[-rank:], indices)]
        if list(grad.shape[-rank:]) != expected or not (x.is_floating_point() or x.is_complex()) or grad.dtype is not x.dtype:
            raise Decline("mismatched gradient")
        if not x.numel():
            return constant(0, x.dtype, tuple(x.shape))
        dtype = torch.float32 if x.dtype in HALF else x.dtype
        sums = [None if i is None else indicator(i, n, dtype) for i, n in zip(indices, x.shape[-rank:])]
        return cast(along(computed(grad), sums), x.dtype)


for _rank in (1, 2, 3):
    _edge_pad("reflection", _rank, _reflect)
    _edge_pad("replication", _rank, _replicate)
