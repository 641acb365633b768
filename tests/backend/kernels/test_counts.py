"""Histograms, the mode and hashes against the CPU."""

import pytest
import torch

from tests.backend.kernels.errors import check_error
from tests.backend.kernels.util import check


def t(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


@pytest.mark.parametrize("dtype", (torch.int64, torch.int8, torch.bool, torch.float32, torch.float64, torch.bfloat16))
def test_mode(dtype):
    x = t(5, 6, 7).remainder(3 if dtype is not torch.bool else 2).floor().to(dtype)
    for dim in (0, 1, -1):
        check(lambda x: (x.mode(dim), x.mode(dim, True)), x)
    check(lambda x: (x[0, 0, 0].mode(), x[:, :1].mode(1)), x)


def test_mode_out():
    x = t(4, 9).round().to("mindspore")
    values, indices = torch.empty(0, device="mindspore"), torch.empty(0, dtype=torch.int64, device="mindspore")
    torch.mode(x, 1, out=(values, indices))
    expected = x.cpu().mode(1)
    assert torch.equal(values.cpu(), expected.values) and torch.equal(indices.cpu(), expected.indices)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_histogram(dtype):
    x, w = t(40, dtype=dtype), t(40, dtype=dtype, seed=1).abs()
    for bins in (1, 4, 7):
        check(lambda x, w: (x.histogram(bins), x.histogram(bins, weight=w)), x, w, grad=False)
        check(lambda x: x.histogram(bins, range=(-1, 1), density=True), x, grad=False)
    edges = torch.tensor([-1, 0, 0.5, 3], dtype=dtype)
    check(lambda x, e, w: (x.histogram(e), x.histogram(e, weight=w, density=True)), x, edges, w, grad=False)
    check(lambda x: x[:0].histogram(3), x, grad=False)
    check(lambda x: x.histogram(3), torch.ones(3, dtype=dtype), grad=False)
    check_error(lambda x: x.histogram(0), x)
    check_error(lambda x: x.histogram(3), x / 0)


def test_histogramdd():
    x, w = t(30, 2), t(30, seed=1).abs()
    check(lambda x, w: list(torch.histogramdd(x, [2, 3], weight=w, density=True).bin_edges), x, w, grad=False)
    check(lambda x, w: torch.histogramdd(x, [2, 3], weight=w, density=True).hist, x, w, grad=False)
    check(lambda x: torch.histogramdd(x, 2, range=(-1.0, 1.0, -2.0, 2.0)).hist, x, grad=False)


@pytest.mark.parametrize(
    "dtype", (torch.int64, torch.int8, torch.bool, torch.float32, torch.float64, torch.bfloat16, torch.float16)
)
def test_hash(dtype):
    x = t(3, 4, 5).mul(10).to(dtype)
    for dim in ((), (0,), (2, 1)):
        check(lambda x: torch.hash_tensor(x, dim, keepdim=True), x, grad=False)
    check(lambda x: (torch.hash_tensor(x[0, 0, 0]), torch.hash_tensor(x[:0], 1)), x, grad=False)
    check_error(lambda x: torch.hash_tensor(x), x[:0])
