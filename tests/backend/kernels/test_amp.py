"""Gradient scaling and autocast equal PyTorch CPU."""

import pytest
import torch
from torch import nn

from msadapter.config import set_config


@pytest.fixture(autouse=True)
def native():
    before = set_config(fallback="error")
    yield
    set_config(fallback=before.fallback)


def loop(device, way, steps=6, **options):
    """Scales, parameters and gradients of a training loop in which step 2 overflows."""
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, **way)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2, **options)
    x = torch.randn(7, 5).to(device)
    history = []
    for i in range(steps):
        opt.zero_grad()
        loss = m(x).pow(2).mean() * (float("inf") if i == 2 else 1)
        scaler.scale(loss).backward()
        if i % 2:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        history += [torch.tensor(scaler.get_scale()), *(p.detach().cpu().clone() for p in m.parameters())]
    assert not scaler.is_enabled() or scaler.state_dict()["scale"] == scaler.get_scale()
    return history


@pytest.mark.parametrize("way", [{}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize("options", [{}, {"enabled": False}, {"growth_factor": 3.0, "backoff_factor": 0.25}], ids=str)
def test_grad_scaler(way, options):
    for r, e in zip(loop("mindspore", way, **options), loop("cpu", way, **options), strict=True):
        torch.testing.assert_close(r, e, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
def test_unscale(dtype, bad):
    def run(device):
        grads = [torch.arange(6, dtype=dtype).view(2, 3).to(device), torch.ones((), dtype=dtype).to(device)]
        if bad is not None:
            grads[0][1, 1] = bad
        found, scale = torch.zeros(1).to(device), torch.full((1,), 0.5).to(device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
        return [x.cpu() for x in (*grads, found)]

    for r, e in zip(run("mindspore"), run("cpu")):
        torch.testing.assert_close(r, e, equal_nan=True)


OPS = {
    "mm": lambda a, b: a @ b, "linear": lambda a, b: nn.functional.linear(a, b.t()), "add": lambda a, b: a + b.sum(),
    "conv": lambda a, b: nn.functional.conv1d(a[None], b.t()[:, :, None].contiguous()[:, :4]),
    "softmax": lambda a, b: torch.softmax(a @ b, -1), "log_softmax": lambda a, b: torch.log_softmax(a @ b, -1),
    "mse": lambda a, b: nn.functional.mse_loss(a @ b, a @ b + 1), "cat": lambda a, b: torch.cat([a @ b, a]),
    "cross_entropy": lambda a, b: nn.functional.cross_entropy(a @ b, torch.zeros(4, dtype=torch.long, device=a.device)),
    "layer_norm": lambda a, b: nn.functional.layer_norm(a @ b, (4,)), "sum": lambda a, b: (a @ b).sum(),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]), "gelu": lambda a, b: nn.functional.gelu(a @ b),
    "sdpa": lambda a, b: nn.functional.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPS)
def test_autocast(name, dtype):
    def run(device):
        torch.manual_seed(0)
        a, b = (torch.randn(4, 4).to(device).requires_grad_() for _ in range(2))
        with torch.autocast(device, dtype):
            y = OPS[name](a, b)
        grads = torch.autograd.grad(y.float().square().sum(), (a, b))
        return [t.detach().cpu() for t in (y, *grads)]

    for r, e in zip(run("mindspore"), run("cpu")):
        torch.testing.assert_close(r, e, rtol=2e-2, atol=2e-2 * max(1, e.abs().max().item()))
