"""Order, search, unique values and counts against the CPU."""

import math

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.backend.kernels.errors import check_error
from tests.backend.kernels.util import check

NAN = math.nan


def t(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)


def ties(*shape, dtype=torch.float32):
    return torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


SORT = {
    "sort": lambda x: x.sort(),
    "descending": lambda x: x.sort(descending=True),
    "dim": lambda x: x.sort(0),
    "stable": lambda x: torch.sort(x, stable=True, dim=1, descending=True),
    "argsort": lambda x: x.argsort(1),
    "msort": lambda x: torch.msort(x),
    "topk": lambda x: x.topk(3),
    "topk all": lambda x: x.topk(x.size(1)),
    "topk dim": lambda x: x.topk(2, 0),
    "topk smallest": lambda x: x.topk(3, largest=False),
    "kthvalue": lambda x: x.kthvalue(2),
    "kthvalue dim": lambda x: x.kthvalue(2, 0, keepdim=True),
}


@pytest.mark.parametrize("name", SORT)
def test_sort(name):
    for dtype in (torch.float32, torch.int64, torch.int32, torch.bfloat16):
        check(SORT[name], torch.arange(24).mul(7).remainder(25).view(4, 6).to(dtype))
    check(SORT[name], t(6, 5).t())
    if not name.startswith(("topk", "kth")):
        same = SORT[name] if name == "stable" else lambda x: tree_leaves(SORT[name](x))[0] if name != "argsort" else x
        check(same, ties(5, 40), grad=False)  # only a stable sort defines the order of ties
        check(same, ties(5, 40, dtype=torch.int64))
        check(same, ties(5, 40, dtype=torch.bool))
        check(
            SORT[name],
            torch.tensor([[NAN, 2.0, -math.inf, NAN, 2.0, math.inf, 1.0], [1.0, 2.0, 0.0, -0.0, 0.0, 5.0, 3.0]]),
        )


def test_median():
    odd, holes = torch.randperm(35, generator=torch.Generator().manual_seed(3)).view(5, 7).float(), t(5, 7)
    holes[1, 2] = holes[3] = holes[4, :3] = NAN
    for x in (odd, odd[:, :4], odd.t(), holes, odd.long(), odd.bfloat16()):
        values = lambda fn: lambda x: (fn(x), fn(x, 1)[0], fn(x, 0, keepdim=True)[0])  # noqa: E731
        check(values(torch.median), x, grad=x.dtype is torch.float32 and x is not holes)
        check(values(torch.nanmedian), x, grad=x.dtype is torch.float32 and x is not holes)
    check(lambda x: (x.median(1), x.median(0)), odd)
    check(lambda x: (x.median(), x.median(0)), torch.tensor(3.0))


@pytest.mark.parametrize("descending", (False, True))
def test_sort_of_float64(descending):
    """MindSpore sorts float64 as float32: the order is that of the bits."""
    x = torch.randn(50, dtype=torch.float64)
    x[3], x[1], x[7], x[8], x[20], x[40], x[41] = x[9], NAN, -0.0, 0.0, -math.inf, 1 + 1e-12, 1.0
    check(lambda x: x.sort(stable=True, descending=descending), x)
    check(lambda x: (x.kthvalue(7), x.median()), x)


def test_sort_edges():
    check(lambda x: (x.sort(), x.topk(1), x.kthvalue(1)), torch.tensor(3.0))
    check(lambda x: (x.sort(), x.topk(0)), torch.zeros(3, 0))
    check(lambda x: x.topk(2), torch.tensor([1.0, NAN, 3.0, 2.0]), grad=False)
    check(lambda x: x.sort(), torch.tensor([2**53 + 1, 2**53, 2**62 + 1, 2**62, -(2**63)]))
    check_error(lambda x: x.topk(9), t(3, 4))
    check_error(lambda x: x.kthvalue(9), t(3, 4))
    for k in (1, 5, 20):
        check(lambda x: x.topk(k).values, ties(5, 40), grad=False)


