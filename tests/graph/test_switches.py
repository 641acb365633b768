"""MindSpore's switches for the static graph: GRAPH_MODE and mindspore.jit."""

import copy
import io
import warnings

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Tensor
from torch import nn
from torch.testing import assert_close

from msadapter.graph import dynamo, switches
from msadapter.graph.compile import CaptureWarning
from msadapter.train import TrainStep

DEVICE = "mindspore"
torch.ones(1, device=DEVICE)  # the switches are in place from the first use of the device on
TORCHS_CALL = nn.Module.__call__
OTHERS = [
    torch.jit.trace,
    lambda m, x: torch.fx.symbolic_trace(m),
    lambda m, x: torch.func.vmap(m),
    lambda m, x: copy.deepcopy(m),
]


@pytest.fixture
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert nn.Module.__call__ is TORCHS_CALL and not switches.graph_mode()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(6, 8), nn.Linear(8, 5), nn.Dropout(0.5)

    def forward(self, x):
        return self.second(self.drop(torch.relu(self.first(x))))


def net():
    torch.manual_seed(0)
    return Net().to(DEVICE)


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 6, generator=generator).to(DEVICE), torch.tensor([0, 1, 2, 3]).to(DEVICE)


# ------------------------------------------------------------------------------------------------------------- the mode


def test_every_spelling_of_the_mode():
    for set_context in (ms.set_context, ms.context.set_context):
        set_context(mode=ms.GRAPH_MODE)
        assert switches.graph_mode() and ms.get_context("mode") == ms.GRAPH_MODE
        assert nn.Module.__call__ is not TORCHS_CALL
        set_context(mode=ms.PYNATIVE_MODE)
        assert not switches.graph_mode() and nn.Module.__call__ is TORCHS_CALL
    ms.set_context(max_call_depth=1000)
    assert nn.Module.__call__ is TORCHS_CALL


def test_inference(graph_mode):
    model, (x, _) = net().eval(), batch()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with torch.no_grad():
        expected = model(x).cpu()
    ms.set_context(mode=ms.GRAPH_MODE)
    with torch.no_grad():
        results = [model(x).cpu() for _ in range(4)]
        for result in results:
            assert_close(result, expected)
        stats = model._msadapter_graphs.inference.stats()
        assert stats["hits"] and not stats["reasons"]
        assert "_msadapter_graphs" not in vars(model.first)  # inner modules are part of the outermost
        model.second.bias.add_(1)
        assert_close(model(x).cpu(), expected + 1)


def test_copies_and_files_have_no_graphs(graph_mode):
    model, (x, _) = net().eval(), batch()
    with torch.no_grad():
        expected = [model(x) for _ in range(4)][-1].cpu()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert other._msadapter_graphs is None and list(other.state_dict()) == list(model.state_dict())
        with torch.no_grad():
            assert_close(other(x).cpu(), expected)


def train(steps=4):
    model, (x, y) = net(), batch()
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            seen += [loss.item(), model(x).sum().item()]
        model.train()
    return seen


def test_training_with_backward_outside():
    expected = train()
    before = dynamo.COUNTS["program"]
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        actual = train()
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert_close(actual, expected)
    assert dynamo.COUNTS["program"] > before
    assert_close(train(), expected, rtol=0, atol=0)


def test_training_that_torch_compile_refuses(graph_mode, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", refuse)
    model, (x, _) = net(), batch()
    with pytest.warns(CaptureWarning, match="msadapter.train.TrainStep or msadapter.compile"):
        model(x).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x).sum().backward()


def test_modules_elsewhere_are_left_alone(graph_mode):
    on_host = Net().eval()
    with torch.no_grad():
        on_host(torch.ones(2, 6, device="cpu"))
    assert "_msadapter_graphs" not in vars(on_host)


@pytest.mark.parametrize("other", OTHERS)
def test_others_who_take_modules_apart(graph_mode, other):
    model, (x, _) = net().eval(), batch()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        assert_close(other(model, x)(x).cpu(), model(x).cpu())


def test_train_step(graph_mode):
    def run(compile):
        model, (x, y) = net(), batch()
        step = TrainStep(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), compile=compile)
        return [step(x, y).loss.item() for _ in range(5)], step

    expected, eager = run(False)
    actual, step = run(None)
    assert_close(actual, expected)
    assert not eager.stats() and step.stats()["micro"]["hits"]
    ms.set_context(mode=ms.PYNATIVE_MODE)
    hits = step.stats()["micro"]["hits"]
    step(*batch())
    assert step.stats()["micro"]["hits"] == hits


# --------------------------------------------------------------------------------------------------------- mindspore.jit


@ms.jit
def twice(a, b):
    return a + b * 2


@ms.jit
def summed(x):
    return twice(x, x).sum()


def in_closure(model, optimizer, loss_fn):
    @ms.jit
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def as_arguments(model, optimizer, loss_fn):
    @ms.jit(capture_mode="ast")
    def step(x, y, model, optimizer):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lambda x, y: step(x, y, model, optimizer)


def as_method(model, optimizer, loss_fn):
    class Trainer:
        @ms.jit
        def step(self, x, y):
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

    return Trainer().step


def plain(model, optimizer, loss_fn):
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("make", [in_closure, as_arguments, as_method])
def test_jit_of_a_training_step(make, monkeypatch):
    def run(make):
        model, (x, y) = net(), batch()
        step = make(model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss())
        return [step(x, y).item() for _ in range(5)]

    expected = run(plain)
    made = []
    from msadapter.graph import compile as module

    original = module.Step.__init__
    monkeypatch.setattr(module.Step, "__init__", lambda self, *a, **k: (made.append(self), original(self, *a, **k))[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        assert_close(run(make), expected)
    assert len(made) == 1 and made[0].stats()["hits"]


def test_jit_of_mindspores_own_functions():
    class Cell(ms.nn.Cell):
        def construct(self, x):
            return twice(x, x) + 1

    class Jitted(ms.nn.Cell):
        @ms.jit
        def construct(self, x):
            return twice(x, x) + 1

    t = Tensor(np.ones(3, np.float32))
    assert twice(t, t).asnumpy().tolist() == [3, 3, 3]
    assert Cell()(t).asnumpy().tolist() == Jitted()(t).asnumpy().tolist() == [4, 4, 4]
    assert ms.jit(Cell())(t).asnumpy().tolist() == [4, 4, 4]
    assert ms.grad(summed)(t).asnumpy().tolist() == [3, 3, 3]
    assert twice.__name__ == "twice" and hasattr(twice, "__wrapped_by_jit__")


def test_jit_may_return_a_history():
    model, (x, _) = net().eval(), batch()
    forward = ms.jit(lambda x: model(x).sum())
    with pytest.warns(CaptureWarning, match="history"):
        forward(x), forward(x)
    forward(x).backward()
    assert model.first.weight.grad is not None
