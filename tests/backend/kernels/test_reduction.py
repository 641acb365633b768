"""Reductions."""

import math

import pytest
import torch

from tests.backend.kernels.test_pointwise import FLOATS, INTEGERS, numbers
from tests.backend.kernels.util import DEVICE, check

NAN, INF = math.nan, math.inf
DIMS = [None, 0, 1, -1, (0, 2), (0, 1, 2), (-1, 0)]
WITH_DIM = {
    "sum": torch.sum, "mean": torch.mean, "var": torch.var, "std": torch.std, "amax": torch.amax, "amin": torch.amin,
    "norm": torch.linalg.vector_norm, "nansum": torch.nansum, "logsumexp": torch.logsumexp,
    "var_mean": torch.var_mean, "std_mean": torch.std_mean,
}  # fmt: skip

OVER_ALL = [torch.sum, torch.mean, torch.prod, torch.max, torch.min, torch.var, torch.std, torch.norm, torch.argmax,
            torch.argmin, torch.all, torch.any, torch.aminmax, torch.count_nonzero]  # fmt: skip
ALONG_ONE = [torch.sum, torch.mean, torch.prod, torch.amax, torch.amin, torch.all, torch.any, torch.max, torch.min,
             torch.argmax, torch.argmin, torch.var, torch.std, torch.nansum, torch.count_nonzero,
             torch.linalg.vector_norm, torch.logsumexp]  # fmt: skip


def shapes(dtype=torch.float32):
    x = numbers(dtype, (2, 3, 4))
    return [x, x.transpose(0, 2), x[:, ::2], x[:, :1].expand(2, 5, 4)]


@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("fn", WITH_DIM.values(), ids=WITH_DIM)
def test_dims(fn, dim):
    if dim is None and fn in (torch.amax, torch.amin, torch.logsumexp):
        dim = (0, 1, 2)
    spread = fn not in (torch.std, torch.std_mean)  # without spread, the gradient of std is rounding errors
    for x in shapes() if spread else shapes()[:3]:
        for keepdim in (False, True):
            check(lambda x: fn(x, dim=dim, keepdim=keepdim), x)


@pytest.mark.parametrize("fn", OVER_ALL, ids=lambda f: f.__name__)
def test_all(fn):
    for x in [*shapes(), torch.randn(()), torch.randn(1), torch.randn(5000), torch.randn(64, 128), torch.randn(4099)]:
        if x.numel() > 1 or fn not in (torch.var, torch.std):
            check(fn, x)


@pytest.mark.parametrize("dtype", [*FLOATS[1:], *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("fn", ALONG_ONE, ids=lambda f: f.__name__)
def test_dtypes(fn, dtype):
    x = numbers(dtype, (3, 4))
    try:
        fn(x, dim=1)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            fn(x.to(DEVICE), dim=1)
        return
    check(lambda x: fn(x, dim=1), x, grad=dtype in FLOATS[:2])


@pytest.mark.parametrize(
    "fn", [torch.sum, torch.mean, torch.nansum, torch.linalg.vector_norm, torch.prod], ids=lambda f: f.__name__
)
def test_result_dtype(fn):
    dim = {"dim": 1} if fn is torch.prod else {}
    check(lambda x: fn(x, **dim, dtype=torch.float64), torch.randn(3, 4))
    check(lambda x: fn(x, **dim, dtype=torch.float32), torch.randn(3, 4).half(), grad=False)
    if fn is not torch.linalg.vector_norm:
        check(lambda x: fn(x, **dim, dtype=torch.float32), torch.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    "fn", [torch.max, torch.min, torch.aminmax, torch.argmax, torch.argmin], ids=lambda f: f.__name__
)
def test_one_dim(fn):
    for x in shapes():
        for dim in (0, 1, -1):
            for keepdim in (False, True):
                if fn is torch.aminmax:
                    check(lambda x: tuple(fn(x, dim=dim, keepdim=keepdim)), x)
                else:
                    out = (lambda r: tuple(r)) if fn in (torch.max, torch.min) else (lambda r: r)
                    check(lambda x: out(fn(x, dim=dim, keepdim=keepdim)), x, grad=False)
    check(lambda x: fn(x, dim=0)[0] if fn in (torch.max, torch.min) else fn(x), torch.randn(()), grad=False)


def test_gradient_of_extrema():
    x = torch.randn(3, 4)
    check(lambda x: x.max(1).values, x)
    check(lambda x: x.min(0, keepdim=True).values, x)
    check(lambda x: (x.max(), x.min(), x.amax((0, 1)), x.amin(1)), torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 2.0]]))


