"""Matrix products and linear layers equal PyTorch CPU."""

import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import check

ALL = [torch.float32, torch.float64, torch.int64, torch.int32, torch.float16, torch.bfloat16]


def make(*shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    x = torch.randn(shape, generator=g)
    return x.to(dtype) if dtype.is_floating_point else (x * 4).to(dtype)


def t(x):
    return x.mT.contiguous().mT


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("a, b", [(lambda x: x, lambda x: x), (t, lambda x: x), (lambda x: x, t), (t, t)])
def test_products(dtype, a, b):
    tol = {torch.bfloat16: dict(rtol=1.6e-2, atol=1e-2), torch.float16: dict(rtol=2e-3, atol=1e-2)}.get(dtype, {})
    grad = dtype in (torch.float32, torch.float64)
    m = lambda *s: make(*s, dtype=dtype)
    check(torch.mm, a(m(3, 4)), b(m(4, 5)), grad=grad, **tol)
    check(torch.bmm, a(m(2, 3, 4)), b(m(2, 4, 5)), grad=grad, **tol)
    check(lambda c, x, y: torch.addmm(c, x, y, beta=2, alpha=3), m(5), a(m(3, 4)), b(m(4, 5)), grad=grad, **tol)
    scaled = lambda c, x, y: torch.baddbmm(c, x, y, beta=2, alpha=3)
    check(scaled, m(2, 3, 5), a(m(2, 3, 4)), b(m(2, 4, 5)), grad=grad, **tol)
    check(torch.addbmm, m(3, 5), a(m(2, 3, 4)), b(m(2, 4, 5)), grad=grad, **tol)
    check(torch.mv, a(m(3, 4)), m(4), grad=grad, **tol)
    check(torch.addmv, m(3), a(m(3, 4)), m(4), grad=grad, **tol)
    check(torch.dot, m(7), m(14)[::2], grad=grad, **tol)
    check(torch.addr, m(3, 4), m(3), m(4), grad=grad, **tol)
    check(torch.outer, m(3), m(4), grad=grad, **tol)


@pytest.mark.parametrize(
    "a, b",
    [
        ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 3, 4), (4,)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)), ((2, 3, 3, 4), (2, 3, 4, 2)), ((0, 4), (4, 3)), ((3, 0), (0, 4)),
        ((2, 3, 0), (2, 0, 4)),
        ((0, 3, 4), (0, 4, 2)), ((2, 3, 4), (2, 4, 0)), ((64, 300), (300, 130)),
    ],
)  # fmt: skip
def test_matmul(a, b):
    check(torch.matmul, make(*a), make(*b), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [(5,), (1, 5), (3, 1), (3, 5), (1,), ()])
def test_bias_broadcasts(bias):
    check(torch.addmm, make(*bias), make(3, 4), make(4, 5))
    check(torch.addmm, make(*[n * 100 if n > 1 else n for n in bias]), make(300, 4), make(4, 500), atol=1e-4, rtol=1e-5)


def test_beta_zero_ignores_nan():
    nan = torch.full((3, 5), torch.nan)
    check(lambda c, x, y: torch.addmm(c, x, y, beta=0), nan, make(3, 4), make(4, 5), grad=False)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 3, 5, 4), (0, 4), (700, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    tol = dict(atol=1e-4, rtol=1e-5)
    b = [make(50)] if bias else []
    check(F.linear, make(*shape), make(50, 4), *b, **tol)
    check(F.linear, make(*shape), t(make(50, 4)), *b, **tol)
    check(F.linear, make(*shape, dtype=torch.float64), make(50, 4).double(), *[x.double() for x in b])
    check(F.linear, make(*shape), make(4), **tol)
    check(lambda x, w, *b: F.linear(x.transpose(0, -1), w, *b), make(*shape[::-1]), make(50, 4), *b, **tol)


def test_linear_twice_differentiable():
    def penalty(x, w, b):
        y = (F.linear(x, w, b) * F.linear(x, w, b)).sum()
        return torch.autograd.grad(y, (x, w, b), create_graph=True)

    check(penalty, make(3, 4), make(5, 4), make(5))


def test_empty_features():
    check(F.linear, make(3, 0), make(5, 0), make(5))


def test_composites():
    check(torch.einsum, "bij,bjk->bik", make(2, 3, 4), make(2, 4, 5))
    check(torch.einsum, "bhid,bhjd->bhij", make(2, 3, 4, 5), make(2, 3, 6, 5))
    check(torch.tensordot, make(2, 3, 4), make(4, 3, 5), ([1, 2], [1, 0]))
    check(torch.linalg.multi_dot, [make(3, 4), make(4, 5), make(5, 2)])
    check(torch.kron, make(2, 3), make(3, 2))
    check(torch.inner, make(2, 3), make(4, 3))
    check(torch.trace, make(4, 4))
    check(torch.linalg.cross, make(4, 3), make(4, 3).flip(0))
    check(F.bilinear, make(6, 3), make(6, 4), make(5, 3, 4), make(5), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "fn, args",
    [
        (torch.mm, (make(3, 4), make(3, 4))), (torch.mm, (make(3, 4), make(4, 3).double())),
        (torch.mm, (make(3), make(3, 4))),
        (torch.bmm, (make(2, 3, 4), make(1, 4, 5))), (torch.dot, (make(3), make(4))), (torch.mv, (make(3, 4), make(3))),
        (torch.addmm, (make(4), make(3, 4), make(4, 5))), (F.linear, (make(3, 4), make(5, 3))),
        (F.linear, (make(3, 4), make(5, 4).double())), (torch.mm, (make(3, 4).bool(), make(4, 5).bool())),
    ],
)  # fmt: skip
def test_errors_are_torchs(fn, args):
    with pytest.raises(RuntimeError) as expected:
        fn(*args)
    with pytest.raises(RuntimeError) as received:
        fn(*(x.to("mindspore") for x in args))
    assert str(received.value) == str(expected.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_floats_are_rounded_once(dtype):
    a, b, c = torch.randn(2, 9, 7).to(dtype), torch.randn(2, 7, 5).to(dtype), torch.randn(9, 5).to(dtype)
    for k in ({}, {"alpha": 0.7, "beta": 0.3}, {"beta": 0}):
        check(lambda c, a, b: torch.addmm(c, a[0], b[0], **k), c, a, b, grad=False, rtol=0, atol=0)
        check(lambda c, a, b: torch.baddbmm(c, a, b, **k), c, a, b, grad=False, rtol=8e-3, atol=0)
        check(lambda c, a, b: torch.addmv(c[:, 0], a[0], b[0, :, 0], **k), c, a, b, grad=False, rtol=2e-2, atol=1e-2)
    check(lambda a, b, c: F.linear(a, b[0].t(), c[0]), a, b, c, grad=False, rtol=0, atol=0)
