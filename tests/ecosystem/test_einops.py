"""einops on device tensors: values and gradients are the CPU's."""

import pytest
import torch
from torch import nn

einops = pytest.importorskip("einops")

from einops.layers.torch import Rearrange, Reduce  # noqa: E402

from tests.backend.kernels.util import check  # noqa: E402

X = (2, 6, 4, 4)
CASES = {
    "flatten": (lambda x: einops.rearrange(x, "b c h w -> b (c h w)"), X),
    "transpose": (lambda x: einops.rearrange(x, "b c h w -> w h b c"), X),
    "patches": (lambda x: einops.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2), X),
    "pixel_shuffle": (lambda x: einops.rearrange(x, "b (c p) h w -> b c (h p) w", p=3), X),
    "new_axis": (lambda x: einops.rearrange(x, "b c h w -> b 1 c h w"), X),
    "mean": (lambda x: einops.reduce(x, "b c h w -> b c", "mean"), X),
    "max_pool": (lambda x: einops.reduce(x, "b c (h p) (w q) -> b c h w", "max", p=2, q=2), X),
    "sum_kept": (lambda x: einops.reduce(x, "b c h w -> b 1 h 1", "sum"), X),
    "prod": (lambda x: einops.reduce(x, "b c h w -> h w", "prod"), X),
    "repeat": (lambda x: einops.repeat(x, "b c h w -> b c (h p) (w q)", p=2, q=3), X),
    "repeat_new": (lambda x: einops.repeat(x, "b c h w -> b n c h w", n=3), X),
    "einsum": (lambda x, y: einops.einsum(x, y, "b i j, b j k -> b i k"), (2, 3, 4), (2, 4, 5)),
    "pack": (lambda x, y: einops.pack([x, y], "b *")[0], (2, 3, 4), (2, 5)),
    "layers": (lambda x: nn.Sequential(Rearrange("b c h w -> b h w c"), Reduce("b h w c -> b c", "mean"))(x), X),
}


@pytest.mark.parametrize("name", CASES)
def test_operation(name):
    torch.manual_seed(0)
    fn, *shapes = CASES[name]
    check(fn, *(torch.randn(s) for s in shapes))
