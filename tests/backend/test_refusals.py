"""What torch refuses, the device refuses, where MindSpore would compute something: out= and arguments out of range.
And the layouts by which random fills draw, and grid_sample's ties.
"""

import pytest
import torch

from msadapter.config import set_config

DEVICE = "mindspore"
F = torch.nn.functional


def expanded(d):
    return torch.zeros(1, device=d).expand(3)


REFUSED = {
    "gather into another dtype": lambda d: torch.gather(
        torch.ones(3, device=d), 0, torch.zeros(2, dtype=torch.long, device=d), out=torch.empty(2, dtype=torch.double, device=d)
    ),
    "amax into another dtype": lambda d: torch.amax(
        torch.ones(3, device=d), 0, out=torch.empty((), dtype=torch.double, device=d)
    ),
    "any into float": lambda d: torch.any(torch.ones(3, device=d), 0, out=torch.empty((), device=d)),
    "multinomial into double": lambda d: torch.multinomial(
        torch.ones(3, device=d), 2, out=torch.empty(2, dtype=torch.double, device=d)
    ),
    "take into its input": lambda d: (x := torch.ones(3, device=d), torch.take(x, torch.tensor([0, 1, 2], device=d), out=x)),
    "cat into a part of its input": lambda d: (x := torch.ones(4, device=d), torch.cat([x[:2], x[2:]], out=x)),
    "out= that overlaps itself": lambda d: torch.take(
        torch.ones(3, device=d), torch.tensor([0, 1, 2], device=d), out=expanded(d)
    ),
    "add into what overlaps itself": lambda d: torch.add(torch.ones(3, device=d), 1, out=expanded(d)),
    "65 dimensions": lambda d: torch.amax(torch.ones(1, device=d).expand([1] * 65), 0),
    "a negative lambda": lambda d: F.softshrink(torch.ones(3, device=d), -0.5),
    "rolling a number": lambda d: torch.ones((), device=d).roll(1, 0),
    "pooling no channels": lambda d: F.max_pool3d(torch.ones(0, 1, 2, 10, device=d), 1),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused_as_on_the_cpu(call):
    with pytest.raises(Exception) as expected:
        call("cpu")
    with pytest.raises(type(expected.value)) as got:
        call(DEVICE)
    assert type(got.value) is type(expected.value)


CONVERTED = {
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "mean": lambda x, out: torch.mean(x, 0, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "stack": lambda x, out: torch.stack([x, x], out=out),
    "std": lambda x, out: torch.std(x, 0, out=out),
    "logsumexp": lambda x, out: torch.logsumexp(x, 0, out=out),
}


@pytest.mark.parametrize("call", CONVERTED.values(), ids=CONVERTED)
def test_out_of_another_dtype_that_torch_allows_is_native(call):
    before = set_config(fallback="error")
    try:
        x = torch.randn(3, 4)
        expected = call(x, torch.empty(0, dtype=torch.double))
        got = call(x.to(DEVICE), torch.empty(0, dtype=torch.double, device=DEVICE))
    finally:
        set_config(fallback=before.fallback)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-6)  # float32 on the way


@pytest.mark.parametrize("fill", ["normal_", "uniform_", "exponential_"])
@pytest.mark.parametrize("geometry", [((5, 5), (5, 1)), ((5, 5), (1, 5)), ((5, 5), (10, 2))], ids=str)
def test_a_random_fill_draws_in_the_order_of_its_layout(fill, geometry):
    drawn = []
    for d in ("cpu", DEVICE):
        x = torch.zeros(60, device=d).as_strided(*geometry, 1)
        torch.manual_seed(1)
        drawn.append(getattr(x, fill)().cpu())
    assert torch.equal(*drawn)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_the_nearest_of_two_equally_near_points(rank, padding, align_corners):
    x = torch.arange(5.0**rank).reshape(1, 1, *[5] * rank)
    grid = torch.randint(-12, 12, (1, *[6] * rank, rank), generator=torch.Generator().manual_seed(0)) / 8
    options = {"mode": "nearest", "padding_mode": padding, "align_corners": align_corners}
    assert torch.equal(F.grid_sample(x.to(DEVICE), grid.to(DEVICE), **options).cpu(), F.grid_sample(x, grid, **options))
