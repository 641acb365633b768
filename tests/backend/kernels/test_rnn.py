"""Recurrent layers and cells equal PyTorch CPU, forward and backward."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from tests.backend.kernels.util import check

LAYERS = {
    "lstm": (nn.LSTM, {}), "gru": (nn.GRU, {}), "rnn": (nn.RNN, {}), "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "proj": (nn.LSTM, {"proj_size": 3}),
}  # fmt: skip
OPTIONS = [
    {}, {"bias": False}, {"num_layers": 2, "dropout": 0.5}, {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True},
]  # fmt: skip


def layer(name, dtype=torch.float32, **options):
    torch.manual_seed(0)
    cls, extra = LAYERS[name]
    return cls(6, 4, **extra, **options).to(dtype)


def call(module, run):
    """run(module, *inputs) as a function of the module's parameters and the inputs."""
    names = [n for n, _ in module.named_parameters()]

    def fn(*args):
        m = copy.deepcopy(module).to(args[0].device)
        return run(lambda *x: torch.func.functional_call(m, dict(zip(names, args)), x), *args[len(names) :])

    return fn, [p.detach() for p in module.parameters()]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (1, 3), (4, 1)])
def test_dense(name, options, shape):
    m = layer(name, **options)
    fn, parameters = call(m, lambda m, x: _flat(m(x)))
    check(fn, *parameters, torch.randn(*shape, 6), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_float64_and_initial_state(name):
    m = layer(name, torch.float64, bidirectional=True)
    h0 = torch.randn(2, 3, 3 if name == "proj" else 4, dtype=torch.float64)
    c0 = [torch.randn(2, 3, 4, dtype=torch.float64)] if isinstance(m, nn.LSTM) else []
    fn, parameters = call(m, lambda m, x, h, *c: _flat(m(x, (h, *c) if c else h)))
    check(fn, *parameters, torch.randn(5, 3, 6, dtype=torch.float64), h0, *c0)
    fn, parameters = call(m.float(), lambda m, x, h, *c: _flat(m(x, (h, *c) if c else h)))
    check(fn, *parameters, torch.randn(5, 3, 6), h0.float(), *[c.float() for c in c0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", OPTIONS)
def test_packed(name, options):
    m = layer(name, **options)
    lengths = torch.tensor([2, 5, 3, 2])
    batch_first = options.get("batch_first", False)

    def run(m, x):
        packed = pack_padded_sequence(x, lengths, batch_first=batch_first, enforce_sorted=False)
        y, state = m(packed)
        return [pad_packed_sequence(y, batch_first=batch_first)[0], *_flat((y.data, state))]

    fn, parameters = call(m, run)
    check(fn, *parameters, torch.randn(*((4, 5) if batch_first else (5, 4)), 6), rtol=1e-5, atol=1e-5)


def test_pack_sequence():
    fn, parameters = call(layer("gru"), lambda m, *xs: _flat((lambda y, h: (y.data, h))(*m(pack_sequence(xs)))))
    check(fn, *parameters, torch.randn(4, 6), torch.randn(2, 6), torch.randn(1, 6), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "relu"])
def test_inference_and_unbatched(name):
    m = layer(name)
    d = copy.deepcopy(m).to("mindspore")
    x = torch.randn(5, 6)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(d(x.to("mindspore"))[0].cpu(), m(x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(cls, bias):
    torch.manual_seed(0)
    fn, parameters = call(cls(6, 4, bias=bias), lambda m, x, h: _flat(m(x, (h, h.cos()) if cls is nn.LSTMCell else h)))
    check(fn, *parameters, torch.randn(3, 6), torch.randn(3, 4), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "proj"])
def test_twice_differentiable(name):
    m = layer(name)

    def run(m, x):
        y = m(x)[0]
        return torch.autograd.grad((y * y).sum(), x, create_graph=True)[0]

    fn, parameters = call(m, run)
    check(fn, *parameters, torch.randn(3, 2, 6), rtol=1e-4, atol=1e-5, stride=False)


def _flat(x):
    return [t for item in x for t in _flat(item)] if isinstance(x, tuple) else [x]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_narrow_dtypes_and_autocast(name, dtype):
    m, x = layer(name), torch.randn(3, 2, 6)
    d = copy.deepcopy(m).to("mindspore")
    expected = m(x)[0]
    narrow = copy.deepcopy(d).to(dtype)(x.to("mindspore", dtype))[0]
    with torch.autocast("mindspore", dtype):
        mixed = d(x.to("mindspore"))[0]
    assert narrow.dtype is dtype
    for y in (narrow, mixed):
        y.float().sum().backward()
        torch.testing.assert_close(y.detach().cpu().float(), expected.detach(), rtol=5e-2, atol=2e-2)


def test_empty_sequence():
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
        layer("gru").to("mindspore")(torch.randn(0, 3, 6, device="mindspore"))
