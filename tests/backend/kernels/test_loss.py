"""Losses and their gradients against the CPU."""

import functools

import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.errors import check_error
from tests.backend.kernels.util import check

REDUCTIONS = ("none", "mean", "sum")


def t(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


def classes(n, *shape):
    return torch.randint(0, n, shape, generator=torch.Generator().manual_seed(5))


REGRESSION = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "smooth_l1 half": functools.partial(F.smooth_l1_loss, beta=0.5),
    "smooth_l1 zero": functools.partial(F.smooth_l1_loss, beta=0.0),
    "huber": F.huber_loss,
    "huber two": functools.partial(F.huber_loss, delta=2.0),
    "soft_margin": lambda x, y, reduction: F.soft_margin_loss(x, y.detach().sign(), reduction=reduction),
    "kl_div": lambda x, y, reduction: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction=reduction),
    "kl_div log": lambda x, y, reduction: F.kl_div(
        x.log_softmax(-1), y.log_softmax(-1), reduction=reduction, log_target=True
    ),
    "poisson": lambda x, y, reduction: F.poisson_nll_loss(x, y.abs(), reduction=reduction),
    "gaussian": lambda x, y, reduction: F.gaussian_nll_loss(x, y, y.abs() + 1, reduction=reduction),
    "logits": lambda x, y, reduction: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=reduction),
    "logits weighted": lambda x, y, reduction: F.binary_cross_entropy_with_logits(
        x, y.sigmoid().detach(), y.detach().abs(), pos_weight=y.detach().abs() + 0.5, reduction=reduction
    ),
    "bce": lambda x, y, reduction: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction=reduction),
    "bce weighted": lambda x, y, reduction: F.binary_cross_entropy(
        x.sigmoid(), y.sigmoid(), y.detach().abs(), reduction=reduction
    ),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", REGRESSION)
def test_regression(name, reduction):
    fn = functools.partial(REGRESSION[name], reduction=reduction)
    check(fn, t(4, 5), t(4, 5, seed=1))
    check(fn, t(5, 4).t(), t(5, 4, seed=1).t(), stride=name != "soft_margin")
    check(fn, t(5, 4).t(), t(4, 5, seed=1), stride=False)
    check(fn, t(4, 5).double(), t(4, 5, seed=1).double())
    check(fn, t(0, 5), t(0, 5))
    if not name.startswith(("kl", "gaussian")):
        check(fn, torch.tensor(0.3), torch.tensor(0.9))


def test_extremes():
    p, y = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, 1.0, 0.0, 0.3])
    check(lambda p, y: F.binary_cross_entropy(p, y, reduction="none"), p, y)
    z = torch.tensor([-200.0, 200.0, -200.0, 200.0, 0.0])
    check(lambda z, y: F.binary_cross_entropy_with_logits(z, y, reduction="none"), z, y)
    check_error(lambda p, y: F.binary_cross_entropy(p, y), p + 0.5, y)
    check(lambda x, y: F.mse_loss(x, y), t(3, 4).bfloat16(), t(3, 4, seed=1).bfloat16(), rtol=2e-2, atol=1e-2)


CLASSIFY = {
    "plain": {},
    "weight": {"weight": True},
    "ignore": {"ignore_index": 2},
    "ignore weight": {"ignore_index": 2, "weight": True},
    "pad": {"ignore_index": -1},
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CLASSIFY)
def test_nll(name, reduction):
    options = {**CLASSIFY[name], "reduction": reduction}
    weighted = options.pop("weight", False)

    def fn(loss):
        return lambda x, y, w: loss(x, y, weight=w.detach() if weighted else None, **options)

    w, pad = torch.linspace(0.5, 2, 6), name == "pad"
    for shape in ((9,), (3, 4, 5), (3, 4)):
        y = classes(6, *shape)
        y = torch.where(y == 1, -1, y) if pad else y
        for dtype in (torch.float32, torch.float64):
            x = t(shape[0], 6, *shape[1:], dtype=dtype)
            check(fn(F.nll_loss), x, y, w.to(dtype))
            check(fn(F.cross_entropy), x, y, w.to(dtype))
    check(fn(F.cross_entropy), t(6, 9).t(), classes(6, 9), w)
    check(fn(F.cross_entropy), t(6), torch.tensor(3), w)
    check(fn(F.nll_loss), t(0, 6), classes(6, 0), w)
    check(
        lambda x, y, w: F.cross_entropy(x, y, w.detach() if weighted else None, label_smoothing=0.1, **options),
        t(9, 6),
        classes(6, 9),
        w,
    )


