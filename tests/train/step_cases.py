"""What the tests of TrainStep share: tiny models and data, and the full-batch loop that they are compared with."""

import copy
import warnings

import torch
from torch import nn

from msadapter.train import TrainStep, samples, valid_targets

torch.set_num_threads(1)
DEVICES = ("cpu", "mindspore")
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}
CLASSES, FEATURES = 5, 6
CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0])

# name -> (options of the cross entropy, its weight for TrainStep, micro-batches differ in size)
LOSSES = {
    "equal sizes": ({}, None, False),
    "unequal sizes": ({}, samples, True),
    "ignore_index": ({}, valid_targets(), True),
    "label smoothing": ({"label_smoothing": 0.1}, valid_targets(), True),
    "class weights": ({"weight": CLASS_WEIGHTS}, valid_targets(class_weights=CLASS_WEIGHTS), True),
    "smoothed class weights": (
        {"weight": CLASS_WEIGHTS, "label_smoothing": 0.2},
        valid_targets(class_weights=CLASS_WEIGHTS),
        True,
    ),
}


def make_model(device="cpu", dtype=torch.float32, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(FEATURES, 8), nn.Tanh(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(8, CLASSES)]
    return nn.Sequential(*layers).to(device=device, dtype=dtype)


def make_loss(name, device="cpu", dtype=torch.float32):
    options, weight, _ = LOSSES[name]
    options = {k: v.to(device=device, dtype=dtype) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    return nn.CrossEntropyLoss(**options), weight


def make_batches(count, name="equal sizes", device="cpu", dtype=torch.float32, seed=1):
    """`count` micro-batches (x, y): sizes and numbers of ignored targets differ where the loss says so."""
    g = torch.Generator().manual_seed(seed)
    unequal = LOSSES[name][2]
    batches = []
    for i in range(count):
        n = 2 + (3 * i) % 5 if unequal else 4
        x = torch.randn(n, FEATURES, generator=g, dtype=torch.float64) * (1 + i % 3)
        y = torch.randint(CLASSES, (n,), generator=g)
        if name not in ("equal sizes", "unequal sizes"):
            y[: (i * 2) % n] = -100
        batches.append((x.to(device=device, dtype=dtype), y.to(device)))
    return batches


def make_optimizer(model, kind="sgd"):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def make_scheduler(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def windows_of(batches, size):
    return [batches[i : i + size] for i in range(0, len(batches), size)]


def union(window):
    return tuple(torch.cat(parts) for parts in zip(*window))


def train_full(model, loss_fn, windows, optimizer, clip=None, scheduler=None):
    """The plain loop over the union of each window; returns the weights after each update, on the CPU."""
    curve = []
    for window in windows:
        x, y = union(window)
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        curve.append(weights(model))
    return curve


def train_naive(model, loss_fn, windows, optimizer, clip=None):
    """The usual loop, with the usual mistakes: mean of means, clip per micro-batch, the tail divided by full K."""
    size = max(map(len, windows))
    for window in windows:
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / size).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return weights(model)


def train_step(step, batches):
    """Run a TrainStep over the batches and flush; returns the weights after each update, and all outputs."""
    curve, outputs = [], []
    for batch in batches:
        outputs.append(step(*batch))
        if outputs[-1].updated:
            curve.append(weights(step.model))
    outputs.append(step.flush())
    if outputs[-1].updated:
        curve.append(weights(step.model))
    return curve, outputs


def weights(model):
    return torch.cat([p.detach().cpu().reshape(-1) for p in model.parameters()]).double()


def apart(a, b):
    """The relative distance |a - b| / |b|."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def quiet_step(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TrainStep(*args, **kwargs)


def twin(model):
    """A copy on the same device."""
    return copy.deepcopy(model)
