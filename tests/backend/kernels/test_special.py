import math

import pytest
import torch

from tests.backend.kernels.util import check, compare, name, set_config, to_device

S = torch.special
INF, NAN = math.inf, math.nan
F64 = torch.float64
EDGES = torch.tensor([0, -0.0, 1, -1, INF, -INF, NAN, 1e-30, 2, 3, 0.5, 5, -5, 8, -8, 20, -20, 1e-8, 103.9], dtype=F64)
POINTS = torch.cat([EDGES, torch.linspace(-9, 9, 181, dtype=F64), torch.linspace(0.01, 0.99, 49, dtype=F64)])
DIFFERENTIABLE = ["i0", "i0e", "i1", "i1e", "erfcx", "log_ndtr", "ndtri", "digamma"]
UNARY = [
    *DIFFERENTIABLE,
    *(f"{kind}_{n}" for kind in ("modified_bessel", "scaled_modified_bessel") for n in ("k0", "k1")),
    *("modified_bessel_i0", "modified_bessel_i1", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"),
    *("spherical_bessel_j0", "airy_ai"),
]  # fmt: skip
POLYNOMIALS = sorted(n for n in dir(S) if "_polynomial_" in n)


@pytest.mark.parametrize("function", UNARY)
def test_unary(function):
    fn = getattr(S, function)
    check(fn, POINTS, grad=False)
    check(fn, POINTS.reshape(3, -1).t(), grad=False)
    close = (
        {"rtol": 2e-5, "atol": 1e-5} if function == "erfcx" else {}
    )  # to the left torch's float32 loses digits in exp(x * x)
    check(fn, POINTS.float(), grad=False, **close)
    check(fn, torch.arange(-3, 4), grad=False)
    check(fn, POINTS[:0], grad=False)


@pytest.mark.parametrize("function", DIFFERENTIABLE)
def test_gradients(function):
    close = {"rtol": 1e-5, "atol": 1e-5}
    check(getattr(S, function), torch.linspace(0.05, 0.95, 20), **close)
    check(getattr(S, function), torch.linspace(0.05, 0.95, 20, dtype=F64))


@pytest.mark.parametrize("function", ["i0", "i1e", "digamma"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_floats(function, dtype):
    check(getattr(S, function), POINTS.to(dtype), grad=False)


@pytest.mark.parametrize("n", range(4))
def test_polygamma(n):
    x = POINTS[(POINTS > 0) | (POINTS != POINTS.floor())]
    check(lambda x: torch.polygamma(n, x), x)
    check(lambda x: torch.polygamma(n, x), x.float(), grad=False, rtol=1e-5, atol=1e-5)
    check(lambda x: torch.polygamma(n, x), torch.arange(1, 4))
    check(lambda x: torch.polygamma(n, x), x[x > 0].half(), grad=False)


def pairs(a, b):
    return [t.flatten() for t in torch.meshgrid(a, b, indexing="ij")]


@pytest.mark.parametrize("function", POLYNOMIALS)
def test_polynomials(function):
    fn = getattr(S, function)
    x, n = pairs(torch.linspace(-1.5, 1.5, 25, dtype=F64), torch.tensor([-1, 0, 1, 2, 3, 5, 7, 9, 12], dtype=F64))
    check(fn, x, n, grad=False)
    check(fn, x.float(), n.long().clamp(max=5), grad=False, rtol=1e-5, atol=1e-4)
    check(fn, x.reshape(25, 9).t(), n[:9].reshape(9, 1), grad=False)
    check(lambda x: fn(x, 3), x, grad=False)
    check(lambda n: fn(0.3, n), n, grad=False)
    check(fn, torch.arange(-2, 3), torch.arange(5), grad=False)


LIMITS = torch.tensor([0, 1, -1, INF, -INF, NAN, 2.5, -2.5, -3, 1e-10, 30, 250, 20, 0.5, 1.1], dtype=F64)
FUNCTIONS = [torch.igamma, torch.igammac, S.zeta]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_pairs(fn, dtype):
    check(fn, *(x.to(dtype) for x in pairs(LIMITS, LIMITS)), grad=False)
    a, x = torch.rand(2, 200, dtype=dtype) * 40 + 0.01
    check(fn, a, x, grad=False, **({"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {}))
    check(fn, a[:6].reshape(2, 3).t(), x[:2], grad=False, rtol=1e-5, atol=1e-5)
    check(fn, a[:0], x[:0], grad=False)


def test_incomplete_gamma_of_near_and_large_arguments():
    a = torch.tensor([1e5, 250, 300, 2e4, 23, 201, 150], dtype=F64)
    for fn in (torch.igamma, torch.igammac):
        check(fn, a, a * 1.001, grad=False)
        check(fn, a, a, grad=False)


def test_zeta_with_numbers():
    x = torch.linspace(0.5, 5, 10)
    check(lambda x: S.zeta(x, 2.0), x, grad=False)
    check(lambda x: S.zeta(3, x), x, grad=False)


BITS = torch.tensor([0, -0.0, 1, -1, INF, -INF, NAN, 1e30, -1e30, 1e-45, -1e-45, 1e-40, 3.4028234663852886e38, 2, 3], dtype=F64)
SMALL = {torch.float32: torch.int32, F64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@pytest.mark.parametrize("dtype", SMALL)
def test_nextafter_and_frexp(dtype):
    a, b = pairs(BITS.to(dtype), BITS.to(dtype))
    check(torch.frexp, a, grad=False)
    check(torch.frexp, a.reshape(15, 15).t(), grad=False)
    check(torch.frexp, torch.tensor([5e-324, 1e-310], dtype=F64))
    check(torch.frexp, a[:0], grad=False)
    check(torch.nextafter, a[0], b[20], grad=False)
    check(torch.nextafter, a.reshape(15, 15).t(), b[:15], grad=False)
    set_config(fallback="error")
    received = torch.nextafter(to_device(a), to_device(b))
    expected = torch.nextafter(a, b)
    known = ~expected.isnan()
    compare(received.cpu().view(SMALL[dtype])[known].to("mindspore"), expected.view(SMALL[dtype])[known], rtol=0, atol=0)


def test_gradient_of_frexp():
    check(lambda x: torch.frexp(x)[0], torch.tensor([3.0, -0.7, 100.0]))
