"""Every loss on the device as on the CPU: its value and the gradients behind a small network."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from . import compare

N, CLASSES, SIZE = 6, 5, 4


def class_targets(*shape):
    def make(generator):
        return torch.randint(CLASSES, (N, *shape), generator=generator)

    return make


def ignored_class_targets(*shape):
    """Class targets of which every third is -100."""

    def make(generator):
        targets = class_targets(*shape)(generator)
        targets.view(-1)[::3] = -100
        return targets

    return make


def class_probabilities(generator):
    return torch.rand(N, CLASSES, generator=generator).softmax(dim=1)


def real_targets(generator):
    return torch.randn(N, CLASSES, generator=generator)


def zero_one_targets(generator):
    return torch.randint(2, (N, CLASSES), generator=generator).float()


def dense():
    """(N, 8) -> (N, CLASSES)."""
    return nn.Linear(8, CLASSES), torch.Size([N, 8])


def image():
    """(N, 3, SIZE, SIZE) -> (N, CLASSES, SIZE, SIZE)."""
    return nn.Conv2d(3, CLASSES, 3, padding=1), torch.Size([N, 3, SIZE, SIZE])


@dataclass(frozen=True)
class Loss:
    network: object
    targets: object
    criterion: object  # reduction -> module or function of (outputs, targets)
    reductions: tuple = ("mean", "sum", "none")
    prepare: object = staticmethod(lambda outputs: outputs)


def class_weights():
    return torch.tensor([0.5, 1.0, 2.0, 0.25, 3.0])


def positive_weights():
    return torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5])


def log_softmax(outputs):
    return outputs.log_softmax(dim=1)


def cross_entropy(**options):
    return lambda reduction: nn.CrossEntropyLoss(reduction=reduction, **options)


def all_options(reduction):
    return nn.CrossEntropyLoss(weight=class_weights(), ignore_index=-100, label_smoothing=0.1, reduction=reduction)


LOSSES = {
    "cross_entropy": Loss(dense, class_targets(), cross_entropy()),
    "cross_entropy_weight": Loss(dense, class_targets(), cross_entropy(weight=class_weights())),
    "cross_entropy_smoothing": Loss(dense, class_targets(), cross_entropy(label_smoothing=0.1)),
    "cross_entropy_ignore": Loss(dense, ignored_class_targets(), cross_entropy()),
    "cross_entropy_ignore_class": Loss(dense, class_targets(), cross_entropy(ignore_index=2)),
    "cross_entropy_all": Loss(dense, ignored_class_targets(), all_options),
    "cross_entropy_probabilities": Loss(dense, class_probabilities, cross_entropy()),
    "cross_entropy_4d": Loss(image, class_targets(SIZE, SIZE), cross_entropy()),
    "cross_entropy_4d_all": Loss(image, ignored_class_targets(SIZE, SIZE), all_options),
    "nll": Loss(dense, class_targets(), lambda r: nn.NLLLoss(reduction=r), prepare=log_softmax),
    "nll_weight_ignore": Loss(
        dense,
        ignored_class_targets(),
        lambda r: nn.NLLLoss(class_weights(), reduction=r),
        prepare=log_softmax,
    ),
    "nll_4d": Loss(
        image,
        ignored_class_targets(SIZE, SIZE),
        lambda r: nn.NLLLoss(class_weights(), reduction=r),
        prepare=log_softmax,
    ),
    "mse": Loss(dense, real_targets, lambda r: nn.MSELoss(reduction=r)),
    "bce": Loss(dense, zero_one_targets, lambda r: nn.BCELoss(reduction=r), prepare=torch.sigmoid),
    "bce_weight": Loss(
        dense,
        zero_one_targets,
        lambda r: nn.BCELoss(positive_weights(), reduction=r),
        prepare=torch.sigmoid,
    ),
    "bce_with_logits": Loss(dense, zero_one_targets, lambda r: nn.BCEWithLogitsLoss(reduction=r)),
    "bce_with_logits_pos_weight": Loss(
        dense,
        zero_one_targets,
        lambda r: nn.BCEWithLogitsLoss(reduction=r, pos_weight=positive_weights()),
    ),
    "kl_div": Loss(
        dense,
        class_probabilities,
        lambda r: nn.KLDivLoss(reduction=r),
        reductions=("batchmean", "mean", "sum", "none"),
        prepare=log_softmax,
    ),
    "kl_div_log_target": Loss(
        dense,
        lambda generator: class_probabilities(generator).log(),
        lambda r: nn.KLDivLoss(reduction=r, log_target=True),
        reductions=("batchmean", "mean", "sum", "none"),
        prepare=log_softmax,
    ),
    "smooth_l1": Loss(dense, real_targets, lambda r: nn.SmoothL1Loss(reduction=r)),
    "smooth_l1_beta": Loss(dense, real_targets, lambda r: nn.SmoothL1Loss(reduction=r, beta=0.3)),
}


def check(network, shape, loss, device):
    """Compare `loss(module, inputs)` and its gradients between the CPU and the device.

    A loss that is not reduced is weighted before it is differentiated, so that each of its
    elements has a gradient of its own.
    """
    generator = torch.Generator().manual_seed(compare.SEED)
    inputs = torch.randn(shape, generator=generator)
    results = []
    for module in compare.copies(network, device):
        where = next(module.parameters()).device
        value = loss(module, inputs.to(where))
        weights = torch.linspace(0.5, 1.5, value.numel()).view(value.shape).to(where)
        (value * weights).sum().backward()
        results.append((module, value.detach()))
    (host, expected), (module, actual) = results
    assert torch.isfinite(expected).all() and expected.abs().max() > 0
    compare.same(actual, expected, device, "loss", rtol=1e-5, atol=1e-6)
    assert all(parameter.grad.abs().max() > 0 for parameter in host.parameters())
    compare.same_gradients(module, host, device)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize(("name", "reduction"), [(n, r) for n, loss in LOSSES.items() for r in loss.reductions])
def test_loss(name, reduction, device):
    case = LOSSES[name]
    torch.manual_seed(compare.SEED)
    network, shape = case.network()
    targets = case.targets(torch.Generator().manual_seed(1))

    def loss(module, inputs):
        criterion = case.criterion(reduction).to(inputs.device)
        return criterion(case.prepare(module(inputs)), targets.to(inputs.device))

    check(network, shape, loss, device)


# Targets of at most 4 labels over 10 frames.
FEASIBLE = ([10, 8, 9], [4, 2, 3])
# The second has more labels than frames: its loss is infinite.
INFEASIBLE = ([10, 2, 9], [4, 3, 0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("lengths", "zero_infinity"), [(FEASIBLE, False), (FEASIBLE, True), (INFEASIBLE, True)])
def test_ctc_loss(lengths, zero_infinity, reduction, device):
    frames, labels = (torch.tensor(part) for part in lengths)
    torch.manual_seed(compare.SEED)
    network = nn.Linear(8, CLASSES + 1)
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(1, CLASSES + 1, (3, 4), generator=generator)

    def loss(module, inputs):
        log_probabilities = module(inputs).log_softmax(dim=2)
        criterion = nn.CTCLoss(reduction=reduction, zero_infinity=zero_infinity)
        return criterion(log_probabilities, targets.to(inputs.device), frames, labels)

    check(network, (10, 3, 8), loss, device)


def test_infeasible_ctc_loss_is_infinite(device):
    frames, labels = (torch.tensor(part) for part in INFEASIBLE)
    log_probabilities = torch.zeros(10, 3, CLASSES + 1, device=device).log_softmax(dim=2)
    targets = torch.ones(3, 4, dtype=torch.long, device=device)
    loss = F.ctc_loss(log_probabilities, targets, frames, labels, reduction="none")
    assert loss.isinf().tolist() == [False, True, False]


def test_triplet_margin_loss_ignores_easy_triplets(device):
    anchor = torch.tensor([[1.0, 0.0], [1.0, 0.0]], device=device, requires_grad=True)
    positive = torch.tensor([[1.0, 0.1], [0.0, 1.0]], device=device)
    negative = torch.tensor([[-9.0, 0.0], [1.0, 0.5]], device=device)
    loss = nn.TripletMarginLoss(reduction="none")(anchor, positive, negative)
    loss.sum().backward()
    assert loss[0].item() == 0 and loss[1].item() > 1
    assert anchor.grad[0].abs().max().item() == 0 and anchor.grad[1].abs().max().item() > 0
