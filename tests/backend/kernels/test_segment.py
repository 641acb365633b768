"""Reductions over segments and by index against the CPU."""

import itertools

import pytest
import torch

from tests.backend.kernels.errors import check_error
from tests.backend.kernels.util import check

REDUCTIONS = "max", "min", "sum", "mean", "prod"


@pytest.mark.parametrize("reduce, initial", itertools.product(REDUCTIONS, (None, 2.0)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_segment_reduce(reduce, initial, dtype):
    x = torch.randint(-2, 3, (7, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    options = {"initial": initial}
    check(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, **options), x, torch.tensor([2, 0, 3, 2]))
    check(lambda x, o: torch.segment_reduce(x, reduce, offsets=o, **options), x, torch.tensor([0, 2, 2, 5, 7]))
    y, lengths = torch.randn(2, 5, 3, dtype=dtype), torch.tensor([[2, 2], [0, 5]])
    check(lambda y, n: torch.segment_reduce(y, reduce, lengths=n, axis=1, unsafe=True, **options), y, lengths)


def test_segment_errors():
    check_error(lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 1], device=x.device)), torch.ones(3))
    check_error(lambda x: torch.segment_reduce(x, "sum"), torch.ones(3))


@pytest.mark.parametrize("reduce, include", itertools.product(("amax", "amin", "mean", "prod"), (True, False)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int64, torch.float16, torch.bfloat16), ids=str)
def test_index_reduce(reduce, include, dtype):
    g = torch.Generator().manual_seed(1)
    x, s = (torch.randint(-3, 4, (4, n), generator=g).to(dtype) for n in (5, 6))
    index, grad = torch.tensor([0, 4, 4, 2, 0, 0]), dtype in (torch.float32, torch.float64)
    reduced = lambda x, i, s: x.index_reduce(1, i, s, reduce, include_self=include)  # noqa: E731
    check(reduced, x, index, s, grad=grad)
    check(reduced, x, index.int(), s, grad=False)
    check(lambda x, i, s: x.scatter_reduce(1, i, s, reduce, include_self=include), x, index.expand(4, 6), s, grad=grad)
    check(lambda x, i: x[0, 0].index_reduce(0, i, x[1, 1], reduce, include_self=include), x, index[:1], grad=False)
    if dtype.is_floating_point:
        x[0, 0] = x[1, 2] = s[2, 2] = float("nan")
        check(reduced, x, index, s, grad=False)
    check_error(lambda x: x.index_reduce(1, torch.tensor([9] * 6, device=x.device), x.repeat(1, 2)[:, :6], reduce), x)
