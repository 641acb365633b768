"""Pointwise ops of two and three operands."""

import math
import operator

import pytest
import torch

from tests.backend.kernels.test_pointwise import FLOATS, INTEGERS, SPECIAL, layouts, numbers
from tests.backend.kernels.util import DEVICE, check

ARITHMETIC = [torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.fmax, torch.fmin,
              torch.remainder, torch.fmod, torch.floor_divide, torch.true_divide]  # fmt: skip
FLOAT_ONLY = [torch.atan2, torch.hypot, torch.copysign]
COMPARISON = [
    torch.eq,
    torch.ne,
    torch.gt,
    torch.ge,
    torch.lt,
    torch.le,
    torch.logical_and,
    torch.logical_or,
    torch.logical_xor,
]
SPECIAL_CASES = [torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.mul, torch.add, torch.eq, torch.lt,
                 torch.logical_and, torch.atan2, torch.xlogy]  # fmt: skip
BITWISE = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor]
ROUNDED = [lambda a, b, m=m: torch.div(a, b, rounding_mode=m) for m in ("trunc", "floor", None)]


def apart(shape=(3, 5), dtype=torch.float32):
    return numbers(dtype, shape), numbers(dtype, shape, 1, 4) * (-1) ** torch.arange(shape[-1]).to(dtype)


@pytest.mark.parametrize("fn", ARITHMETIC + FLOAT_ONLY + COMPARISON + ROUNDED, ids=lambda f: f.__name__)
def test_float32(fn):
    a, b = apart()
    for x, y in zip(layouts(a), layouts(b)):
        check(fn, x, y, grad=fn is not torch.floor_divide)
    check(fn, a, b[:1], grad=False)
    check(fn, a[:, None], b[0, 0], grad=False)
    check(lambda x: fn(x, torch.tensor(2.5)), a, grad=False)


