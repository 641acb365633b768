"""`torch.segment_reduce`: reductions over pieces of a dimension, by scattering into one place per piece."""

import math

import numpy as np
import torch

from ..registry import Decline, kernel
from ..storage import read
from .index import check_dim, values_of

_START = {"max": -math.inf, "min": math.inf, "sum": 0, "mean": 0, "prod": 1}
_SCATTER = {"max": "amax", "min": "amin", "sum": "sum", "mean": "sum", "prod": "prod"}


class Segments:
    """Where the elements of data go: rows of data (all dimensions up to `axis` in one) and rows of the result."""

    def __init__(self, data, lengths, offsets, axis, unsafe=True):
        self.axis = axis = check_dim(axis, data.dim())
        given = offsets if lengths is None else lengths
        if given is None or given.dim() != axis + 1 or given.shape[:-1] != data.shape[:axis] or not data.dim():
            raise Decline("lengths or offsets for each segment are needed")
        n, a = data.size(axis), values_of(given).reshape(-1, given.size(-1))
        if lengths is None:
            ends = a
        else:
            ends = np.concatenate((np.zeros((len(a), 1), a.dtype), a.cumsum(1)), 1)
        self.lengths = np.diff(ends, axis=1)
        if (self.lengths < 0).any() or ends.size and (ends.min() < 0 or ends.max() > n):
            raise Decline("segments outside of data")
        if lengths is not None and not unsafe and (ends[:, -1] != n).any():
            raise Decline("lengths must add up to the dimension")
        rows, count = self.lengths.shape
        index = np.full((rows, n), rows * count, np.int64)  # the last place is for what no segment has
        for r in range(rows):
            index[r, ends[r, 0] : ends[r, -1]] = np.repeat(np.arange(count) + r * count, self.lengths[r])
        self.inner, self.places = math.prod(data.shape[axis + 1 :]), rows * count
        self.index = torch.from_numpy(index).reshape(-1, 1).to(data.device).expand(-1, self.inner)
        self.shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
        self.device = data.device

    def rows(self, x):
        return x.reshape(-1, self.inner)

    def sizes(self, dtype):
        return torch.from_numpy(self.lengths.reshape(-1, 1)).to(dtype).to(self.device)

    def reduced(self, rows, how, start):
        """One row per segment."""
        base = rows.new_full((self.places + 1, self.inner), start)
        return base.scatter_reduce(0, self.index, rows, how) if rows.numel() else base

    def spread(self, rows):
        """The segment's row for each element; zeros for elements of no segment."""
        rows = torch.cat((rows.reshape(self.places, self.inner), rows.new_zeros(1, self.inner)))
        return rows.gather(0, self.index)


@kernel("segment_reduce")
def segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    if indices is not None or reduce not in _START or not data.is_floating_point():
        raise Decline("no segments of this")
    s = Segments(data, lengths, offsets, axis, unsafe)
    out = s.reduced(s.rows(data), _SCATTER[reduce], _START[reduce] if initial is None else initial)[: s.places]
    if reduce == "mean":
        sizes = s.sizes(data.dtype)
        out = out / (sizes if initial is None else sizes.clamp(min=1))
    return read(out.reshape(s.shape))


@kernel("_segment_reduce_backward")
def segment_reduce_backward(grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None):
    if reduce not in _START or grad.dtype is not data.dtype or output.dtype is not data.dtype:
        raise Decline("no segments of this")
    s = Segments(data, lengths, offsets, axis)
    if grad.shape != s.shape or output.shape != s.shape:
        raise Decline("mismatched gradient")
    if not data.numel():
        return read(torch.zeros_like(data))
    rows, g = s.rows(data), grad.contiguous()
    if reduce == "mean":
        g = s.rows(g) / s.sizes(data.dtype).clamp(min=1)
    v = s.spread(g)
    if reduce in ("max", "min"):  # shared among those that are the extreme, but torch shares positive gradients only
        chosen = ((rows == s.spread(output)) | rows.isnan()).to(data.dtype)
        shared = v / s.spread(s.reduced(chosen, "sum", 0)[: s.places]).clamp(min=1)
        v = torch.where(v > 0, shared, v) * chosen
    if reduce == "prod":
        v = v * _others(s, rows, 1 if initial is None else initial)
    return read(v.reshape(data.shape))


def _others(s, rows, initial):
    """The product of the other elements of the segment, and of `initial`: without dividing by zeros."""
    zero = rows == 0
    product = s.spread(s.reduced(rows.masked_fill(zero, 1), "prod", initial)[: s.places])
    zeros = s.spread(s.reduced(zero.to(rows.dtype), "sum", 0)[: s.places])
    alone = torch.where(zero, product, product / rows)
    return torch.where(zeros == zero.to(rows.dtype), alone, 0.0)
