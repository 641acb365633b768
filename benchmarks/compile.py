"""A training step as one graph: against PyTorch on the CPU and against our eager device, interleaved in one run.

    python benchmarks/compile.py [--steps 20] [--only gpt lstm]

Each row is a model with the median milliseconds of a step (zero_grad, loss, backward, optimizer) and the medians of the
ratios of single rounds. `capture` is what the calls took that led to the graph: two or three recorded eager steps, lowering,
compilation and the check.
"""

import argparse
import copy
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import msadapter
from msadapter import runtime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.models import GPT, LSTMLM  # noqa: E402


def mlp():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return model, (torch.rand(64, 1, 28, 28), torch.randint(10, (64,)))


def lenet():
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    return model, (torch.rand(64, 1, 28, 28), torch.randint(10, (64,)))


class ResidualBlock(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(channels, out, 1, stride, bias=False) if stride != 1 else nn.Identity()

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


def resnet8():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), ResidualBlock(16, 16, 1),
        ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    return model, (torch.rand(32, 3, 32, 32), torch.randint(10, (32,)))


def gpt():
    model = GPT(vocabulary=1000, context=64, width=128, heads=4, layers=4, dropout=0.1, fused=True)
    text = torch.randint(1000, (8, 65))
    return model, (text[:, :-1], text[:, 1:])


def lstm():
    text = torch.randint(1000, (16, 33))
    return LSTMLM(vocabulary=1000), (text[:, :-1], text[:, 1:])


def sgd(parameters):
    return torch.optim.SGD(parameters, 1e-2, momentum=0.9)


PAUSE = 0.02
WARM = 15  # rounds before the measured ones: MindSpore's kernels try numbers of threads in their first calls

# name: (model and batch, optimizer, goal for compiled / PyTorch, goal for eager / compiled)
MODELS = {
    "mlp": (mlp, sgd, 1.2, None),
    "lenet": (lenet, sgd, 1.5, None),
    "resnet8": (resnet8, sgd, 1.5, None),
    "gpt": (gpt, torch.optim.AdamW, 1.5, 4.0),
    "lstm": (lstm, torch.optim.Adam, 2.0, 4.0),
}


def step_of(model, optimizer, batch):
    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step, batch


def timed(call, batch):
    """Milliseconds of a step. It begins when the threads of the one before, of whatever library, no longer spin."""
    time.sleep(PAUSE)
    start = time.perf_counter()
    call(*batch).item()
    return (time.perf_counter() - start) * 1e3


def measure(name, steps):
    build, make_optimizer, *_ = MODELS[name]
    torch.manual_seed(0)
    model, batch = build()
    on_device = tuple(x.to("mindspore") for x in batch)
    calls = []
    for kind in ("cpu", "eager", "compiled"):
        mine = copy.deepcopy(model).to("cpu" if kind == "cpu" else "mindspore")
        step, given = step_of(mine, make_optimizer(mine.parameters()), batch if kind == "cpu" else on_device)
        calls.append((msadapter.compile(step) if kind == "compiled" else step, given))
    for call, given in calls[:2]:
        for _ in range(3):
            timed(call, given)
    compiled, given = calls[2]
    capture = 0.0
    while not compiled.stats()["captures"] and not compiled.stats()["reasons"]:
        capture += timed(compiled, given)
    rounds = [[timed(*c) for c in calls] for _ in range(WARM + steps)][WARM:]
    return [statistics.median(c) for c in zip(*rounds)], rounds, capture, compiled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    msadapter.set_config(fallback="error")
    torch.ones(1, device="mindspore")
    print(f"oneDNN ISA {runtime.effective_isa()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'model':9}{'PyTorch':>9}{'eager':>9}{'compiled':>10} ms {'/ PyTorch':>11}{'eager /':>9}{'capture':>10}")
    missed = []
    for name in options.only:
        (cpu, eager, graph), rounds, capture, compiled = measure(name, options.steps)
        against_cpu = statistics.median(g / c for c, _, g in rounds)
        against_eager = statistics.median(e / g for _, e, g in rounds)
        *_, most, least = MODELS[name]
        if against_cpu > most or least and against_eager < least:
            missed.append(name)
        goals = f"(goal {most:g}{f', {least:g}x' if least else ''})"
        times = f"{cpu:9.2f}{eager:9.2f}{graph:10.2f}"
        print(f"{name:9}{times}    {against_cpu:11.2f}{against_eager:9.1f}{capture:8.0f} ms {goals}", flush=True)
        if not compiled.stats()["hits"]:
            print("  not compiled:", compiled.stats()["reasons"])
    if missed:
        print("goals missed:", ", ".join(missed))


if __name__ == "__main__":
    main()