def test_ties_go_to_the_first():
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0]])
    for y in (x, x.long(), x.double()):
        check(
            lambda x: (x.argmax(1), x.argmin(1), x.argmax(0), x.argmax(), x.max(1).indices, x.min(1).indices),
            y,
            grad=False,
        )


def test_nan_and_infinity():
    x = torch.tensor([[1.0, NAN, 3.0], [INF, 2.0, -1.0], [-INF, -INF, -INF], [NAN, 1.0, NAN], [INF, -INF, 0.0]])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        y = x.to(dtype)
        check(
            lambda x: (
                x.amax(1),
                x.amin(1),
                x.amax(0),
                x.max(),
                x.min(),
                x.sum(1),
                x.mean(1),
                x.nansum(1),
                x.logsumexp(1),
            ),
            y,
            grad=False,
        )
        check(lambda x: (*x.max(1), *x.min(1), x.argmax(1), x.argmin(0), x.argmax()), y, grad=False)
        check(lambda x: (x.norm(INF, 1), x.norm(-INF, 1), x.norm(2, 1), x.any(1), x.all(1), x.all()), y, grad=False)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16], ids=str
)
def test_truth(dtype):
    x = torch.tensor([[0, 0, 2], [0, 0, 0], [3, 0, 1], [1, 2, 3]]).to(dtype)
    check(lambda x: (x.all(), x.any(), x.all(1), x.any(1, keepdim=True), x.any((0, 1)), x.all((0, 1))), x, grad=False)
    check(lambda x: (x.any(1), x.all()), torch.tensor([[0.0, 0.5], [0.0, 0.0]]), grad=False)
    check(lambda x: (torch.any(x, ()), torch.all(x, ())), x, grad=False)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_empty(shape):
    x = torch.zeros(shape)
    check(
        lambda x: (
            x.sum(),
            x.mean(),
            x.prod(),
            x.all(),
            x.any(),
            x.norm(),
            x.sum(0),
            x.mean(-1),
            x.prod(0),
            x.nansum(),
        ),
        x,
    )
    check(
        lambda x: (x.any(0), x.all(-1), x.logsumexp(0), x.count_nonzero(), x.var(), x.sum(0, keepdim=True)),
        x,
        grad=False,
    )
    for fn in (torch.max, torch.argmax, torch.amax):
        with pytest.raises((RuntimeError, IndexError)):
            fn(x.to(DEVICE))
    if shape == (0, 3):
        check(lambda x: (x.amax(1), x.max(1)[0], x.argmax(1)), x, grad=False)


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, INF, -INF])
def test_norms(p):
    for x in shapes():
        check(lambda x: torch.linalg.vector_norm(x, p), x, grad=p not in (0, 0.5))
        check(lambda x: (x.norm(p, 1), x.norm(p, (0, 1), keepdim=True)), x, grad=p not in (0, 0.5))


@pytest.mark.parametrize("correction", [0, 1, 2, 10])
def test_correction(correction):
    x = torch.randn(3, 4)
    check(
        lambda x: (torch.var(x, 1, correction=correction), torch.std(x, 0, correction=correction)),
        x,
        grad=correction < 3,
    )
    check(lambda x: torch.var(x + 1000, 1), x, rtol=1e-4, atol=1e-5)
    check(lambda x: torch.var(x, unbiased=False), x)


def test_large_sums():
    for shape in [(1000, 1000), (1000000,), (65537,), (3, 1001, 333)]:
        x = torch.rand(shape)
        check(lambda x: (x.sum(), x.mean(), x.sum(0), x.mean(-1)), x, rtol=3e-6, atol=1e-5)
    check(lambda x: x.sum(), torch.randint(0, 100, (1000, 1000)))
    check(lambda x: (x > 0.5).sum(), torch.rand(1000, 1000))


def test_bad_dimensions():
    x = torch.randn(2, 3).to(DEVICE)
    for call in (
        lambda: x.sum(2),
        lambda: x.sum((0, 0)),
        lambda: x.argmax(-3),
        lambda: x.amax((1, 1)),
        lambda: x.any(5),
    ):
        with pytest.raises((IndexError, RuntimeError), match="imension|dim 0 appears|dim 1 appears"):
            call()
    with pytest.raises(RuntimeError, match="could not infer output dtype|floating point"):
        torch.arange(3).to(DEVICE).mean()