@pytest.mark.parametrize("dtype", [*FLOATS[1:], *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("fn", ARITHMETIC + FLOAT_ONLY + COMPARISON + BITWISE + ROUNDED, ids=lambda f: f.__name__)
def test_dtypes(fn, dtype):
    a, b = numbers(dtype), numbers(dtype, low=1, high=4)
    try:
        fn(a, b)
    except (RuntimeError, TypeError):
        with pytest.raises((RuntimeError, TypeError)):
            fn(a.to(DEVICE), b.to(DEVICE))
        return
    check(fn, a, b, grad=dtype in FLOATS[:2] and fn is not torch.floor_divide)


@pytest.mark.parametrize(
    "fn", [operator.add, operator.sub, operator.mul, operator.truediv, operator.eq, operator.gt], ids=str
)
@pytest.mark.parametrize("pair", [(torch.float32, torch.int64), (torch.int32, torch.int64), (torch.bool, torch.int64),
                                  (torch.float32, torch.bool), (torch.float32, torch.float64),
                                  (torch.bfloat16, torch.float32)], ids=str)  # fmt: skip
def test_promotion(fn, pair):
    a, b = numbers(pair[0]), numbers(pair[1], low=1, high=4)
    if fn is operator.sub and torch.bool in pair:
        return
    check(fn, a, b, grad=False)
    check(fn, b, a if fn is not operator.truediv else a * 0 + 1, grad=False)
    check(fn, a, b[0, 0], grad=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("scalar", [2, 0.1, True])
def test_scalars(dtype, scalar):
    x = numbers(dtype)
    for fn in (operator.add, operator.mul, operator.truediv, operator.eq, operator.lt):
        check(lambda x: fn(x, scalar), x)
    if dtype is not torch.bool and scalar is not True:
        for fn in (operator.sub, operator.mod, operator.floordiv, lambda x, s: s - x, lambda x, s: torch.fmod(x, s)):
            check(lambda x: fn(x, scalar), x, grad=False)


def test_alpha():
    a, b = torch.randn(3, 4), torch.randn(4)
    for dtype in (torch.float32, torch.float64, torch.float16):
        check(lambda a, b: torch.add(a, b, alpha=0.1), a.to(dtype), b.to(dtype), grad=dtype is not torch.float16)
        check(lambda a, b: torch.sub(a, b, alpha=0.1), a.to(dtype), b.to(dtype), grad=dtype is not torch.float16)
        check(lambda a, b: torch.rsub(a, b, alpha=0.1), a.to(dtype), b.to(dtype), grad=dtype is not torch.float16)
    check(lambda a: a.add(a, alpha=3) - a.sub(1, alpha=2), torch.arange(5))
    with pytest.raises(RuntimeError, match="alpha must not be"):
        torch.arange(3).to(DEVICE).add(1, alpha=0.5)


@pytest.mark.parametrize("fn", SPECIAL_CASES, ids=lambda f: f.__name__)
def test_special_values(fn):
    a, b = (t.reshape(-1) for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    check(fn, a, b, grad=False)


@pytest.mark.parametrize("fn", [*ARITHMETIC, torch.eq, torch.atan2], ids=lambda f: f.__name__)
def test_empty_broadcast(fn):
    check(fn, torch.zeros(0, 1, 3), torch.ones(0, 10, 3), grad=False)
    check(fn, torch.zeros(1, 0), torch.ones(5, 1), grad=False)
    check(lambda x: x.masked_fill(torch.zeros(5, 0, 3, dtype=torch.bool, device=x.device), 1.0), torch.zeros(1, 3))


def test_remainder_signs():
    dividends = torch.tensor([5.0, -5.0, 0.3, 6.0, 1.0, math.inf])
    divisors = torch.tensor([3.0, -3.0, 0.1, 2.0, math.inf, 0.0])
    a, b = (t.reshape(-1) for t in torch.meshgrid(dividends, divisors, indexing="ij"))
    for fn in (torch.remainder, torch.fmod, torch.floor_divide):
        check(fn, a, b, grad=False)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.arange(3).to(DEVICE) // torch.zeros(3, dtype=torch.int64).to(DEVICE)


def test_division_of_large_integers():
    """MindSpore divides int64 as float64."""
    g = torch.Generator().manual_seed(0)
    low, high = -(2**63), 2**63 - 1
    a, b = (torch.randint(low, high, (900,), generator=g) for _ in range(2))
    b = (b >> torch.randint(0, 62, (900,), generator=g)).where(b != 0, torch.tensor(1))
    b[b == 0] = 1
    a[:6], b[:6] = torch.tensor([high, low, high, 2**53 + 1, low + 1, low]), torch.tensor([1, 1, high, 3, -1, high])
    b[100:200], b[200:300], b[300:400] = a[100:200] + 1, a[200:300], a[300:400] - 1
    for fn in (torch.remainder, torch.fmod, torch.floor_divide, lambda a, b: torch.div(a, b, rounding_mode="trunc")):
        check(fn, a, b)
        check(lambda a: fn(a, 7), a)
    check(lambda x: torch.unravel_index(x, (2**31, 2**31, 3)), torch.tensor([5, 2**40]))


def test_floor_divide_in_place():
    check(lambda x, y: x.clone().floor_divide_(y), numbers(torch.float32), numbers(torch.float32) + 9, grad=False)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.arange(3).to(DEVICE).floor_divide_(1.5)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -1, -2, -0.5, 2.5, -3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16], ids=str)
def test_pow(exponent, dtype):
    x = numbers(dtype, low=1, high=4)
    if not dtype.is_floating_point and isinstance(exponent, int) and exponent < 0:
        with pytest.raises(RuntimeError, match="negative integer powers"):
            x.to(DEVICE) ** exponent
        return
    grad = dtype is not torch.float16
    check(lambda x: x**exponent, x, grad=grad)
    check(lambda x: 1.5**x, x, grad=grad)
    check(torch.pow, x, x.flip(0), grad=grad)


def test_shifts():
    for dtype in INTEGERS:
        a, b = numbers(dtype, low=-3, high=9), numbers(dtype, low=0, high=4)
        check(lambda a, b: (a << b, a >> b, a << 2, a >> 1, a & 3, a | b, a ^ 1), a, b)


def test_where():
    c, a, b = torch.randn(3, 5) > 0, torch.randn(3, 5), torch.randn(5)
    check(lambda a, b: torch.where(a > 0, a, b), a, b)
    check(lambda a: torch.where(a > 0, a, 0.0), a)
    check(lambda a: torch.where(a > 0, 1, a), a.double())
    check(torch.where, c, a, torch.arange(5), grad=False)
    check(torch.where, c, a, b[0])
    check(torch.where, c[:0], a[:0], b)


def test_masked_fill():
    x, mask = torch.randn(2, 3, 5), torch.randn(3, 5) > 0
    check(lambda x, m: x.masked_fill(m, -math.inf), x, mask, grad=False)
    check(lambda x, m: x.masked_fill(m, 1.0), x, mask)
    check(lambda x, m: x.clone().masked_fill_(m, 2), x.transpose(0, 1).contiguous().transpose(0, 1), mask)
    check(lambda x, m, v: x.masked_fill(m, v), x, mask, torch.tensor(3.0))
    check(lambda x, m: x.masked_fill(m, 7), torch.arange(15).reshape(3, 5), mask)
    check(lambda x, m: x.masked_fill(m, 7), x.bfloat16(), mask)
    with pytest.raises(RuntimeError):
        torch.arange(5).to(DEVICE).masked_fill(mask[0].to(DEVICE), 1.5j)


def test_clamp():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8):
        x = numbers(dtype)
        check(
            lambda x: (x.clamp(0, 2), x.clamp(min=1), x.clamp(max=1), x.clamp(2, 0), x.clamp_min(1), x.clamp_max(1)), x
        )
    check(lambda x: x.clamp(-0.5, 0.5), torch.arange(-3, 3))
    check(lambda x: x.clamp(-1, 1), SPECIAL, grad=False)
    a, b, c = torch.randn(3, 4, 5).unbind(0)
    check(lambda a, b, c: (a.clamp(b, c), a.clamp(min=b), a.clamp(max=c)), a, b, c)


def test_lerp():
    a, b, w = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4)
    for weight in (0.1, 0.9, 0.001):
        for dtype in FLOATS:
            check(lambda a, b: torch.lerp(a, b, weight), a.to(dtype), b.to(dtype), grad=dtype in FLOATS[:2])
            check(lambda a, b: a.clone().lerp_(b, weight), a.to(dtype), b.to(dtype), grad=dtype in FLOATS[:2])
    check(torch.lerp, a, b, w)


