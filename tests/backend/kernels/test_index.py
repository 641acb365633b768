"""Indexing against the CPU: values, strides, gradients, and the errors of bad indices."""

import pytest
import torch

from tests.backend.kernels.errors import check_error
from tests.backend.kernels.util import check

I64 = torch.int64
FLOAT, OTHER = (
    (torch.float32, torch.float64, torch.float16),
    (torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool),
)


def t(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g) * 3
    return x > 0 if dtype is torch.bool else x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)


def i(*values, dtype=I64):
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=dtype)


MASK = t(4, 5, seed=3) > 0
INDEX = {
    "one": lambda x: x[i(2, 0, 2, -1).to(x.device)],
    "second": lambda x: x[:, i([[1, -1], [0, 3]]).to(x.device)],
    "two": lambda x: x[i(0, 3, 1).to(x.device), i(1, -2, 1).to(x.device)],
    "broadcast": lambda x: x[i([[0], [3]]).to(x.device), i(1, 2, 4).to(x.device)],
    "apart": lambda x: x[i(0, 3).to(x.device), :, i(1, 2).to(x.device)],
    "middle": lambda x: x[:, i(0, 3).to(x.device), i(1, 2).to(x.device)],
    "int32": lambda x: x[i(0, 3, dtype=torch.int32).to(x.device)],
    "host index": lambda x: x[i(0, 3)],
    "mask": lambda x: x[MASK.to(x.device)],
    "mask and index": lambda x: x[t(4, seed=3).gt(0).to(x.device), :, i(1).to(x.device)],
    "whole mask": lambda x: x[x.detach() > 0.5],
    "no mask": lambda x: x[x.detach() > 1e3],
    "empty": lambda x: x[torch.empty(0, dtype=I64, device=x.device)],
    "newaxis": lambda x: x[None, i(1, 2).to(x.device)],
    "list": lambda x: x[[0, 2]],
    "slice": lambda x: x[1:, i(1, 2).to(x.device), ::2],
    "ellipsis": lambda x: x[..., i(1, 1).to(x.device)],
}
LAYOUT = {"contiguous": t(4, 5, 6), "transposed": t(6, 5, 4).permute(2, 1, 0), "expanded": t(4, 5, 1).expand(4, 5, 6)}


@pytest.mark.parametrize("layout", LAYOUT)
@pytest.mark.parametrize("name", INDEX)
def test_index(name, layout):
    check(INDEX[name], LAYOUT[layout], stride=name != "newaxis")


@pytest.mark.parametrize("dtype", (*FLOAT, *OTHER))
def test_index_dtypes(dtype):
    for name in ("one", "two", "mask", "apart"):
        check(INDEX[name], t(4, 5, 6, dtype=dtype), grad=dtype in FLOAT[:2])


def put(index, accumulate):
    return lambda x, v: x.clone().index_put_(tuple(j.to(x.device) for j in index), v, accumulate=accumulate)


@pytest.mark.parametrize("accumulate", (False, True))
@pytest.mark.parametrize(
    "index, shape",
    [((i(2, 0, -1),), (3, 5, 6)), ((i(2, 0, -1),), ()), ((i(1, 0), i(2, 2)), (2, 6)), ((i(1, 0), i(2, 2)), (1,)),
     ((i([[0], [1]]), i(2, 3, 0)), (2, 3, 1)), ((MASK,), ()), ((MASK,), (6,)), ((MASK,), (int(MASK.sum()), 6))],
)  # fmt: skip
def test_index_put(index, shape, accumulate):
    check(put(index, accumulate), t(4, 5, 6), t(*shape, seed=1))
    check(put(index, accumulate), t(4, 5, 6, dtype=I64), t(*shape, seed=1, dtype=I64))
    check(put(index, accumulate), t(6, 5, 4).permute(2, 1, 0), t(*shape, seed=1))


