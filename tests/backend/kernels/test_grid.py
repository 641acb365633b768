"""Sampling at a grid against the CPU."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import check

CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.float64: {}, torch.float16: {"rtol": 1e-2, "atol": 2e-2}}
OPTIONS = list(itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rank", (2, 3))
def test_grid_sample(options, rank):
    if rank == 3 and options[0] == "bicubic":
        return
    for dtype, close in CLOSE.items():
        if dtype is torch.float16 and options[0] == "nearest":
            continue  # the nearest place depends on rounding
        x, grid = torch.randn(2, 3, *(5, 6, 4)[:rank]), torch.randn(2, *(4, 3, 2)[:rank], rank) * 1.2
        grad = dtype is not torch.float16
        check(lambda x, g: F.grid_sample(x, g, *options), x.to(dtype), grid.to(dtype), grad=grad, **close)
    if rank == 2:
        check(lambda x, g: F.grid_sample(x, g, *options), torch.randn(1, 1, 3, 1).double(), torch.randn(1, 4, 3, 2).double())
