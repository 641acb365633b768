"""What earlier adapters listed as unsupported works."""

import numpy as np
import pytest

import msadapter.pytorch as torch
from msadapter.pytorch import nn


def test_randint_with_a_single_bound():
    x = torch.randint(10, (2, 2))
    assert x.shape == (2, 2) and x.dtype is torch.int64 and 0 <= int(x.min()) and int(x.max()) < 10


def test_format_specifications():
    x = torch.tensor(3.14159)
    assert f"{x:.2f}" == "3.14" and f"{x:>8.3f}" == "   3.142" and f"{torch.tensor(42):05d}" == "00042"
    assert f"{x.asnumpy():.2f}" == "3.14" and "3.1415" in f"{x}"
    loss = nn.functional.mse_loss(nn.Linear(2, 1)(torch.ones(3, 2)), torch.ones(3, 1))
    assert float(f"{loss:.4f}") == pytest.approx(loss.item(), abs=1e-4)


def test_in_place_on_slices():
    x = torch.zeros(3, 4)
    x[1] += 1
    x[:, 2].mul_(5)
    x[0, 1:3] = torch.tensor([7.0, 8.0])
    x[x == 0] = -1
    assert x.tolist() == [[-1, 7, 8, -1], [1, 1, 5, 1], [-1, -1, -1, -1]]


def test_views_share():
    x = torch.arange(6.0)
    rows, column = x.view(2, 3), x.view(2, 3).t()[1]
    rows[0, 1] = 50
    column[1] = 60
    assert x.tolist() == [0, 50, 2, 3, 60, 5] and rows[1, 1] == 60
    x.zero_()
    assert column.tolist() == [0, 0]
    w = torch.ones(3, requires_grad=True)
    y = w * 2
    y[1:].mul_(3)  # autograd through an in-place change of a view
    y.sum().backward()
    assert w.grad.tolist() == [2, 6, 6]


def test_variable_and_backward():
    x = torch.autograd.Variable(torch.tensor([2.0, 3.0]), requires_grad=True)
    loss = (x**2).sum()
    loss.backward()
    assert x.grad.tolist() == [4, 6] and loss.asnumpy() == 13
    optimizer = torch.optim.SGD([x], 0.5)
    optimizer.step()
    optimizer.zero_grad()
    assert x.tolist() == [0, 0] and x.grad is None


def test_a_retained_graph_hooks_and_numpy():
    x = torch.ones(2, requires_grad=True)
    y = (x * 3).sum()
    x.register_hook(lambda g: g * 2)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [12, 12]
    assert np.asarray(x.detach()).tolist() == [1, 1]