def test_index_put_more():
    check(put((i(2, 0, 2, 2),), True), t(4, 3), t(4, 3, seed=1))
    check(put((i(2, 0),), False), t(4, 3, dtype=torch.bfloat16), t(2, 3, dtype=torch.bfloat16, seed=1), grad=False)

    def assign(x, v):
        x = x.clone()
        x[:, i(1, 0).to(x.device)] = v
        x[0] = 7
        x[x > 1] = 0
        x[i(1, 2).to(x.device), :, i(1, 2).to(x.device)] = -1
        return x

    check(assign, t(4, 5, 6), t(4, 2, 6, seed=1))


G3 = t(3, 4, 5)
DIM = {
    "gather": lambda x, j: x.gather(1, j),
    "gather last": lambda x, j: x.gather(-1, j % 3),
    "take_along": lambda x, j: torch.take_along_dim(x, j, 1),
    "scatter": lambda x, j: x.scatter(1, j, x * 2),
    "scatter value": lambda x, j: x.scatter(1, j, 2.5),
    "scatter_add": lambda x, j: x.scatter_add(1, j, x * 2),
    "scatter add": lambda x, j: x.detach().scatter(1, j, x.detach() * 2, reduce="add"),
    "scatter mul": lambda x, j: x.detach().scatter(1, j, 3, reduce="multiply"),
    **{f"reduce {r} {s}": (lambda r, s: lambda x, j: x.scatter_reduce(1, j, x * 2, r, include_self=s))(r, s)
       for r in ("sum", "prod", "mean", "amax", "amin") for s in (True, False)},
}  # fmt: skip
UNIQUE = torch.stack(
    [
        torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(9 * a + b)) for a in range(5)], 1)
        for b in range(3)
    ]
)
REPEATED = UNIQUE % 3


@pytest.mark.parametrize("name", DIM)
def test_along_dim(name):
    j = UNIQUE if name in ("scatter", "scatter value") else REPEATED
    check(DIM[name], G3, j)
    check(DIM[name], t(5, 4, 3).permute(2, 1, 0), j)
    check(DIM[name], G3.double(), j)
    if name != "scatter value":
        check(DIM[name], G3.to(I64), j)


def test_scatter_shapes():
    small = REPEATED[:2, :3, :2]
    check(lambda x, j, s: x.scatter_add(1, j, s), G3, small, t(3, 4, 5, seed=1), grad=False)
    check(lambda x, j, s: x.scatter(1, j, s), G3, UNIQUE[:2, :3, :2], t(3, 4, 5, seed=1), grad=False)
    check(lambda x, j: x.gather(1, j), G3, small)
    check(lambda x, j: x.gather(0, j), t(4), i(1, 1, 3))
    check(lambda x, j: x.gather(0, j), t(()) if False else torch.tensor(3.0), torch.tensor(0))
    check(lambda x, j, s: x.scatter_add(0, j, s), t(10), torch.arange(30) % 7, t(30, seed=1))
    check(
        lambda x, j, s: x.scatter_add(0, j.view(-1, 1).expand_as(s), s),
        t(10, 4),
        torch.arange(30) % 7,
        t(30, 4, seed=1),
    )
    check(lambda x, j, s: x.scatter_add(0, j, s), t(10, 4), (torch.arange(120) % 7).view(30, 4), t(30, 4, seed=1))
    check(lambda x, j: x.scatter(1, j, True), t(4, 6, dtype=torch.bool), i([[1, 2]]))
    check(lambda x, j: x.scatter(1, j, 1.5), t(4, 6, dtype=torch.bfloat16), i([[1, 2]]), grad=False)
    check(lambda x, j: x.gather(1, j), t(4, 6), torch.empty(4, 0, dtype=I64))
    check(lambda x, j: x.clone().scatter_(1, j, 1.0), t(4, 6), i([[1, 2]]))