@pytest.mark.parametrize("value", [1, 0.1, -2])
def test_addcmul_addcdiv(value):
    x, a, b = torch.randn(3, 4), torch.randn(3, 4), torch.rand(4) + 0.5
    for dtype in FLOATS:
        args = x.to(dtype), a.to(dtype), b.to(dtype)
        check(lambda x, a, b: torch.addcmul(x, a, b, value=value), *args, grad=dtype in FLOATS[:2])
        check(lambda x, a, b: torch.addcdiv(x, a, b, value=value), *args, grad=dtype in FLOATS[:2])
    check(lambda x, a, b: x.clone().addcmul_(a, b, value=value).addcdiv_(a, b, value=value), x, a, b)


def test_nan_to_num():
    for dtype in FLOATS:
        check(torch.nan_to_num, SPECIAL.to(dtype), grad=False)
    check(lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0), SPECIAL, grad=False)
    check(torch.nan_to_num, torch.arange(3))


def test_foreach_steps_are_native():
    params, grads = [torch.randn(3, 4), torch.randn(5)], [torch.randn(3, 4), torch.randn(5)]

    def step(p, g):
        p = [x.clone() for x in p]
        torch._foreach_mul_(p, 0.9)
        torch._foreach_lerp_(p, g, 0.1)
        torch._foreach_addcmul_(p, g, g, 0.1)
        torch._foreach_addcdiv_(p, g, torch._foreach_add(torch._foreach_sqrt(torch._foreach_mul(g, g)), 1e-8), -0.1)
        torch._foreach_div_(p, [2.0, 3.0])
        return p

    check(step, params, grads, grad=False)


LARGE = [((200, 100), (100,)), ((200, 100), (200, 1)), ((200, 1), (1, 100)), ((4, 50, 1, 10), (50, 7, 1))]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["add", "mul", "maximum", "lt", "logical_and"])
def test_large_operands_that_broadcast(name, dtype):
    for one, other in LARGE:
        check(getattr(torch, name), numbers(dtype, one), numbers(dtype, other), grad=False)
