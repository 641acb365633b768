"""Softmax and log-softmax."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.test_pointwise import FLOATS
from tests.backend.kernels.util import DEVICE, check

BOTH = [F.softmax, F.log_softmax]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("fn", BOTH)
def test_dims(fn, dim):
    x = torch.randn(4, 3, 5)
    for y in (x, x.transpose(0, 2), x[:, ::2], x[:1].expand(3, 3, 5), x[:0], x[:, :, :1], x[0], x[None]):
        check(lambda y: fn(y, dim), y, stride=False)
    check(lambda y: fn(y, 0 if dim == 1 else dim), torch.randn(()))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fn", BOTH)
def test_dtypes(fn, dtype):
    x = (torch.randn(6, 9) * 3).to(dtype)
    tolerance = {"rtol": 2e-3, "atol": 1e-5} if dtype is torch.float16 else {}
    check(lambda x: fn(x, -1), x, grad=dtype in FLOATS[:2], **tolerance)
    check(lambda x: fn(x, 0, dtype=torch.float32), x, grad=False)


@pytest.mark.parametrize("fn", BOTH)
def test_large(fn):
    check(lambda x: fn(x, -1), torch.randn(64, 1000) * 5, rtol=5e-6, atol=1e-5)
    check(lambda x: fn(x, 1), torch.tensor([[1e4, 0.0, -1e4], [88.0, 89.0, 90.0], [-1e30, 0.0, 1.0]]))


@pytest.mark.parametrize("fn", BOTH)
def test_special_values(fn):
    inf, nan = math.inf, math.nan
    x = torch.tensor([[1.0, nan, 3.0], [inf, 2.0, -1.0], [-inf, -inf, -inf], [-inf, 0.0, 1.0], [nan, -inf, nan]])
    check(lambda x: fn(x, 1), x, grad=False)
    check(lambda x: fn(x[3], 0), x)


def test_safe_softmax():
    inf, nan = math.inf, math.nan
    x = torch.tensor([[1.0, nan, 3.0], [inf, 2.0, -1.0], [-inf, -inf, -inf], [-inf, 0.0, 1.0], [nan, -inf, nan]])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        check(lambda x: torch.ops.aten._safe_softmax(x, -1), x.to(dtype), grad=False)
    check(lambda x: torch.ops.aten._safe_softmax(x, 1), torch.randn(2, 5, 7).transpose(0, 1), stride=False)
    q = torch.randn(2, 2, 4, 8)
    check(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        q,
        torch.ones(4, 4).tril() == 1,
        rtol=1e-5,
        atol=1e-5,
    )


def test_in_a_loss():
    x = torch.randn(8, 10)
    check(lambda x: F.softmax(x, 1).log().mean(), x)
    check(lambda x: -F.log_softmax(x, 1)[:, 3].mean(), x)


def test_errors():
    with pytest.raises(IndexError, match="Dimension out of range"):
        F.softmax(torch.randn(3).to(DEVICE), 2)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.ops.aten._softmax(torch.arange(3).to(DEVICE), 0, False)
