"""One eager training step: the device, PyTorch on the CPU, and MindSpore written by hand, interleaved in one run.

    python benchmarks/step.py [--repeat 15]

Each row is a model (batch 64, SGD 1e-2) with the median milliseconds of a step and the median ratios device / PyTorch and
device / MindSpore. The hand-written MindSpore step uses its own nn.Cell, value_and_grad and nn.SGD in PyNative mode,
with the same start-up settings.
"""

import argparse
import statistics
import time

import torch
from torch import nn

torch.ones(1, device="mindspore")
import mindspore as ms  # noqa: E402


def torch_mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def torch_lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def mindspore_mlp():
    n = ms.nn
    return n.SequentialCell(n.Flatten(), n.Dense(784, 512), n.ReLU(), n.Dense(512, 512), n.ReLU(), n.Dense(512, 10))


def mindspore_lenet():
    n = ms.nn
    return n.SequentialCell(
        n.Conv2d(1, 6, 5, pad_mode="pad", padding=2, has_bias=True), n.ReLU(), n.MaxPool2d(2, 2),
        n.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True), n.ReLU(), n.MaxPool2d(2, 2),
        n.Flatten(), n.Dense(400, 120), n.ReLU(), n.Dense(120, 84), n.ReLU(), n.Dense(84, 10),
    )  # fmt: skip


MODELS = {"MLP 784-512-512-10": (torch_mlp, mindspore_mlp), "LeNet-5": (torch_lenet, mindspore_lenet)}


def torch_step(build, device, x, y):
    model, x, y = build().to(device), x.to(device), y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def mindspore_step(build, x, y):
    network = build()
    optimizer = ms.nn.SGD(network.trainable_params(), 1e-2)
    loss_fn = ms.nn.CrossEntropyLoss()
    forward = ms.value_and_grad(lambda x, y: loss_fn(network(x), y), None, optimizer.parameters)
    x, y = ms.Tensor(x.numpy()), ms.Tensor(y.int().numpy())

    def step():
        loss, grads = forward(x, y)
        optimizer(grads)
        return float(loss.asnumpy())

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15, help="interleaved rounds of 5 steps (default 15)")
    options = parser.parse_args()
    x, y = torch.rand(64, 1, 28, 28), torch.randint(0, 10, (64,))
    print(f"{'model':22}{'device ms':>11}{'PyTorch ms':>12}{'MindSpore ms':>14}{'/ PyTorch':>11}{'/ MindSpore':>13}")
    for name, (torch_build, ms_build) in MODELS.items():
        steps = [torch_step(torch_build, d, x, y) for d in ("mindspore", "cpu")] + [mindspore_step(ms_build, x, y)]
        rounds = []
        for _ in range(options.repeat + 1):
            row = []
            for step in steps:
                start = time.perf_counter()
                for _ in range(5):
                    step()
                row.append((time.perf_counter() - start) / 5 * 1e3)
            rounds.append(row)
        rounds = rounds[1:]  # the first one warms up
        median = [statistics.median(r[i] for r in rounds) for i in range(3)]
        ratio = [statistics.median(r[0] / r[i] for r in rounds) for i in (1, 2)]
        print(f"{name:22}{median[0]:11.2f}{median[1]:12.2f}{median[2]:14.2f}{ratio[0]:11.2f}{ratio[1]:13.2f}")


if __name__ == "__main__":
    main()