def test_int32_index():
    x, src, index = torch.randn(4, 5), torch.randn(4, 5), torch.randint(0, 4, (4, 5), dtype=torch.int32)
    check(lambda x, i: x.gather(0, i), x, index)
    check(lambda x, i, s: (x.scatter(0, i, s), x.scatter_add(0, i, s), x.scatter(0, i, 2.0)), x, index, src)
    check(lambda x, i: x.gather(0, i), x[0], torch.zeros(2, 0, dtype=torch.uint8))


def test_nonzero_static():
    for x in (torch.tensor([[0, 1], [1, 0]]), torch.tensor(1), torch.zeros(2, 3)):
        for size in (0, 1, 2, 5):
            check(lambda x: x.nonzero_static(size=size, fill_value=7), x, grad=False)


def test_as_strided_scatter():
    x = torch.arange(12.0)
    check(lambda x, s: x.as_strided_scatter(s, (2, 2), (3, 1), 1), x, torch.randn(2, 2))
    check(lambda x, s: x[2:8].as_strided_scatter(s, (2, 2), (2, 1), 3), x, torch.randn(2, 2), grad=False)


def test_scatter_add_collisions():
    for seed in range(5):  # a sum that threads race for is wrong only sometimes
        x, s = torch.zeros(5000), t(20000, seed=seed)
        j = torch.randint(0, 50, (20000,), generator=torch.Generator().manual_seed(seed))
        check(lambda x, j, s: x.scatter_add(0, j, s), x, j, s, grad=False, rtol=1e-4, atol=1e-3)
        check(lambda x, j, s: x.index_add(0, j, s), x, j, s, grad=False, rtol=1e-4, atol=1e-3)
        check(
            lambda x, j, s: x.scatter_add(1, j, s),
            x.view(50, 100),
            j.view(50, 400),
            s.view(50, 400),
            rtol=1e-4,
            atol=1e-4,
        )
        check(lambda x, j, s: x.index_put((j,), s, accumulate=True), x, j, s, grad=False, rtol=1e-4, atol=1e-3)


