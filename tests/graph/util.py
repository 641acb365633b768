"""A scenario runs eagerly and compiled, and what it shows must be the same."""

import warnings

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_map

import msadapter
from msadapter.graph.compile import CaptureWarning

DEVICE = "mindspore"


def host(tree):
    """Device tensors of a tree as copies on the host."""

    def shown(x):
        return x.detach().cpu().clone() if isinstance(x, torch.Tensor) else list(x.encode()) if isinstance(x, str) else x

    return tree_map(shown, tree)


def batches(count, shape=(4, 4), device=DEVICE):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(device) for _ in range(count)]


def step_of(module, optimizer):
    """A plain training step."""

    def step(x):
        optimizer.zero_grad()
        loss = module(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def observe(scenario, compiled, **options):
    """(what the scenario returns, its compiled functions, the warnings about them)."""
    steps = []

    def wrap(fn):
        steps.append(msadapter.compile(fn, **options))
        return steps[-1] if compiled else fn

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        shown = host(scenario(wrap))
    return shown, steps, [str(w.message) for w in caught if issubclass(w.category, CaptureWarning)]


def check(scenario, graph=True, because=None, rtol=1e-5, atol=1e-6):
    """Assert that a scenario shows the same compiled. The `stats()` of its first compiled function.

    graph: whether a graph must have run (None: either will do).
    because: words that a warning must have.
    """
    expected, *_ = observe(scenario, compiled=False)
    actual, steps, said = observe(scenario, compiled=True)
    assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    stats = steps[0].stats()
    if graph:
        assert stats["hits"] and not stats["reasons"], (stats, said)
    elif graph is not None:
        assert not stats["hits"], stats
    if because is not None:
        assert any(because in text for text in said), (because, said, stats)
    return stats
