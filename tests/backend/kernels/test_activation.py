"""Activations and their gradients."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.test_pointwise import FLOATS, layouts, numbers
from tests.backend.kernels.util import DEVICE, check

ACTIVATIONS = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": F.leaky_relu, "leaky_relu 0.2": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu 2": lambda x: F.leaky_relu(x, 2.0), "threshold": lambda x: F.threshold(x, 0.5, -1.0),
    "leaky_relu 0": lambda x: F.leaky_relu(x, 0.0), "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "elu": F.elu,
    "elu 0.5": lambda x: F.elu(x, 0.5), "selu": F.selu, "celu": lambda x: F.celu(x, 1.5), "hardtanh": F.hardtanh,
    "hardtanh 0 2": lambda x: F.hardtanh(x, 0.0, 2.0), "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus, "softplus 2": lambda x: F.softplus(x, 2.0, 3.0), "mish": F.mish, "softsign": F.softsign,
    "logsigmoid": F.logsigmoid, "hardshrink": F.hardshrink, "softshrink": F.softshrink, "tanhshrink": F.tanhshrink,
    "hardshrink 1": lambda x: F.hardshrink(x, 1.0), "softshrink 1": lambda x: F.softshrink(x, 1.0),
    "logit": lambda x: torch.logit(x.clamp(-2, 2) / 5 + 0.5), "logit eps": lambda x: torch.logit(x, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("fn", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_layouts(fn):
    for x in layouts(numbers(torch.float32, low=-4, high=5)):
        check(fn, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_dtypes(name, dtype):
    if name.startswith("logit") and dtype.itemsize == 2:
        return  # torch rounds in between
    fn = ACTIVATIONS[name]
    x = torch.tensor([-30.0, -7.0, -3.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.5, 3.0, 6.0, 19.0, 21.0, 88.0])
    check(fn, x.to(dtype), grad=dtype in FLOATS[:2])


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"logit", "logit eps", "gelu"}))
def test_special_values(name):
    """Of gelu, torch's float32 kernel makes NaN of infinity, its float64 kernel infinity."""
    check(ACTIVATIONS[name], torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 100.0, -100.0]), grad=False)


@pytest.mark.parametrize("fn", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_many(fn):
    check(fn, torch.randn(40, 257) * 3, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fn", [F.relu, F.relu6, F.leaky_relu, F.elu, F.hardtanh, F.silu, F.hardswish, F.mish])
def test_in_place(fn):
    check(lambda x: fn(x.clone(), inplace=True), torch.randn(3, 4))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5)], ids=str)
def test_prelu(shape):
    check(F.prelu, torch.randn(shape), torch.tensor([0.25]))
    check(F.prelu, torch.randn(shape), torch.tensor([0.25, -0.5, 1.5]))


def test_glu():
    for dim in (0, 1, -1):
        check(lambda x: F.glu(x, dim), torch.randn(4, 6, 2))


def test_second_derivatives():
    def twice(fn):
        def run(x):
            x = x.detach().requires_grad_()
            (g,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
            return torch.autograd.grad((g * g).sum(), x)[0]

        return run

    for name in ("sigmoid", "tanh", "softplus", "silu", "gelu", "elu", "leaky_relu", "relu"):
        check(twice(ACTIVATIONS[name]), torch.randn(3, 4), grad=False)


def test_integers_are_refused():
    for fn in (F.gelu, F.silu, F.softplus, F.elu):
        with pytest.raises((RuntimeError, NotImplementedError)):
            fn(torch.arange(3).to(DEVICE))
