"""LU factors, solutions, inverses, determinants."""

import pytest
import torch

from tests.backend.kernels.matrices import RECTANGULAR, SHAPES, TYPES, check_linalg, regular
from tests.backend.kernels.util import check, compare, name, set_config, to_device

L = torch.linalg


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


FACTORS = [
    L.lu_factor_ex,
    L.lu,
    lambda x: L.lu_factor_ex(x.mT),
    lambda x: torch.lu_unpack(*L.lu_factor(x)),
    lambda x: torch.lu_unpack(*L.lu_factor(x), unpack_data=False)[0],
    lambda x: torch.lu_unpack(*L.lu_factor(x), unpack_pivots=False)[1:],
]
OF_SQUARE = [
    L.inv,
    L.inv_ex,
    lambda x: L.det(x / 3),
    lambda x: L.slogdet(x)[1],
    lambda x: L.slogdet(x.mT)[0],
    lambda x: L.matrix_power(x, -2),
]
SOLVES = [
    L.solve,
    lambda a, b: L.solve(a.mT, b),
    lambda a, b: L.solve(a, b.mT, left=False),
    lambda a, b: L.solve(a, b[..., 0]),
    lambda a, b: L.lu_solve(*L.lu_factor(a), b),
    lambda a, b: L.lu_solve(*L.lu_factor(a), b, adjoint=True),
    lambda a, b: L.lu_solve(*L.lu_factor(a), b.mT.contiguous(), left=False),
    lambda a, b: L.lu_solve(*L.lu_factor(a), b.mT.contiguous(), left=False, adjoint=True),
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fn", FACTORS, ids=name)
def test_factors(fn, dtype):
    for shape in SHAPES:
        check_linalg(fn, regular(shape, dtype))
    for shape in [*RECTANGULAR, (70, 70), (90, 70), (70, 90)]:
        k = min(shape[-2:])
        x = torch.randn(shape, dtype=dtype)
        x[..., :k, :k] += 9 * torch.eye(k, dtype=dtype)
        check_linalg(fn, x, grad=k < 70)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_pivots(dtype):
    for shape in [(6, 6), (3, 9, 4), (4, 9), (50, 50)]:
        check_linalg(L.lu_factor_ex, torch.randn(shape, dtype=dtype), grad=False)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fn", OF_SQUARE, ids=name)
def test_of_square_matrices(fn, dtype):
    for shape in SHAPES:
        check_linalg(fn, regular(shape, dtype), grad=0 not in shape)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fn", SOLVES, ids=name)
def test_solutions(fn, dtype):
    for shape in [*SHAPES, (70, 70)]:
        check_linalg(fn, regular(shape, dtype), torch.randn(*shape[:-1], 2, dtype=dtype), grad=0 not in shape)


def test_batches_are_broadcast():
    check_linalg(L.solve, regular((3, 4, 4), torch.float32), torch.randn(2, 1, 4, 2))
    check_linalg(L.solve, regular((3, 4, 4), torch.float32), torch.randn(4))


SINGULAR = [torch.zeros(3, 3), torch.ones(4, 4), torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 1, 1]]), torch.zeros(2, 3, 3)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("x", SINGULAR, ids=["zeros", "ones", "rank", "batch"])
def test_singular_matrices(x, dtype):
    for fn in (L.lu_factor_ex, L.det, L.slogdet):
        check(fn, x.to(dtype), grad=False)
    before = set_config(fallback="error")
    try:
        for fn in (L.inv, L.lu_factor, lambda x: L.solve(x, x)):
            with pytest.raises(RuntimeError) as ours:
                fn(to_device(x.to(dtype)))
            with pytest.raises(RuntimeError) as theirs:
                fn(x.to(dtype))
            assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))
    finally:
        set_config(fallback=before.fallback)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_gradients(dtype):
    def gradients(a, b):
        a, b = a.requires_grad_(), b.requires_grad_()
        loss = L.solve(a, b).abs().sum() + L.det(a / 3).abs() + L.slogdet(a)[1] + L.inv(a).real.sum()
        return torch.autograd.grad(loss, (a, b))

    a, b = regular((4, 4), dtype), torch.randn(4, 2, dtype=dtype)
    before = set_config(fallback="error")
    try:
        compare(gradients(to_device(a), to_device(b)), gradients(a, b), 1e-4, 1e-5, stride=False)
    finally:
        set_config(fallback=before.fallback)


def test_pivots_that_torch_refuses():
    lu, pivots = to_device(torch.eye(3)), to_device(torch.tensor([1, 2, 7], dtype=torch.int32))
    with pytest.raises(RuntimeError):
        torch.lu_unpack(lu, pivots)
