"""Values at the edge of a type, where a primitive of MindSpore is quietly wrong: large sums, division by a complex zero."""

import pytest
import torch
import torch.nn.functional as F

import msadapter
from msadapter.config import set_config

B = 2**53
LARGE = torch.randint(-(2**62), 2**62, (100, 7), generator=torch.Generator().manual_seed(0))
NUMERATOR = torch.tensor([1 + 1j, 0j, 1, 2j, -1])

CASES = {
    "sum": (lambda x: x.sum(), torch.tensor([B, 1])),
    "nansum": (lambda x: x.nansum(), torch.tensor([B, 1])),
    "sum over a dimension": (lambda x: x.sum(1, keepdim=True), torch.tensor([[B, 1], [B, 3]])),
    "sum that wraps": (lambda x: (x.sum(), x.sum(0), x.sum((0, 1))), LARGE),
    "sum of int32": (lambda x: x.sum(), torch.full((5,), 2**31 - 1, dtype=torch.int32)),
    "sum of uint8": (lambda x: x.sum(), torch.full((9,), 255, dtype=torch.uint8)),
    "sum of bools": (lambda x: x.sum(), torch.arange(99) % 3 == 0),
    "einsum": (lambda x: torch.einsum("ij->i", x), torch.tensor([[B, 1], [B, 3]])),
    "divided by 0": (lambda x: x / 0, NUMERATOR),
    "divided by zeros": (lambda x: x / torch.zeros_like(x), NUMERATOR),
    "divided by real": (lambda x: x / torch.tensor([1.0, 0, 2, 0, 0]).to(x.device), NUMERATOR),
    "complex128 broadcast": (lambda x: x.double().to(torch.complex128)[:, None] / x[:2].abs(), torch.tensor([0.0, 1, -2])),
    "whitened": (lambda x: torch.fft.rfft(x) / torch.fft.rfft(x).abs(), torch.ones(4)),
    "log2": (lambda x: (x.log2(), x.log10()), torch.tensor([0j, complex(-0.0, 0.0), 1 + 2j, complex("inf")])),
    "mean of nothing": (lambda x: x.mean(), torch.zeros(0, dtype=torch.complex64)),
}


def parts(x):
    return torch.view_as_real(x) if x.is_complex() else x


@pytest.mark.parametrize("name", CASES)
def test_edge(name, monkeypatch):
    fn, x = CASES[name]
    expected = fn(x)
    before = set_config(fallback="error")
    try:
        actual = fn(x.to("mindspore"))
    finally:
        set_config(fallback=before.fallback)
    for a, e in zip(*((v if isinstance(v, tuple) else (v,)) for v in (actual, expected)), strict=True):
        torch.testing.assert_close(parts(a.cpu()), parts(e), equal_nan=True)


@pytest.mark.parametrize("name", ["sqrt", "log"])
def test_gradient_at_a_complex_singularity(name):
    def gradient(device):
        z = torch.tensor([0j, 1 + 1j], device=device, requires_grad=True)
        return torch.autograd.grad(torch.view_as_real(getattr(z, name)()).sum(), z)[0].cpu()

    torch.testing.assert_close(parts(gradient("mindspore")), parts(gradient("cpu")), equal_nan=True)


def test_compiled_sum_of_large_integers():
    step = msadapter.compile(lambda x: x.sum())
    x = torch.tensor([B, 1], device="mindspore")
    assert [step(x).item() for _ in range(4)] == [B + 1] * 4 and step.stats()["hits"]


@pytest.mark.filterwarnings("ignore::msadapter.backend.fallback.FallbackWarning")
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_with_nan_and_infinity(mode, padding):
    x = torch.arange(1.0, 17).view(1, 1, 4, 4)
    grid = torch.tensor([[[[torch.nan, 0.0], [0.0, torch.nan], [0.1, 0.2], [torch.inf, 0.0]]]])
    expected = F.grid_sample(x, grid, mode, padding, False)
    actual = F.grid_sample(x.to("mindspore"), grid.to("mindspore"), mode, padding, False)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