def test_nll_more():
    y = torch.full((4,), 2)
    for reduction in REDUCTIONS:
        check(lambda x, y: F.nll_loss(x, y, ignore_index=2, reduction=reduction), t(4, 6), y)
        check(lambda x, y: F.nll_loss(x, y, ignore_index=2, reduction=reduction), t(2, 6, 2, 1), y.view(2, 2, 1))
        check(lambda x, y: F.cross_entropy(x, y.softmax(1), reduction=reduction), t(4, 6), t(4, 6, seed=1))
        check(
            lambda x, y: torch.ops.aten.nll_loss_forward(x, y, None, REDUCTIONS.index(reduction), 2),
            t(4, 6),
            classes(6, 4),
            grad=False,
        )
    for bad in (6, -1):
        check_error(F.nll_loss, t(4, 6), torch.tensor([0, 1, bad, 2]))
        check_error(F.nll_loss, t(1, 6, 2, 2), torch.tensor([0, 1, bad, 2]).view(1, 2, 2))
    check_error(F.nll_loss, t(4, 6), classes(6, 3))
    check(F.cross_entropy, t(9, 6).bfloat16(), classes(6, 9), rtol=2e-2, atol=1e-2)


def test_far_ignore_index():
    y = torch.tensor([1, -100, 3, 2**40])
    check(lambda x, y: F.nll_loss(x, y, ignore_index=2**40), t(4, 6), torch.tensor([1, 0, 3, 2**40]))
    check_error(F.nll_loss, t(4, 6), y)


def test_margins():
    x, y, z, s = t(5, 6), t(5, 6, seed=1), t(5, 6, seed=2), torch.tensor([1.0, -1, 1, -1, 1])
    check(lambda x, y, z: F.triplet_margin_loss(x, y, z), x, y, z)
    check(lambda x, y, s: F.cosine_embedding_loss(x, y, s.detach()), x, y, s, grad=False)
    check(lambda x, y: F.cosine_similarity(x, y), x, y)
    check(lambda x, y: F.pairwise_distance(x, y), x, y)
    check(lambda x, y, s: F.margin_ranking_loss(x[:, 0], y[:, 0], s.detach()), x, y, s, grad=False)
    check(lambda x, s: F.hinge_embedding_loss(x[:, 0], s.detach()), x, s, grad=False)
    for reduction in REDUCTIONS:
        for p in (1, 2):
            check(lambda x, y: F.multi_margin_loss(x, y, p=p, reduction=reduction), x, classes(6, 5))
        check(
            lambda x, y, w: F.multi_margin_loss(x, y, weight=w.detach(), reduction=reduction),
            x,
            classes(6, 5),
            torch.linspace(0.5, 2, 6),
        )
        labels = torch.tensor(
            [[0, 1, -1, 2, 2, 2], [5, -1, 0, 0, 0, 0], [-1] * 6, [0, 1, 2, 3, 4, 5], [3, 1, -1, -1, -1, -1]]
        )
        check(lambda x, y: F.multilabel_margin_loss(x, y, reduction=reduction), x, labels)
        check(lambda x, y: F.multilabel_margin_loss(x[0], y[0], reduction=reduction), x, labels)
        check(lambda x, y: F.multilabel_margin_loss(x[0, 0], y[0, 0], reduction=reduction), x, labels * 0)
        check(lambda x, y: F.multi_margin_loss(x[0, 0], y[0, 0], reduction=reduction), x, labels * 0)
        check(lambda x, y: F.multilabel_soft_margin_loss(x, (y > 0).float(), reduction=reduction), x, y.detach())


@pytest.mark.parametrize("zero_infinity", (False, True))
def test_ctc(zero_infinity):
    x, inputs, lengths = t(12, 3, 5), torch.tensor([12, 10, 5]), torch.tensor([4, 2, 3])
    y = classes(4, 3, 4) + 1
    flat = torch.cat([row[:n] for row, n in zip(y, lengths)])
    for reduction in REDUCTIONS:
        fn = functools.partial(F.ctc_loss, reduction=reduction, zero_infinity=zero_infinity)
        check(lambda x, y: fn(x.log_softmax(2), y, inputs, lengths), x, y)
        check(lambda x, y: fn(x.log_softmax(2), y, inputs.tolist(), lengths.tolist()), x, flat)
        check(lambda x, y, i, n: fn(x.log_softmax(2), y, i, n), x, y, inputs, lengths)
        check(lambda x, y: fn(x.log_softmax(2), y, inputs, lengths, blank=4), x, y - 1)
        check(lambda x, y: fn(x.log_softmax(2), y, inputs, lengths), x, y.int())
        check(
            lambda x, y: fn(x.log_softmax(2), y, torch.tensor([6, 12, 4]), torch.tensor([4, 4, 0])),
            x,
            torch.ones_like(y),
        )


@pytest.mark.parametrize("zero_infinity", (False, True))
@pytest.mark.parametrize("lengths", ([4, 3, 0], [0, 0, 0], [4, 4, 4], [0, 3, 4]), ids=str)
def test_ctc_without_targets_or_with_too_many(lengths, zero_infinity):
    x, inputs, lengths = t(12, 3, 5), torch.tensor([12, 2, 3]), torch.tensor(lengths)
    y = classes(4, 3, 4) + 1
    flat = torch.cat([row[:n] for row, n in zip(y, lengths)])
    fn = functools.partial(F.ctc_loss, reduction="none", zero_infinity=zero_infinity)
    for targets in (y, flat):
        check(lambda x, y: fn(x.log_softmax(2), y, inputs, lengths), x, targets)
