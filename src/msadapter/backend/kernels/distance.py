"""Distances between rows and their gradients, by broadcast differences, in the device's own tensor operations."""

import math

import torch

from ..registry import Decline, kernel
from ..storage import ms, read

_CDIST = {}  # p -> Cdist


def _differences(x1, x2):
    """Every row of x1 minus every row of x2: (..., P, R, M)."""
    return x1.unsqueeze(-2) - x2.unsqueeze(-3)


@kernel("_cdist_forward")
def cdist_forward(x1, x2, p, compute_mode):
    if x1.dtype is not x2.dtype or x1.dtype not in (torch.float32, torch.float64):
        raise Decline("cdist needs float32 or float64")
    if not x1.numel() or not x2.numel():
        return read(x1.new_zeros(torch.broadcast_shapes((*x1.shape[:-1], 1), (*x2.shape[:-2], 1, x2.size(-2)))))
    if x1.dtype is torch.float32 and x1.dim() in (2, 3) and x1.shape[:-2] == x2.shape[:-2]:
        if p not in _CDIST:
            _CDIST[p] = ms.ops.Cdist(float(p))
        return _CDIST[p](read(x1), read(x2))
    return read(torch.linalg.vector_norm(_differences(x1, x2), p, -1))  # Cdist computes float64 in float32


@kernel("_cdist_backward")
def cdist_backward(grad, x1, x2, p, cdist):
    if 0 in grad.shape or p == 0 or not x1.numel():
        return read(torch.zeros_like(x1))
    d, dist, g = _differences(x1, x2), cdist.unsqueeze(-1), grad.unsqueeze(-1)
    return read(_gradient(d, dist, g, p).sum(-2))


def _gradient(d, dist, g, p):
    """The gradient g of norms `dist` with respect to the differences d."""
    if p == 1:
        return d.sign() * g
    if p == math.inf:
        return d.sign() * g * (d.abs() == dist)
    # d |d|^(p-2) / dist^(p-1), and zero where the rows agree
    power = d if p == 2 else d.sign() * d.abs() ** (p - 1)
    v = power * (g / (dist if p == 2 else dist ** (p - 1)))
    return v.masked_fill(dist == 0 if p > 1 else d == 0, 0.0)


def _pairs(x):
    """The numbers of the first and of the second row of each pair, in order."""
    first, second = torch.triu_indices(x.size(0), x.size(0), 1, device="cpu").unbind()
    return first.contiguous().to(x.device), second.contiguous().to(x.device)


@kernel("_pdist_forward")
def pdist_forward(x, p=2.0):
    if x.dtype not in (torch.float32, torch.float64) or x.dim() != 2 or p < 0:
        raise Decline("pdist needs float32 or float64 rows")
    if x.size(0) < 2 or not x.size(1):
        return read(x.new_zeros(x.size(0) * (x.size(0) - 1) // 2 if x.size(0) else 0))
    first, second = _pairs(x)
    return read(torch.linalg.vector_norm(x[first] - x[second], p, -1))


@kernel("_pdist_backward")
def pdist_backward(grad, x, p, pdist):
    if not grad.numel() or not x.numel() or p == 0:
        return read(torch.zeros_like(x))
    first, second = _pairs(x)
    v = _gradient(x[first] - x[second], pdist.unsqueeze(-1), grad.unsqueeze(-1), p)
    return read(torch.zeros_like(x).index_add(0, first, v).index_add(0, second, v, alpha=-1))
