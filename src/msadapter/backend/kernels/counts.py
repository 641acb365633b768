"""Counts: how often each value, or each bin, occurs, and which value most often."""

import math

import numpy as np
import torch

from ..registry import Decline, kernel
from ..storage import broadcast, cast, constant, host, ms, read, wrap
from .index import check_dim, values_of

P = ms.ops
_SELECT, _SEGMENT_SUM, _RESHAPE = P.Select(), P.UnsortedSegmentSum(), P.Reshape()
_SUB, _DIV, _MUL, _FLOOR, _MINIMUM = P.Sub(), P.Div(), P.Mul(), P.Floor(), P.Minimum()
_AND, _GE, _LE = P.LogicalAnd(), P.GreaterEqual(), P.LessEqual()


@kernel("bincount")
def bincount(x, weights=None, minlength=0):
    if x.dim() != 1 or x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool or minlength < 0:
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
    inside = _AND(_GE(v, low), _LE(v, high))
    width = constant(
        torch.tensor(max, dtype=x.dtype, device="cpu").sub(torch.tensor(min, dtype=x.dtype, device="cpu")).item(),
        x.dtype,
    )
    position = _MUL(_DIV(_SUB(v, low), width), constant(bins, x.dtype))
    position = _MINIMUM(_FLOOR(position), constant(bins - 1, x.dtype))
    outside = broadcast(constant(-1, x.dtype), position.shape)  # UnsortedSegmentSum leaves negative segments out
    position = cast(_SELECT(inside, position, outside), torch.int64)
    return _SEGMENT_SUM(constant(1, x.dtype, (x.numel(),)), position, bins)


# ----------------------------------------------------------------------------------------------- histograms with edges
# In the device's own tensor operations, as torch's host kernels do it: a bin has its left edge, the last one both.


def _edges(x, bins, range):
    """The edges of so many equal bins per column of x, between its extremes or the ends in `range`."""
    rows, columns = x.shape
    if len(bins) != columns or min(bins) < 1 or range is not None and len(range) != 2 * columns:
        raise Decline("bins and range do not fit")
    edges = []
    for d, n in enumerate(bins):
        if range is not None:
            low, high = range[2 * d], range[2 * d + 1]
        elif rows:
            low, high = (v.item() for v in torch.aminmax(x[:, d]))
        else:
            low, high = 0.0, 1.0
        if not math.isfinite(low) or not math.isfinite(high) or low > high:
            raise Decline("the range must be finite")
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges.append(torch.linspace(low, high, n + 1, dtype=x.dtype, device=x.device))
    return edges


def _histogram(x, edges, weight, density):
    """Counts (or sums of weights) of the rows of x in the grid of bins that the edges of each column make."""
    if x.dtype not in (torch.float32, torch.float64) or len(edges) != x.size(1) or not len(edges):
        raise Decline(f"no histogram of {x.dtype}")
    if weight is not None and (weight.numel() != x.size(0) or weight.dtype is not x.dtype):
        raise Decline("one weight for each row")
    shape = [e.numel() - 1 for e in edges]
    if min(shape) < 1:
        raise Decline("a bin has two edges")
    inside, position = torch.ones(x.size(0), dtype=torch.bool, device=x.device), 0
    for column, e in zip(x.unbind(1), edges):
        if e.dtype is not x.dtype or e.dim() != 1:
            raise Decline("edges must be vectors of the input's dtype")
        column, n = column.contiguous(), e.numel() - 1
        at = torch.searchsorted(e, column, right=True) - 1
        inside = inside & (column >= e[0]) & (column <= e[-1])
        position = position * n + at.clamp(max=n - 1)
    position = position.masked_fill(~inside, -1)  # UnsortedSegmentSum leaves negative segments out
    ones = torch.ones(x.size(0), dtype=x.dtype, device=x.device) if weight is None else weight.reshape(-1)
    if x.size(0):
        total = _SEGMENT_SUM(read(ones), read(position), math.prod(shape))
    else:
        total = constant(0, x.dtype, (math.prod(shape),))
    counts = wrap(_RESHAPE(total, tuple(shape)))
    if density:
        counts = counts / counts.sum()
        for d, e in enumerate(edges):
            counts = counts / e.diff().reshape([-1 if k == d else 1 for k in range(len(edges))])
    return counts


def _vector(x):
    return x.reshape(-1, 1)


def _rows(x):
    if x.dim() < 2:
        raise Decline("a matrix is needed")
    return x.reshape(-1, x.size(-1))


@kernel("histogram.bin_ct")
def histogram(x, bins=100, *, range=None, weight=None, density=False):
    edges = _edges(_vector(x), [bins], range)
    return read(_histogram(_vector(x), edges, weight, density)), read(edges[0])


@kernel("histogram.bins_tensor")
def histogram_edges(x, bins, *, weight=None, density=False):
    return read(_histogram(_vector(x), [bins], weight, density)), read(bins)


@kernel("_histogramdd_bin_edges")
def histogramdd_bin_edges(x, bins, *, range=None, weight=None, density=False):
    return [read(e) for e in _edges(_rows(x), bins, range)]


@kernel("_histogramdd_from_bin_cts")
def histogramdd(x, bins, *, range=None, weight=None, density=False):
    return read(_histogram(_rows(x), _edges(_rows(x), bins, range), weight, density))


@kernel("_histogramdd_from_bin_tensors")
def histogramdd_edges(x, bins, *, weight=None, density=False):
    return read(_histogram(_rows(x), bins, weight, density))


# ----------------------------------------------------------------------------------------------------------------- mode


@kernel("mode")
def mode(x, dim=-1, keepdim=False):
    """The first of the longest runs in order, and where its last element came from."""
    dim = check_dim(dim, x.dim())
    if not x.numel():
        raise Decline("nothing occurs")
    if x.dim() == 0:
        return read(x), constant(0, torch.int64)
    v, index = x.sort(dim=dim, stable=True)
    n = x.size(dim)
    place = torch.arange(n, device=x.device).reshape([-1 if d == dim else 1 for d in range(x.dim())])
    begins = v.narrow(dim, 1, n - 1) != v.narrow(dim, 0, n - 1)
    start = torch.cat((torch.zeros_like(begins.narrow(dim, 0, 1) if n > 1 else v, dtype=torch.bool), begins), dim)
    start = torch.where(start, place, 0).cummax(dim).values
    at = (place - start).argmax(dim, keepdim=True)
    values, index = v.gather(dim, at), index.gather(dim, at)
    return (read(values), read(index)) if keepdim else (read(values.squeeze(dim)), read(index.squeeze(dim)))
