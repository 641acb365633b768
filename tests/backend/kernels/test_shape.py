"""Joining, repeating, turning and the factories against the CPU."""

import pytest
import torch

from tests.backend.kernels.errors import check_error
from tests.backend.kernels.util import check

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


def t(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).abs().to(dtype)


X, Y = t(3, 4, 5), t(3, 2, 5, seed=1)
LAST = t(2, 4, 5, 3).permute(0, 3, 1, 2)
JOIN = {
    "cat": lambda x, y: torch.cat([x, y], 1),
    "cat negative": lambda x, y: torch.cat([x, x.detach()], -1),
    "cat one": lambda x, y: torch.cat([x]),
    "cat many": lambda x, y: torch.cat([x, y, y, x], dim=1),
    "cat empty": lambda x, y: torch.cat([x, y[:, :0], x.new_empty(0)], 1),
    "cat views": lambda x, y: torch.cat([x.transpose(1, 2), y.transpose(1, 2)], 2),
    "stack": lambda x, y: torch.stack([x, x * 2], 1),
    "hstack": lambda x, y: torch.hstack([x, y]),
    "cat out": lambda x, y: torch.cat([x.detach(), y.detach()], 1, out=x.new_empty(0)),
    "meshgrid": lambda x, y: torch.meshgrid(x[0, :, 0], y[0, 0], indexing="ij"),
    "block_diag": lambda x, y: torch.block_diag(x[0], y[0]),
    "copy": lambda x, y: torch.ops.aten.copy(x.detach(), y[:, :1].detach()),
}


@pytest.mark.parametrize("name", JOIN)
def test_join(name):
    check(JOIN[name], X, Y)
    check(JOIN[name], t(5, 4, 3).permute(2, 1, 0), t(5, 2, 3).permute(2, 1, 0))


def test_cat_types():
    for a in DTYPES:
        check(lambda x, y: torch.cat([x, y]), t(3, 2, dtype=a), t(2, 2, dtype=a))
        check(lambda x, y: torch.cat([x, y]), t(3, 2, dtype=a), t(2, 2))
    check(lambda x, y: torch.cat([x, y]), t(3, dtype=torch.int32), t(2, dtype=torch.int64))
    for dim in range(4):
        check(lambda x: torch.cat([x, x], dim), LAST)
    check(lambda x, y: torch.cat([x, y], 1), LAST, t(2, 3, 4, 5))
    check_error(lambda x, y: torch.cat([x, y]), t(3, 2), t(3, 3))
    check_error(lambda x, y: torch.cat([x, y]), t(3, 2), t(3))


