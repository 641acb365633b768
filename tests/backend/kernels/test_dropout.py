"""Dropout: the mask, the values, the strides and the gradient of PyTorch on CPU with the same seed."""

import pytest
import torch
import torch.nn.functional as F

SHAPES = {
    "a number": lambda: torch.tensor(3.0),
    "contiguous": lambda: torch.randn(5, 6),
    "transposed": lambda: torch.randn(4, 6).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "empty": lambda: torch.randn(0, 3),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_as_on_the_cpu(name, p, dtype):
    x = SHAPES[name]().to(dtype)
    found = []
    for device in ("cpu", "mindspore"):
        leaf = x.to(device).detach().requires_grad_()
        torch.manual_seed(3)
        y = F.dropout(leaf, p)
        y.sum().backward()
        found.append((y.detach().cpu(), y.stride(), leaf.grad.cpu(), torch.rand(2)))
    (expected, strides, gradient, drawn), (received, *rest) = found
    torch.testing.assert_close(received, expected, rtol=0, atol=0)
    torch.testing.assert_close(rest[1], gradient, rtol=0, atol=0)
    assert rest[0] == strides and torch.equal(rest[2], drawn)
