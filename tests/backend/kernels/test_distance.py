"""Distances between rows against the CPU."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import check


def t(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf))
def test_cdist(p):
    for shape in ((), (2,), (2, 3)):
        check(lambda x, y: torch.cdist(x, y, p), t(*shape, 4, 5), t(*shape, 6, 5, seed=1))
        check(lambda x, y: torch.cdist(x, y, p), t(*shape, 4, 5).double(), t(*shape, 6, 5, seed=1).double())
    check(lambda x, y: torch.cdist(x, y, p), t(5, 4).t(), t(1, 6, 5, seed=1))
    check(lambda x, y: torch.cdist(x, torch.cat([x.detach()[:2], y]), p), t(4, 5), t(3, 5, seed=1))
    check(lambda x, y: torch.cdist(x, y, p), t(0, 5), t(3, 5))


def test_euclidean():
    check(lambda x, y: torch.cdist(x, y), t(40, 5), t(30, 5, seed=1), rtol=1e-5, atol=1e-4)
    check(lambda x, y: torch.dist(x, y), t(4, 5), t(4, 5, seed=1))


@pytest.mark.parametrize("p", (0, 0.5, 1, 1.5, 2, 3, math.inf))
def test_pdist(p):
    for dtype in (torch.float32, torch.float64):
        x = t(5, 4).to(dtype)
        check(lambda x: F.pdist(x, p), x)
        for empty in (x[:1], x[:0], x[:, :0]):  # without a gradient: torch's host kernel ends the process
            check(lambda x: F.pdist(x, p), empty, grad=False)
        x[2] = x[1]
        check(lambda x: F.pdist(x, p), x, grad=p != 0.5)
