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
    if p == 1:
        v = d.sign() * g
    elif p == math.inf:
        v = d.sign() * g * (d.abs() == dist)
    else:
        # d |d|^(p-2) / dist^(p-1), and zero where the rows agree
        power = d if p == 2 else d.sign() * d.abs() ** (p - 1)
        v = power * (g / (dist if p == 2 else dist ** (p - 1)))
        v = v.masked_fill(dist == 0 if p > 1 else d == 0, 0.0)
    return read(v.sum(-2))
