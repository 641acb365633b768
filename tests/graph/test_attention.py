"""Masks are inputs of a compiled step: other masks, and rows that may look at nothing, as on the CPU."""

import pytest
import torch
import torch.nn.functional as F

import msadapter


def masks(kind):
    for seed in range(5):
        mask = torch.rand(2, 1, 5 if kind == "full" else 1, 5, generator=torch.Generator().manual_seed(seed)) > 0.3
        if seed == 3:
            mask[0] = False
        yield torch.where(mask, 0.5, -torch.inf) if kind == "float" else mask


def train(device, kind, wrap):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=generator).to(device).requires_grad_() for _ in range(3))
    optimizer = torch.optim.SGD([q, k, v], 0.1)

    @wrap
    def step(mask):
        optimizer.zero_grad()
        loss = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return [step(mask.to(device)).cpu().detach() for mask in masks(kind)], [x.detach().cpu() for x in (q, k, v)], step


@pytest.mark.parametrize("kind", ["row", "full", "float"])
def test_attention_masks(kind):
    losses, values, step = train("mindspore", kind, msadapter.compile)
    expected_losses, expected, _ = train("cpu", kind, lambda fn: fn)
    assert step.stats()["hits"] == 3
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)


def test_a_host_number_is_no_constant():
    w = torch.ones(3, device="mindspore", requires_grad=True)

    @msadapter.compile
    def step(x, factor):
        w.grad = None
        loss = (w * x * factor).sum()
        loss.backward()
        return loss

    x = torch.ones(3, device="mindspore")
    for factor in (2.0, 2.0, 2.0, 7.0, 7.0, 7.0, 2.0):
        assert step(x, torch.tensor(factor)).item() == 3 * factor
        assert w.grad.cpu().tolist() == [factor] * 3
