"""Embedding: rows looked up by number, and the gradient that gathers them again."""

import torch

from ..registry import Decline, kernel
from ..storage import broadcast, cast, constant, ms, read
from ..tracing import traced
from .index import index_of, moved, moved_back, values_of

P = ms.ops
_GATHER, _SCATTER_ND, _SEGMENT_SUM = P.Gather(), P.ScatterNd(), P.UnsortedSegmentSum()
_DIV, _RESHAPE, _SELECT, _EQUAL = P.Div(), P.Reshape(), P.Select(), P.Equal()


@kernel("embedding")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if weight.dim() != 2:
        raise Decline("weight must be a matrix")
    i = index_of(indices, weight.size(0))
    if not indices.numel() or not weight.size(1):
        return constant(0, weight.dtype, (*indices.shape, weight.size(1)))
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
        g = _DIV(
            g, cast(_RESHAPE(_GATHER(count, i, 0), (-1, 1)), torch.float32 if g.dtype == ms.float32 else grad.dtype)
        )
    if padding_idx >= 0 and (traced(i) or bool((values_of(indices) == padding_idx).any())):
        minus = broadcast(constant(-1, indices.dtype), i.shape)  # UnsortedSegmentSum leaves negative segments out
        out = _SEGMENT_SUM(g, _SELECT(_EQUAL(i, constant(padding_idx, indices.dtype)), minus, i), num_weights)
    else:
        out = _SCATTER_ND(_RESHAPE(i, (-1, 1)), g, (num_weights, width))  # half of UnsortedSegmentSum's time
    return cast(out, grad.dtype)
