"""Resident memory over many training steps of the MLP: it must stay flat after a warm-up.

python benchmarks/memory.py [--device mindspore] [--steps 10000] [--compiled]
"""

import argparse
import gc
import sys
import time
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.models.mlp import MLP  # noqa: E402

WARM_UP = 500
BOUND_MB = 20


def resident_mb():
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="mindspore")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--compiled", action="store_true", help="the step as one graph, by msadapter.compile")
    options = parser.parse_args()
    if options.device == "mindspore" or options.compiled:
        import msadapter

    torch.manual_seed(0)
    module = MLP(dropout=0.2).to(options.device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)

    def step(images, labels):
        loss = F.cross_entropy(module(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if options.compiled:
        step = msadapter.compile(step, fullgraph=True)

    def train(steps):
        for _ in range(steps):
            images = torch.rand(4, 1, 28, 28).to(options.device)
            labels = torch.randint(10, (4,)).to(options.device)
            loss = step(images, labels)
        return loss.item()

    train(WARM_UP)
    before = resident_mb()
    print(f"after {WARM_UP} steps of warm-up: {before:.1f} MB", flush=True)
    start = time.perf_counter()
    loss = train(options.steps)
    seconds = time.perf_counter() - start
    after = resident_mb()
    growth = after - before
    print(f"after {options.steps} more steps: {after:.1f} MB, loss {loss:.4f}")
    print(f"growth: {growth:.1f} MB (bound {BOUND_MB} MB), {seconds / options.steps * 1e3:.2f} ms per step")
    if growth >= BOUND_MB:
        sys.exit("Memory grows.")


if __name__ == "__main__":
    main()
