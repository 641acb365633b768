"""QR, reflectors, singular and eigenvalues, least squares, the exponential."""

import pytest
import torch

from tests.backend.kernels.matrices import RECTANGULAR, SHAPES, TOLERANCE, TYPES, check_linalg, definite, spread
from tests.backend.kernels.util import check, name

L = torch.linalg
ALL = SHAPES + RECTANGULAR


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(mode, dtype):
    for shape in [*ALL, (70, 40)]:
        differentiable = mode != "r" and shape[-2] >= shape[-1] and (mode == "reduced" or shape[-2] == shape[-1])
        check_linalg(lambda x: L.qr(x, mode), spread(shape, dtype), grad=differentiable and 0 not in shape)


@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
def test_geqrf(dtype):
    for shape in ALL:
        check_linalg(torch.geqrf, spread(shape, dtype), grad=False)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reflectors(dtype):
    for shape in [(4, 4), (2, 3, 4, 4), (5, 3), (2, 5, 3), (1, 1)]:
        x, tau = torch.geqrf(torch.randn(shape, dtype=dtype))
        m = shape[-2]
        for k in range(shape[-1] + 1):
            check_linalg(L.householder_product, x, tau[..., :k].contiguous(), grad=False)
        check_linalg(L.householder_product, x, tau)
        for transpose in (False, True):
            left, right = torch.randn(*shape[:-1], 2, dtype=dtype), torch.randn(*shape[:-2], 2, m, dtype=dtype)
            check_linalg(lambda x, t, c: torch.ormqr(x, t, c, True, transpose), x, tau, left)
            check_linalg(lambda x, t, c: torch.ormqr(x, t, c, False, transpose), x, tau, right)


def _svd(full):
    def fn(x):
        u, s, vh = L.svd(x, full_matrices=full)
        k = s.shape[-1]
        return s, (u[..., :k] * s.unsqueeze(-2).to(x.dtype)) @ vh[..., :k, :], u.abs() if full is False else u @ u.mH

    return fn


SVD = [_svd(False), _svd(True), L.svdvals, L.pinv, L.matrix_rank, lambda x: torch.linalg.matrix_norm(x, "nuc")]
EIGH = [
    lambda x: L.eigh(x)[0],
    lambda x: L.eigh(x, UPLO="U")[1].abs(),
    L.eigvalsh,
    lambda x: (lambda w, v: (v * w.unsqueeze(-2).to(v.dtype)) @ v.mH)(*L.eigh(x)),
    lambda x: L.pinv(x, hermitian=True),
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fn", SVD, ids=name)
def test_svd(fn, dtype):
    for shape in [*ALL, (40, 30)]:
        if 0 not in shape and (shape[-1] < 10 or fn is not SVD[0]):  # of many vectors, some are ill-conditioned
            grad = fn is not SVD[1] and shape[-1] < 10
            check_linalg(fn, spread(shape, dtype), grad=grad, stride=False)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_empty_svd(dtype):
    for shape in ALL:
        if 0 in shape:
            for full in (False, True):
                check(lambda x: L.svd(x, full_matrices=full), torch.randn(shape, dtype=dtype), grad=False)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fn", EIGH, ids=name)
def test_eigh(fn, dtype):
    for shape in [*SHAPES, (40, 40)]:
        if shape[-1] < 10 or fn is EIGH[3]:
            x = definite(shape, dtype) + torch.diag(torch.arange(shape[-1]) / 9).to(dtype)
            check_linalg(fn, x, grad=0 not in shape and shape[-1] < 10, stride=False)


@pytest.mark.skipif(not hasattr(L, "polar"), reason="since torch 2.14")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_polar_and_root(dtype):
    for shape in SHAPES:
        check_linalg(L.matrix_sqrth, definite(shape, dtype), grad=0 not in shape)
        if 0 not in shape:
            check_linalg(L.polar, spread(shape, dtype))
    check_linalg(L.polar, spread((2, 5, 3), dtype))


# The strides of solutions are not compared: LAPACK leaves them in the memory of the right side, among its rows.
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("driver", [None, "gels", "gelsd", "gelss"])
def test_lstsq(driver, dtype):
    for shape in ALL:
        if shape[-1] or not shape[-2]:
            b = torch.randn(*shape[:-1], 2, dtype=dtype)
            check_linalg(lambda a, b: tuple(L.lstsq(a, b, driver=driver)), spread(shape, dtype), b, grad=False, stride=False)
    check_linalg(
        lambda a, b: L.lstsq(a, b, driver=driver)[0], spread((5, 3), dtype), torch.randn(5, 2, dtype=dtype), stride=False
    )


def test_lstsq_of_low_rank():
    a = torch.randn(6, 2) @ torch.randn(2, 4)
    for driver in ("gelsy", "gelsd", "gelss"):
        check_linalg(lambda a, b: tuple(L.lstsq(a, b, driver=driver)), a, torch.randn(6, 3), grad=False, stride=False)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_matrix_exp(dtype):
    rtol, atol = TOLERANCE[dtype]
    for scale in (0.1, 1.0, 10.0):
        for shape in SHAPES:
            check(torch.matrix_exp, scale / 4 * spread(shape, dtype), rtol=rtol, atol=atol, grad=0 not in shape)
    mixed = torch.stack([8 * spread((3, 3), dtype), spread((3, 3), dtype) / 100, torch.zeros(3, 3, dtype=dtype)])
    check(torch.matrix_exp, mixed, rtol=1e-4, atol=1e-3)


def test_what_is_not_finite():
    x = torch.randn(3, 3)
    x[1, 1] = float("nan")
    x = x.to("mindspore")
    for fn in (L.svd, L.eigh):
        with pytest.raises(L.LinAlgError):
            fn(x)