EDGES = torch.tensor([-2.0, -1.0, 0.0, 0.0, 1.0, 3.0])


def test_search():
    for right in (False, True):
        check(lambda s, x: torch.searchsorted(s, x, right=right), EDGES, ties(3, 4) - 2)
        check(
            lambda s, x: torch.searchsorted(s.long(), x.long(), right=right, out_int32=True),
            EDGES,
            ties(3, 4) - 2,
            grad=False,
        )
        check(lambda s, x: torch.searchsorted(s, x, right=right), t(3, 6).sort().values, t(3, 4))
        check(lambda s, x: torch.bucketize(x, s, right=right), EDGES, ties(3, 4))
        check(
            lambda s: (torch.searchsorted(s, 0.0, right=right), torch.bucketize(0.5, s, right=right)), EDGES, grad=False
        )
    check(
        lambda s, x, k: torch.searchsorted(s, x, sorter=k, side="right"), EDGES.flip(0), t(5), torch.arange(5, -1, -1)
    )
    check(lambda s, x: torch.bucketize(x, s), EDGES, t(4, 3).t())
    check(lambda s, x: torch.bucketize(x, s), EDGES, torch.tensor(0.5))


def test_unique():
    for x in (
        ties(5, 7),
        ties(30, dtype=torch.int64),
        ties(4, 4, dtype=torch.bool),
        ties(6, 5).t(),
        torch.tensor(3.0),
        torch.zeros(0),
    ):
        check(lambda x: (x.unique(), x.unique(return_inverse=True), x.unique(return_counts=True),
                         x.unique(return_inverse=True, return_counts=True)), x, grad=False)  # fmt: skip
    for x in (ties(20, 2), ties(20, 2, dtype=torch.int64), ties(20, 2).t()):
        for dim in (0, 1):
            check(lambda x: x.unique(dim=dim, return_inverse=True, return_counts=True), x, grad=False)
    check(lambda x: x.unique_consecutive(return_inverse=True, return_counts=True), ties(40), grad=False)
    check(lambda x: x.unique_consecutive(), ties(4, 10), grad=False)
    check(lambda x: x.unique_consecutive(dim=0, return_counts=True), ties(40, 1), grad=False)


def test_unique_edges():
    x = torch.tensor([1, 1, NAN, NAN, 2, 2, 2, NAN])
    for x in (x, x.double(), x.double()[:1], x[0], x[:0], torch.stack([x, x.nan_to_num(7)])):
        check(lambda x: x.unique_consecutive(return_inverse=True, return_counts=True), x, grad=False)
        check(lambda x: x.unique(return_inverse=True, return_counts=True), x, grad=False)
    rows = torch.randint(0, 2, (2, 9, 3), generator=torch.Generator().manual_seed(0))
    for x in (rows, rows.double(), x, rows[:, :0]):
        check(lambda x: x.unique_consecutive(return_inverse=True, return_counts=True, dim=1), x, grad=False)
    check_error(lambda x: x.unique_consecutive(dim=0), rows[:, :0])


def test_searchsorted_edges():
    x, values = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([NAN, 2.0, 9.0])
    order = x.argsort()
    check(lambda x, v: (torch.searchsorted(x, v), torch.searchsorted(x, v, out_int32=True)), x.sort().values, values)
    check(lambda x, o: torch.searchsorted(x, 2.0, right=True, sorter=o), x, order)


def test_counts():
    x = ties(50, dtype=torch.int64)
    check(lambda x: (x.bincount(), x.bincount(minlength=9), x.int().bincount()), x)
    check(lambda x, w: (x.bincount(w), x.bincount(w.double())), x, t(50), grad=False)
    check(lambda x: x.bincount(minlength=3), x[:0])
    check_error(lambda x: x.bincount(), x - 5)
    check(lambda x: (x.histc(), x.histc(7), x.histc(5, -1, 2), x.histc(4, 0, 0)), t(200), grad=False)
    check(lambda x: x.histc(3), torch.ones(4), grad=False)
    check(lambda x, y: torch.isin(x, y), x, torch.tensor([1, 3]))
