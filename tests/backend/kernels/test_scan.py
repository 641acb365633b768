"""Running sums, products and extremes against the CPU."""

import math

import pytest
import torch

from tests.backend.kernels.util import check


def t(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


SCAN = {
    "cumsum": lambda x, d: x.cumsum(d),
    "cumprod": lambda x, d: x.cumprod(d),
    "cummax": lambda x, d: x.cummax(d),
    "cummin": lambda x, d: x.cummin(d),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d),
}


@pytest.mark.parametrize("name", SCAN)
def test_scan(name):
    for dim in (0, 1, -1):
        check(SCAN[name], t(3, 4, 5), dim)
        check(SCAN[name], t(3, 4, 5).double(), dim)
        check(SCAN[name], t(5, 4, 3).permute(2, 1, 0), dim)
    check(SCAN[name], torch.tensor(3.0), 0)
    check(SCAN[name], t(2, 0), 1)
    if name != "logcumsumexp":
        check(SCAN[name], torch.tensor([1.0, math.nan, 2.0, 0.5]), 0, grad=False)
        check(SCAN[name], torch.tensor([1.0, -math.inf, 2.0, math.inf]), 0, grad=False)
    if name != "logcumsumexp":
        for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16):
            if not (dtype is torch.bfloat16 and name.startswith("cum") and name in ("cumsum", "cumprod")):
                check(SCAN[name], t(3, 4).abs().to(dtype), 1, grad=False)


def test_more():
    check(lambda x: x.cumsum(0), t(3000), grad=False)
    check(lambda x: x.cumsum(0, dtype=torch.float64), t(30))
    check(lambda x: x.cumsum(0, dtype=torch.int32), t(30).long())
    check(lambda x: (x.clone().cumsum_(0), torch.cumsum(x, 0, out=x.new_empty(0))), t(30), grad=False)
    check(lambda x: x.cummax(0), torch.tensor([3.0, 3.0, 1.0, 5.0, 5.0]))
    check(lambda x: x.logcumsumexp(0), t(50) * 40)
    check(lambda x: (torch.diff(x), torch.trapz(x), torch.cumulative_trapezoid(x)), t(3, 7))