MOVE = {
    "split": lambda x: x.split(2, 1),
    "chunk": lambda x: x.chunk(3, 2),
    "unbind": lambda x: x.unbind(1),
    "tensor_split": lambda x: torch.tensor_split(x, 3, 1),
    "split_copy": lambda x: torch.split_copy(x, 2, 1),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2, 1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat more": lambda x: x.repeat(2, 2, 1, 1, 3),
    "repeat none": lambda x: x.repeat(2, 0, 1),
    "tile": lambda x: torch.tile(x, (2,)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "repeat_interleave flat": lambda x: x.repeat_interleave(2),
    "repeat_interleave tensor": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2, 3], device=x.device), 1),
    "roll": lambda x: x.roll(3),
    "roll dims": lambda x: x.roll((1, -2), (0, 2)),
    "flip": lambda x: x.flip(0, -1),
    "fliplr": lambda x: torch.fliplr(x),
    "rot90": lambda x: torch.rot90(x, 1, (0, 2)),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "tril low": lambda x: x.tril(-2),
    "triu far": lambda x: x.triu(-99),
    "tril_": lambda x: x.clone().tril_(1),
    "narrow_copy": lambda x: torch.narrow_copy(x, 1, 1, 2),
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, x[0, 0] * 2, (5,), (2,), 3) if x.is_contiguous() else x,
    "unfold": lambda x: x.unfold(1, 2, 1),
    "unfold_copy": lambda x: torch.unfold_copy(x, 1, 2, 2),
    "diag_embed": lambda x: torch.diag_embed(x),
    "diag": lambda x: torch.diag(x[0, 0]),
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "select": lambda x: x[:, 1],
    "slice": lambda x: x[:, 1:3],
    "slice step": lambda x: x[:, ::2],
    "slice scatter": lambda x: x.slice_scatter(x[:, :2] * 2, 1, 0, 4, 2),
    "slice scatter one": lambda x: x.slice_scatter(x[:, :2] * 2, 1, 1, 3),
    "select scatter": lambda x: x.select_scatter(x[:, 0] * 2, 1, -1),
    "diagonal scatter": lambda x: x.diagonal_scatter(
        x[0, :3, :4].t() * 2 if False else x.diagonal(0, 1, 2) * 2, 0, 1, 2
    ),
    "pixel_shuffle": lambda x: torch.pixel_shuffle(x.reshape(1, 4, 3, 5), 2),
    "pixel_unshuffle": lambda x: torch.pixel_unshuffle(x.reshape(1, 1, 6, 10), 2),
    "movedim": lambda x: x.movedim(0, 2).contiguous(),
    "cartesian": lambda x: torch.cartesian_prod(x[0, 0], x[0, :, 0]),
}


@pytest.mark.parametrize("name", MOVE)
def test_move(name):
    check(MOVE[name], X)
    check(MOVE[name], t(5, 4, 3).permute(2, 1, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_move_types(dtype):
    for name in ("repeat", "roll", "flip", "tril", "repeat_interleave tensor", "slice", "split"):
        check(MOVE[name], t(3, 4, 5, dtype=dtype), grad=dtype is torch.float64)


def test_small():
    for x in (torch.tensor(2.0), torch.zeros(0, 3), t(1)):
        check(lambda x: (x.repeat(2, 2), x.roll(1), x.flip(0), x.repeat_interleave(2)), x)
    check(lambda x: x.tril(), torch.zeros(0, 3))


FACTORY = {
    "arange": lambda d: (
        torch.arange(5, device=d),
        torch.arange(1, 9, 2, device=d),
        torch.arange(0.0, 1, 0.1, device=d),
    ),
    "arange types": lambda d: (
        torch.arange(5, dtype=torch.float16, device=d),
        torch.arange(5, dtype=torch.bfloat16, device=d),
    ),
    "linspace": lambda d: (torch.linspace(0, 1, 7, device=d), torch.linspace(0, 5, 3, dtype=torch.int64, device=d)),
    "logspace": lambda d: torch.logspace(0, 1, 7, device=d),
    "eye": lambda d: (torch.eye(3, device=d), torch.eye(3, 4, device=d, dtype=torch.int64)),
    "full": lambda d: (
        torch.full((2, 3), 7, device=d),
        torch.full((2,), 0.5, device=d),
        torch.full((), True, device=d),
    ),
    "like": lambda d: (torch.full_like(X.to(d), 3), torch.ones_like(X.to(d)), torch.zeros_like(LAST.to(d))),
    "new": lambda d: (X.to(d).new_full((2,), 3), X.to(d).new_ones(2), torch.scalar_tensor(3.0, device=d)),
    "tri": lambda d: (torch.tril_indices(3, 4, device=d), torch.triu_indices(3, 4, 1, device=d)),
    "range": lambda d: torch.range(0, 4, device=d),
    "out": lambda d: torch.arange(4, out=torch.empty(0, dtype=torch.int64, device=d)),
    "window": lambda d: (torch.hann_window(8, device=d), torch.hamming_window(5, device=d)),
    "complex": lambda d: torch.full((2,), 1j, device=d),
}


@pytest.mark.parametrize("name", FACTORY)
def test_factory(name):
    check(lambda x: FACTORY[name](x.device), torch.zeros(1), grad=False)
