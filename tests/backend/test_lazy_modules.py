"""Lazy modules are moved to the device first and get their shapes there, as PyTorch's documentation tells."""

import pytest
import torch
from torch import nn


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LazyLinear(3),
        lambda: nn.LazyConv2d(4, 3),
        lambda: nn.LazyConvTranspose2d(4, 3),
        lambda: nn.LazyBatchNorm2d(),
        lambda: nn.LazyInstanceNorm2d(affine=True, track_running_stats=True),
    ],
)
def test_a_lazy_module_gets_its_shape_on_the_device(make):
    x = torch.randn(2, 5, 6, 6)
    model = nn.Sequential(make())
    before = list(model.parameters())
    model.to("mindspore")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert all(a is b for a, b in zip(before, model.parameters()))
    model(x.to("mindspore")).square().sum().backward()
    optimizer.step()
    tensors = [*model.parameters(), *model.buffers()]
    assert all(t.device.type == "mindspore" for t in tensors) and all(type(p) is nn.Parameter for p in model.parameters())

    model.eval()
    with torch.no_grad():
        result = model(x.to("mindspore")).cpu()
    torch.testing.assert_close(result, model.cpu()(x), rtol=1e-5, atol=1e-5)
