"""Optimizers, gradient clipping, averaging and schedulers equal PyTorch CPU over five steps."""

import inspect

import pytest
import torch
from torch import nn, optim

from msadapter.config import set_config

CASES = [
    (optim.SGD, {"lr": 0.1}), (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}), (optim.Adam, {}),
    (optim.Adam, {"amsgrad": True, "weight_decay": 0.01, "maximize": True}), (optim.AdamW, {}),
    (optim.AdamW, {"amsgrad": True, "weight_decay": 0.1}), (optim.RMSprop, {}),
    (optim.RMSprop, {"centered": True, "momentum": 0.9, "weight_decay": 0.01}), (optim.Adagrad, {}),
    (optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}), (optim.Adadelta, {}),
    (optim.Adamax, {"weight_decay": 0.1}),
    (optim.NAdam, {}), (optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}), (optim.RAdam, {}),
    (optim.Rprop, {}), (optim.ASGD, {"weight_decay": 0.1}), (optim.LBFGS, {}), (optim.Adafactor, {}),
]  # fmt: skip
WAYS = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]


@pytest.fixture(autouse=True)
def native():
    before = set_config(fallback="error")
    yield
    set_config(fallback=before.fallback)


def model(device, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(device, dtype)


def train(device, make, dtype=torch.float32, after=lambda m, opt: None, steps=5):
    m = model(device, dtype)
    x, y = torch.randn(7, 5, dtype=dtype).to(device), torch.randn(7, 3, dtype=dtype).to(device)
    opt = make(m.parameters())

    def closure():
        opt.zero_grad()
        loss = ((m(x) - y) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(steps):
        if isinstance(opt, optim.LBFGS):
            opt.step(closure)
        else:
            closure()
            opt.step()
        after(m, opt)
    state = [v for s in opt.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return [t.detach().cpu() for t in [*m.parameters(), *state]]


def same(make, rtol=1e-5, atol=1e-6, **options):
    for received, expected in zip(train("mindspore", make, **options), train("cpu", make, **options), strict=True):
        torch.testing.assert_close(received, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("cls, options", CASES)
def test_optimizers(cls, options, way):
    if not set(way) <= set(inspect.signature(cls).parameters):
        pytest.skip("not offered")
    if cls is optim.LBFGS:
        return same(lambda p: cls(p, **options), dtype=torch.float64, rtol=1e-6, atol=1e-8)

    def run(device):
        params = [nn.Parameter(p.detach().to(device)) for p in model("cpu").parameters()]
        opt = cls(params, **options, **way)
        for step in range(1, 6):
            for p in params:
                p.grad = torch.arange(p.numel()).mul(step).sin().view(p.shape).to(device)
            opt.step()
        state = [v for s in opt.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        return [t.detach().cpu() for t in [*params, *state]]

    for received, expected in zip(run("mindspore"), run("cpu"), strict=True):
        torch.testing.assert_close(received, expected)


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad])
@pytest.mark.parametrize("way", [{}, {"fused": True}], ids=str)
def test_float64_and_tensor_lr(cls, way):
    if not set(way) <= set(inspect.signature(cls).parameters):
        pytest.skip("not offered")
    same(lambda p: cls(p, lr=0.01, **way), dtype=torch.float64, rtol=1e-7, atol=1e-9)
    same(lambda p: cls(p, lr=torch.tensor(0.01), **way))


@pytest.mark.parametrize("way", [{}, {"foreach": False}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
def test_clipping(way, norm):
    norms = []

    def clip(m, opt):
        norms.append(nn.utils.clip_grad_norm_(m.parameters(), 0.1, norm, **way).cpu())
        nn.utils.clip_grad_value_(m.parameters(), 0.05, **way)
        norms.append(nn.utils.get_total_norm([p.grad for p in m.parameters()], norm, **way).cpu())

    same(lambda p: optim.SGD(p, 0.1), after=lambda m, opt: (clip(m, opt), opt.step()))
    half = len(norms) // 2
    torch.testing.assert_close(torch.stack(norms[:half]), torch.stack(norms[half:]))


@pytest.mark.parametrize(
    "make",
    [
        optim.swa_utils.AveragedModel,
        lambda m: optim.swa_utils.AveragedModel(m, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9)),
        lambda m: optim.swa_utils.AveragedModel(m, avg_fn=optim.swa_utils.get_ema_avg_fn(0.9)),
        lambda m: optim.swa_utils.AveragedModel(m, multi_avg_fn=optim.swa_utils.get_swa_multi_avg_fn()),
    ],
)
def test_averaging(make):
    averages = {}

    def update(m, opt):
        a = averages.setdefault(next(m.parameters()).device.type, None) or make(m)
        averages[next(m.parameters()).device.type] = a
        a.update_parameters(m)

    same(lambda p: optim.SGD(p, 0.1), after=update)
    for r, e in zip(averages["mindspore"].parameters(), averages["cpu"].parameters()):
        torch.testing.assert_close(r.detach().cpu(), e.detach())


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: optim.lr_scheduler.StepLR(o, 2, 0.5), lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 5),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=8), lambda o: optim.lr_scheduler.LinearLR(o),
        lambda o: optim.lr_scheduler.ExponentialLR(o, 0.9), lambda o: optim.lr_scheduler.CyclicLR(o, 0.01, 0.1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lr", [0.1, "tensor"])
def test_schedulers(schedule, lr):
    schedulers = {}

    def after(m, opt):
        if id(opt) not in schedulers:
            schedulers[id(opt)] = schedule(opt)
        schedulers[id(opt)].step()

    same(lambda p: optim.SGD(p, torch.tensor(0.1) if lr == "tensor" else lr, momentum=0.9), after=after)


def test_reduce_on_plateau_and_state_dict():
    def make(p):
        opt = optim.Adam(p, 0.1)
        opt.plateau = optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
        return opt

    def after(m, opt):
        opt.plateau.step(sum((p.detach() ** 2).sum() for p in m.parameters()))
        opt.load_state_dict(opt.state_dict())

    same(make, after=after)


def test_sparse_adam_refuses_as_torch_does():
    with pytest.raises(RuntimeError, match="does not support dense gradients"):
        train("mindspore", optim.SparseAdam)