ROWS = {
    "select": lambda x, j, s: x.index_select(1, j),
    "add": lambda x, j, s: x.index_add(1, j, s),
    "add alpha": lambda x, j, s: x.index_add(1, j, s, alpha=2),
    "copy": lambda x, j, s: x.index_copy(1, j, s),
    "fill": lambda x, j, s: x.index_fill(1, j, 3),
    "fill tensor": lambda x, j, s: x.index_fill(1, j, torch.tensor(3.0, device=x.device)),
    "add_": lambda x, j, s: x.clone().index_add_(1, j, s),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
    j = i(3, 0, 1)
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        if name == "fill tensor" and dtype is torch.int64:
            continue
        check(ROWS[name], t(3, 4, 5, dtype=dtype), j, t(3, 3, 5, seed=1, dtype=dtype), grad=dtype is not torch.bfloat16)
    check(ROWS[name], t(5, 4, 3).permute(2, 1, 0), j, t(5, 3, 3).permute(2, 1, 0))
    if name in ("select", "add"):
        check(ROWS[name], G3, i(1, 1, 1), t(3, 3, 5, seed=1))
    check(ROWS[name], G3, torch.empty(0, dtype=I64), t(3, 0, 5))


def test_rows_of_vectors():
    check(lambda x, j, s: x.index_add(0, j, s), t(5), i(1, 1, 4), t(3, seed=1))
    check(lambda x, j: x.index_select(0, j), t(5), torch.tensor(2))
    check(lambda x, j: x.index_select(0, j), torch.tensor(2.0), i([0]))
    check(lambda x, j, s: x.index_add(0, j, s), t(10, 4), i(1, 1, 4), t(3, 4, seed=1))


def test_flat():
    check(lambda x, j: x.take(j), G3, i([[0, -1], [7, 7]]))
    check(lambda x, j, s: x.put(j, s), G3, i(0, -1, 7), t(3, seed=1))
    check(lambda x, j, s: x.put(j, s, accumulate=True), G3, i(0, 7, 7), t(3, seed=1))


def test_masks():
    x, m = t(4, 5), MASK
    check(lambda x, m: x.masked_select(m), x, m)
    check(lambda x, m: x.masked_select(m), t(5), m)
    check(lambda x, m: x.masked_select(m), t(5, 4).t(), m)
    check(lambda x, m: x.masked_select(m), t(4, 5, dtype=torch.bfloat16), m, grad=False)
    check(lambda x, m, s: x.masked_scatter(m, s), x, m, t(30, seed=1))
    check(lambda x, m, s: x.masked_scatter(m[:, :1], s), x, m, t(30, seed=1))
    check_error(lambda x, m, s: x.masked_scatter(m, s), x, m, t(2))
    for n in (
        t(3, 4).relu(),
        t(3, 4) > 0,
        torch.tensor(3.0),
        torch.tensor(0.0),
        torch.zeros(0, 3),
        t(3, 4, dtype=torch.bfloat16),
    ):
        check(lambda x: (x.nonzero(), torch.where(x != 0) if x.dim() else 0), n, grad=False)


def test_embedding():
    embedding = torch.nn.functional.embedding
    w, j = t(11, 6), i([[1, 5, 5], [0, 10, 1]])
    for extra in (
        {},
        {"padding_idx": 1},
        {"padding_idx": -1},
        {"scale_grad_by_freq": True},
        {"padding_idx": 5, "scale_grad_by_freq": True},
    ):
        check(lambda w, j: embedding(j, w, **extra), w, j)
        check(lambda w, j: embedding(j, w, **extra), w.double(), j.int())
    check(lambda w, j: embedding(j, w), w, torch.empty(2, 0, dtype=I64))
    check(lambda w, j: embedding(j, w), w, torch.tensor(3))
    check(lambda w, j: embedding(j, w), w.bfloat16(), j)
    check(lambda w, j: embedding(j, w), t(6, 11).t(), j.t())
    check(lambda j: torch.nn.functional.one_hot(j), j)
    check(lambda j: torch.nn.functional.one_hot(j, 12), j)


def test_views_backward():
    x = t(4, 5, 6)
    check(lambda x: x[1], x)
    check(lambda x: x[:, 1:4:2], x)
    check(lambda x: x.diagonal(0, 1, 2), x)
    check(lambda x, s: x.select_scatter(s, 1, 2), x, t(4, 6, seed=1))
    check(lambda x, s: x.slice_scatter(s, 1, 1, 3), x, t(4, 2, 6, seed=1))
    check(lambda x, s: x.diagonal_scatter(s, 0, 1, 2), x, t(4, 5, seed=1))
    check(lambda x: x.unfold(1, 3, 2), x)
    check(lambda x: torch.where(x > 0, x, -x), x)


ERRORS = {
    "index": lambda x, j: x[j(4)],
    "negative index": lambda x, j: x[j(-5)],
    "indices that do not broadcast": lambda x, j: x[j(0, 1), j(0, 1, 2)],
    "mask": lambda x, j: x[x[0] > 0],
    "index_put": lambda x, j: x.clone().index_put_((j(9),), x[0]),
    "gather": lambda x, j: x.gather(1, j([5])),
    "negative gather": lambda x, j: x.gather(1, j([-1])),
    "gather dim": lambda x, j: x.gather(2, j([0])),
    "index_select": lambda x, j: x.index_select(0, j(4)),
    "negative index_select": lambda x, j: x.index_select(0, j(-1)),
    "scatter": lambda x, j: x.scatter(1, j([5]), 1.0),
    "scatter_add": lambda x, j: x.scatter_add(1, j([-1]), x),
    "index_add": lambda x, j: x.index_add(0, j(4), x[:1]),
    "embedding": lambda x, j: torch.nn.functional.embedding(j(4), x),
    "negative embedding": lambda x, j: torch.nn.functional.embedding(j(-1), x),
    "take": lambda x, j: x.take(j(20)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    check_error(lambda x: ERRORS[name](x, lambda *values: torch.tensor(values, device=x.device)), t(4, 5))
