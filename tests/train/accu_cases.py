"""A tiny network, data and references for the tests of MindSpore Cells; accu_worker.py uses them too."""

from msadapter.runtime import ms

mindspore = ms()

import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn

PYNATIVE, GRAPH = mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE

_random = np.random.RandomState(1)
X = _random.randn(40, 4).astype(np.float32)  # 40 samples of 4 features
Y = _random.randint(0, 3, 40).astype(np.int32)  # 3 classes


def make(seed=0, learning_rate=0.1, **optimizer_options):
    """(network, loss_fn, optimizer) with weights that depend on the seed alone."""
    network = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 3))
    random = np.random.RandomState(seed)
    for p in network.get_parameters():
        p.set_data(Tensor(0.5 * random.randn(*p.shape).astype(np.float32)))
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate, 0.9, **optimizer_options)
    return network, loss_fn, optimizer


def pipeline(batch, x=X, y=Y):
    """The samples in order, in batches."""
    return ds.NumpySlicesDataset((x, y), shuffle=False).batch(batch)


def weights(network):
    """The parameters as numpy arrays."""
    return [p.asnumpy().copy() for p in network.get_parameters()]


def full_batches(ranges, learning_rate=0.1):
    """(losses, weights) of MindSpore's own step with one batch X[a:b] for each (a, b)."""
    network, loss_fn, optimizer = make(learning_rate=learning_rate)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, loss_fn), optimizer).set_train()
    losses = [float(step(Tensor(X[a:b]), Tensor(Y[a:b])).asnumpy()) for a, b in ranges]
    return losses, weights(network)


def windows(samples, window, epochs=1):
    """The ranges of samples that each window holds: ceil(samples / window) of them in an epoch."""
    return [(a, min(a + window, samples)) for a in range(0, samples, window)] * epochs


def difference(a, b):
    """The largest difference between two lists of arrays."""
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))
