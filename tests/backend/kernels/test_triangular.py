"""Triangular systems and Cholesky factors."""

import pytest
import torch

from tests.backend.kernels.matrices import SHAPES, TYPES, check_linalg, definite, regular
from tests.backend.kernels.util import name, set_config, to_device

L = torch.linalg


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


SOLVES = [
    lambda a, b: L.solve_triangular(a, b, upper=True),
    lambda a, b: L.solve_triangular(a, b, upper=False, unitriangular=True),
    lambda a, b: L.solve_triangular(a.mT, b, upper=True),
    lambda a, b: L.solve_triangular(a, b.mT, upper=False, left=False),
    lambda a, b: L.solve_triangular(a, b.mT, upper=True, left=False, unitriangular=True),
    lambda a, b: torch.triangular_solve(b, a),
    lambda a, b: torch.triangular_solve(b, a, upper=False, transpose=True, unitriangular=True),
]
FACTORS = [
    L.cholesky,
    lambda x: L.cholesky(x, upper=True),
    lambda x: L.cholesky_ex(x),
    lambda x: torch.cholesky_inverse(L.cholesky(x)),
    lambda x: torch.cholesky_inverse(L.cholesky(x, upper=True), upper=True),
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fn", SOLVES, ids=name)
@pytest.mark.filterwarnings("ignore:torch")
def test_triangular_systems(fn, dtype):
    for shape in [*SHAPES, (70, 70)]:
        check_linalg(fn, regular(shape, dtype, 0.1), torch.randn(*shape[:-1], 2, dtype=dtype))


def test_batches_are_broadcast():
    check_linalg(SOLVES[0], regular((3, 4, 4), torch.float32), torch.randn(2, 1, 4, 2))
    check_linalg(SOLVES[0], regular((4, 4), torch.float32), torch.randn(2, 4, 2))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fn", FACTORS, ids=name)
def test_cholesky(fn, dtype):
    for shape in SHAPES:
        check_linalg(fn, definite(shape, dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_cholesky_reads_one_triangle(dtype):
    x = definite((3, 4, 4), dtype)
    check_linalg(L.cholesky, x.tril() + torch.full((4, 4), 7.0).triu(1).to(dtype), grad=False)
    check_linalg(FACTORS[1], x.triu() + torch.full((4, 4), 7.0).tril(-1).to(dtype), grad=False)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_solve(upper, dtype):
    for shape in SHAPES:
        factor = L.cholesky(definite(shape, dtype), upper=upper)
        b = torch.randn(*shape[:-1], 2, dtype=dtype)
        check_linalg(lambda b, f: torch.cholesky_solve(b, f, upper), b, factor)


def test_a_matrix_that_is_not_positive_definite():
    x = torch.stack([torch.eye(3), torch.tensor([[1.0, 0, 0], [0, 1, 2], [0, 2, 1]]), -torch.eye(3)])
    before = set_config(fallback="error")
    try:
        factor, info = L.cholesky_ex(to_device(x))
        assert info.tolist() == [0, 3, 1] == L.cholesky_ex(x).info.tolist()
        assert factor[0].cpu().equal(torch.eye(3)) and factor[1:].isnan().all()
        with pytest.raises(L.LinAlgError, match="leading minor of order 3"):
            L.cholesky(to_device(x))
    finally:
        set_config(fallback=before.fallback)
