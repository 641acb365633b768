"""Sparse COO tensors of the device against the CPU's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from tests.backend.kernels.util import DEVICE, set_config


@pytest.fixture(autouse=True)
def native():
    before = set_config(fallback="error")
    yield
    set_config(fallback=before.fallback)


def matrix(device):
    index, values = torch.tensor([[0, 2, 2, 1], [1, 0, 0, 3]]), torch.tensor([1.0, 2, 3, -1])
    return torch.sparse_coo_tensor(index.to(device), values.to(device), (3, 4))


def dense(device, *shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to(device)


def same(fn):
    expected, received = fn("cpu"), fn(DEVICE)
    assert received.device.type == DEVICE and received.layout == expected.layout
    if expected.is_sparse:
        assert received.is_coalesced() == expected.is_coalesced()
        assert torch.equal(received._indices().cpu(), expected._indices())
        expected, received = expected._values(), received._values()
    torch.testing.assert_close(received.detach().cpu(), expected.detach())


CALLS = {
    "make": matrix,
    "coalesce": lambda d: matrix(d).coalesce(),
    "coalesce empty": lambda d: torch.sparse_coo_tensor(size=(2, 3), device=d).coalesce(),
    "indices": lambda d: matrix(d).coalesce().indices(),
    "values": lambda d: matrix(d).coalesce().values(),
    "to_dense": lambda d: matrix(d).to_dense(),
    "clone": lambda d: matrix(d).clone(),
    "neg": lambda d: -matrix(d),
    "mul": lambda d: matrix(d) * 2.5,
    "div": lambda d: matrix(d) / 2,
    "sparse + sparse": lambda d: (matrix(d) + matrix(d)).coalesce(),
    "dense + sparse": lambda d: dense(d, 3, 4) + matrix(d),
    "dense += sparse": lambda d: dense(d, 3, 4).add_(matrix(d), alpha=-2),
    "sparse_mask": lambda d: dense(d, 3, 4).sparse_mask(matrix(d).coalesce()),
    "to_sparse": lambda d: torch.eye(3, device=d).to_sparse(),
    "to_sparse(1)": lambda d: dense(d, 3, 2, 2).sub(1).relu().to_sparse(1),
    "hybrid": lambda d: dense(d, 3, 2, 2).to_sparse(1).to_dense(),
    "from the host": lambda d: matrix("cpu").to(d),
    "mm": lambda d: matrix(d) @ dense(d, 4, 2),
    "sparse.mm": lambda d: torch.sparse.mm(matrix(d), dense(d, 4, 2)),
    "addmm": lambda d: torch.addmm(dense(d, 3, 2), matrix(d), dense(d, 4, 2), beta=0.5, alpha=2),
    "zero_": lambda d: matrix(d).zero_().to_dense(),
}


@pytest.mark.parametrize("name", CALLS)
def test_sparse(name):
    same(CALLS[name])


def test_to_the_host():
    assert torch.equal(matrix(DEVICE).cpu().to_dense(), matrix("cpu").to_dense())


def test_gradient_of_a_product():
    def gradient(device):
        y = dense(device, 4, 2).requires_grad_()
        (torch.sparse.mm(matrix(device), y) ** 2).sum().backward()
        return y.grad

    same(gradient)


def test_gradients_add_up():
    def gradient(device):
        weight = dense(device, 5, 3).requires_grad_()
        for _ in range(2):
            (F.embedding(torch.tensor([1, 1, 3], device=device), weight, sparse=True) ** 2).sum().backward()
        return weight.grad.coalesce()

    same(gradient)


@pytest.mark.parametrize("layer", (nn.Embedding, lambda *a, **k: nn.EmbeddingBag(*a, mode="sum", **k)))
@pytest.mark.parametrize("optimizer", (optim.SparseAdam, optim.SGD, optim.Adagrad))
def test_training(layer, optimizer):
    def trained(device):
        torch.manual_seed(0)
        m = layer(5, 3, sparse=True).to(device)
        opt = optimizer(m.parameters(), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            (m(torch.tensor([[1, 1, 3]], device=device)) ** 2).sum().backward()
            opt.step()
        return m.weight

    same(trained)


def test_no_other_layouts():
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.eye(2, device=DEVICE).to_sparse_csr()
