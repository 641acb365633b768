"""Embedding bags against the CPU."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.errors import check_error
from tests.backend.kernels.util import check

INDICES, OFFSETS = torch.tensor([1, 2, 2, 5, 0, 2, 2, 3]), torch.tensor([0, 3, 3, 5, 7])
HALF = {"rtol": 2e-2, "atol": 1e-2}


@pytest.mark.parametrize("mode, padding", itertools.product(("sum", "mean", "max"), (None, 2)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.float16, torch.bfloat16), ids=str)
def test_bags(mode, padding, dtype):
    w, p = torch.randn(6, 4).to(dtype), torch.rand(8).to(dtype)
    close = HALF if dtype.itemsize == 2 else {}
    options = {"mode": mode, "padding_idx": padding}
    check(lambda w, i, o: F.embedding_bag(i, w, o, **options), w, INDICES, OFFSETS, **close)
    check(lambda w, i, o: F.embedding_bag(i, w, o, **options), w, INDICES.int(), OFFSETS.int(), **close)
    last = torch.cat((OFFSETS, torch.tensor([8])))
    check(lambda w, i, o: F.embedding_bag(i, w, o, include_last_offset=True, **options), w, INDICES, last, **close)
    check(lambda w, i: F.embedding_bag(i, w, **options), w, INDICES.reshape(2, 4), **close)
    for n in (0, 1):
        check(lambda w, i, o: F.embedding_bag(i, w, o, **options), w, INDICES[:0], OFFSETS[:n], **close)
    if mode == "sum":
        weighted = lambda w, i, o, p: F.embedding_bag(i, w, o, per_sample_weights=p, **options)  # noqa: E731
        check(weighted, w, INDICES, OFFSETS, p, **close)


def test_gradient_scaled_by_frequency():
    """torch's host kernel takes another index's frequency (it looks the number of the index up, not the index)."""
    w = torch.zeros(6, 4, device="mindspore", requires_grad=True)
    F.embedding_bag(INDICES.to(w.device), w, OFFSETS.to(w.device), mode="sum", scale_grad_by_freq=True).sum().backward()
    assert torch.equal(w.grad.cpu()[:, 0], torch.tensor([1.0, 1, 1, 1, 0, 1]))


def test_errors():
    w = torch.randn(6, 4)
    check_error(lambda w: F.embedding_bag(torch.tensor([7], device=w.device), w, torch.tensor([0], device=w.device)), w)
    check_error(lambda w: F.embedding_bag(INDICES.to(w.device), w, torch.tensor([1], device=w.device)), w)
