"""Embedding bags: rows looked up by number and reduced bag by bag.

Which element is in which bag is read on the host, like every index here.
"""

import numpy as np
import torch

from .. import fallback
from ..registry import Decline, aten, kernel, raw
from ..storage import cast, constant, ms, read, wrap
from .index import index_of, values_of, widened

P = ms.ops
_SEGMENT_SUM = P.UnsortedSegmentSum()
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_SUM, _MEAN, _MAX = range(3)


def _bag_of(offsets, n, count):
    """The bag of each of n elements; -1 behind the last bag."""
    bags = np.searchsorted(offsets, np.arange(n), side="right") - 1
    return np.where(bags < count, bags, -1)


def _on_device(a):
    return wrap(ms.Tensor.from_numpy(np.ascontiguousarray(a, np.int64)))


def _sums(rows, places, count):
    """The sum of the rows that go to each of `count` places (a host array; negative: nowhere)."""
    if not rows.numel() or not count:
        return rows.new_zeros(count, rows.size(1))
    work = torch.float64 if rows.dtype is torch.float64 else torch.float32
    index = ms.Tensor.from_numpy(np.ascontiguousarray(places, np.int64))
    return wrap(cast(_SEGMENT_SUM(cast(read(rows), work), index, count), rows.dtype))


@kernel("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1,
):  # fmt: skip
    if weight.dim() != 2 or weight.dtype not in _FLOATS or indices.dim() != 1 or offsets.dim() != 1:
        raise Decline("no embedding bag of this")
    i = index_of(indices, weight.size(0))
    a, start, n = values_of(indices).astype(np.int64), values_of(offsets), indices.numel()
    count = offsets.numel() - bool(include_last_offset)
    if count < 0 or offsets.dtype not in (torch.int64, torch.int32) or (offsets.numel() and (start[0] or start[-1] > n)):
        raise Decline("offsets begin at 0 and do not go beyond the elements")
    if per_sample_weights is not None and (
        mode != _SUM or per_sample_weights.dtype is not weight.dtype or per_sample_weights.shape != indices.shape
    ):
        raise Decline("one weight for each element of a sum")
    bags = _bag_of(start, n, count)
    used = np.where((a == padding_idx) & (padding_idx >= 0), -1, bags)
    size = np.bincount(used[used >= 0], minlength=count).astype(np.int64)
    if not n or not weight.size(1):
        out, best = weight.new_zeros(count, weight.size(1)), None
    elif mode == _MAX:
        out, best = _maxima(weight, a, used, count)
    else:
        work = torch.float64 if weight.dtype is torch.float64 else torch.float32
        rows, best = weight.index_select(0, wrap(widened(i))).to(work), None
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.to(work).unsqueeze(1)
        out = _sums(rows, used, count)
        if mode == _MEAN:
            out = out / _on_device(size.clip(1)).to(work).unsqueeze(1)
        out = out.to(weight.dtype)
    if best is None:
        best = constant(0, torch.int64, (count, weight.size(1)) if mode == _MAX else size.shape)
    as_index = lambda v: cast(ms.Tensor.from_numpy(np.ascontiguousarray(v, np.int64)), offsets.dtype)  # noqa: E731
    return read(out), as_index(bags), as_index(size), cast(best, offsets.dtype)


def _maxima(weight, a, used, count):
    """(the greatest number of each bag and column, the row of weight it is from): bags padded to one length."""
    order = np.flatnonzero(used >= 0)
    members = [a[order[used[order] == b]] for b in range(count)]
    longest = max(map(len, members), default=0)
    if not longest:
        return weight.new_zeros(count, weight.size(1)), None
    table = np.zeros((count, longest), np.int64)
    for row, m in zip(table, members):
        row[:] = np.pad(m, (0, longest - len(m)), mode="edge") if len(m) else 0
    rows = _on_device(table)
    v = weight.index_select(0, rows.reshape(-1)).reshape(count, longest, -1)
    if bool(v.isnan().any()):
        raise Decline("Argmax orders nan otherwise")
    at = v.argmax(1, keepdim=True)
    filled = _on_device([[len(m) > 0] for m in members])
    values = v.gather(1, at).squeeze(1).masked_fill(filled == 0, 0.0)
    found = rows.unsqueeze(2).expand_as(v).gather(1, at).squeeze(1) * filled
    return values, read(found)


def embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse,
    per_sample_weights, padding_idx=-1,
):  # fmt: skip
    bags = _bag_of(values_of(offsets), indices.numel(), grad.size(0))
    return _backward(grad, indices, bags, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
                     per_sample_weights, padding_idx)  # fmt: skip


@raw("_embedding_bag_backward")
def backward_of_either_layout(grad, *args, **kwargs):
    """A sparse gradient is torch's own composition, and no value that a kernel returns."""
    indices, offsets, bags, size, best, num_weights, by_frequency, mode, sparse, weights, *padding = args
    if sparse:
        rest = num_weights, by_frequency, mode, weights, *padding
        return aten._embedding_bag_sparse_backward(grad, indices, offsets, bags, size, *rest, **kwargs)
    try:
        return wrap(embedding_bag_backward(grad, *args, **kwargs))
    except Exception as error:
        return fallback.run(aten._embedding_bag_backward.default, (grad, *args), kwargs, error)


@kernel("_embedding_bag_dense_backward")
def dense_backward(
    grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
    padding_idx=-1,
):  # fmt: skip
    return _backward(grad, indices, values_of(offset2bag), bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
                     per_sample_weights, padding_idx)  # fmt: skip


def _backward(grad, indices, bags, bag_size, best, num_weights, by_frequency, mode, per_sample_weights, padding_idx):
    if not indices.numel() or not grad.numel():
        return read(grad.new_zeros(num_weights, grad.size(1)))
    dtype, work = grad.dtype, torch.float64 if grad.dtype is torch.float64 else torch.float32
    g = grad.to(work)
    if mode == _MAX:
        g = g.masked_fill(bag_size.unsqueeze(1) == 0, 0.0)
        return read(g.new_zeros(num_weights, g.size(1)).scatter_add(0, best.long(), g).to(dtype))
    a = values_of(indices)
    g = g.index_select(0, _on_device(np.maximum(bags, 0)))
    if mode == _MEAN:
        size = values_of(bag_size).clip(1)[np.maximum(bags, 0)]
        g = g / _on_device(size).to(work).unsqueeze(1)
    if per_sample_weights is not None:
        g = g * per_sample_weights.to(work).unsqueeze(1)
    if by_frequency:
        times = np.bincount(a, minlength=num_weights)[a]
        g = g / _on_device(times).to(work).unsqueeze(1)
    nowhere = (bags < 0) | ((a == padding_idx) & (padding_idx >= 0))
    return read(_sums(g, np.where(nowhere, -1, a), num_weights).to(dtype))


@kernel("_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    if mode != _SUM:
        raise Decline("weights are for sums")
    if not indices.numel():
        return read(grad.new_zeros(0))
    a, bags = values_of(indices), _bag_of(values_of(offsets), indices.numel(), grad.size(0))
    nowhere = _on_device((bags < 0) | ((a == padding_idx) & (padding_idx >= 0)))
    work = torch.float64 if grad.dtype is torch.float64 else torch.float32
    rows = weight.index_select(0, indices).to(work)
    g = grad.to(work).index_select(0, _on_device(np.maximum(bags, 0)))
    return read((rows * g).sum(1).masked_fill(nowhere != 0, 0.0).to(grad.dtype))
