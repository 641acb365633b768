"""Pointwise ops of one operand."""

import pytest
import torch

from tests.backend.kernels.util import DEVICE, check

SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 80.0, -80.0])
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]

EVERYWHERE = ["neg", "abs", "sign", "sgn", "relu", "exp", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh",
              "tanh", "sigmoid", "erf", "erfc", "square", "frac", "sinc", "exp2", "floor", "ceil", "trunc", "round",
              "isnan", "isinf", "isfinite", "signbit", "logical_not"]  # fmt: skip
POSITIVE = ["digamma", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "lgamma"]
UNIT = ["asin", "acos", "atanh", "erfinv", "log1p"]
SPECIAL_CASES = ["exp", "tanh", "sigmoid", "relu", "sign", "abs", "floor", "sqrt", "log", "isnan", "isinf", "isfinite",
                 "signbit", "expm1", "erf", "reciprocal", "nan_to_num", "square"]  # fmt: skip
NO_GRADIENT = {"digamma", "sgn"}  # polygamma; a zero that takes no memory


def numbers(dtype, shape=(3, 5), low=-3, high=4):
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, dtype=dtype)
    if not dtype.is_floating_point:
        return torch.randint(max(low, 0 if dtype is torch.uint8 else low), high, shape, dtype=dtype)
    return (torch.rand(shape) * (high - low) + low).to(dtype)


def layouts(x):
    """x of shape (3, 5) as other geometries: 0-dim, empty, transposed, expanded, strided."""
    return [x, x[0, 0], x[:0], x.t(), x[:1].expand(4, 5), x[:, ::2], x.t()[None]]


@pytest.mark.parametrize("name", EVERYWHERE + POSITIVE + UNIT)
def test_float32(name):
    low, high = (0.1, 4) if name in POSITIVE else (-0.9, 0.9) if name in UNIT else (-3, 4)
    for x in layouts(numbers(torch.float32, low=low, high=high)):
        check(getattr(torch, name), x, grad=name not in NO_GRADIENT)


@pytest.mark.parametrize("dtype", [*FLOATS[1:], *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("name", EVERYWHERE + POSITIVE + UNIT)
def test_dtypes(name, dtype):
    low, high = (1, 4) if name in POSITIVE else (0, 1) if name in UNIT else (-3, 4)
    x = numbers(dtype, low=low, high=high)
    try:
        getattr(torch, name)(x)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            getattr(torch, name)(x.to(DEVICE))
        return
    check(getattr(torch, name), x, grad=dtype in FLOATS[:2] and name not in NO_GRADIENT)


@pytest.mark.parametrize("name", SPECIAL_CASES)
def test_special_values(name):
    exact = {} if name != "exp" else {"rtol": 3e-6, "atol": 0}  # of exp(80)
    check(getattr(torch, name), SPECIAL, grad=False, **exact)


def test_tanh_and_exp_are_as_exact_as_torch():
    x = torch.linspace(-12, 12, 4001)
    check(torch.tanh, x)
    check(torch.exp, x)
    check(torch.exp, torch.linspace(-5, 5, 10000), rtol=1e-5, atol=1e-6)


def test_erfinv_at_the_ends():
    check(torch.erfinv, torch.tensor([1.0, -1.0, 0.0, 0.9999, -0.99999, 1.5]), grad=False)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_bitwise_not(dtype):
    for x in layouts(numbers(dtype)):
        check(torch.bitwise_not, x)


def test_digamma_below_zero():
    x = torch.tensor([-0.5, -1.0, -2.3, 0.0, -0.0, -7.9, 0.25, 30.0, 1.4616321])
    for dtype in (torch.float32, torch.float64):
        check(torch.digamma, x.to(dtype), grad=False)


@pytest.mark.parametrize("decimals", [2, 0, -1])
def test_round_decimals(decimals):
    check(lambda x: torch.round(x, decimals=decimals), torch.tensor([12.3456, -7.655, 45.0, 0.0]))


def test_in_place_and_out():
    check(lambda x: x.clone().exp_(), torch.randn(3, 4))
    check(lambda x: torch.exp(x, out=torch.empty(0, device=x.device)), torch.randn(3, 4), grad=False)
    check(lambda x: x.t().contiguous().t().clone()[1:].tanh_(), torch.randn(3, 4), grad=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=str)
def test_fill(dtype):
    x = torch.zeros(3, 4).to(dtype)
    check(lambda x: x.clone().fill_(1), x)
    check(lambda x: x.clone().t()[1:].fill_(1), x) if dtype is not torch.bfloat16 else None
    check(lambda x, v: x.clone().fill_(v), x, torch.tensor(1.0), grad=False)
    check(lambda x: x.clone().zero_(), torch.ones(3, 4).to(dtype))


FILLED = [torch.randn(3, 4), torch.randn(3, 4).t(), torch.zeros(0, 3), torch.tensor(1.0), torch.arange(6).reshape(2, 3)]


@pytest.mark.parametrize("x", FILLED, ids=lambda x: str(tuple(x.shape)))
def test_fill_everywhere(x):
    check(lambda x: (x.clone().fill_(3), torch.fill(x, 2), x.clone().zero_()), x, grad=False)
    check(lambda x, v: x.clone().fill_(v), x, torch.tensor(2.7), grad=False)
    check(lambda x: x.clone().fill_(torch.tensor(2.7)), x, grad=False)


def test_fill_part():
    check(lambda x: x.clone().expand(3, 4).fill_(3), torch.randn(3, 1), grad=False)
    check(lambda x, v: (y := x.clone())[1:, ::2].fill_(v) * 0 + y.sum(), torch.randn(4, 5), torch.tensor(2.0), grad=False)
    x = torch.zeros(2, device=DEVICE)
    for value, words in ((torch.ones(2, device=DEVICE), "0-dimension value"), (1j, "cannot be converted")):
        with pytest.raises(RuntimeError, match=words):
            x.fill_(value)
