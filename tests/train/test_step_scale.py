"""Loss scaling: an overflow anywhere in a window, and one state for torch, MindSpore and us."""

import math
import random
import warnings

import pytest
import torch
from torch import nn

from msadapter.train import LossScaler, TrainStep
from tests.train import step_cases as cases
from tests.train.step_cases import DEVICES, apart, make_batches, make_model

devices = pytest.mark.parametrize("device", DEVICES)
SCALERS = {
    "torch": lambda device, **k: torch.amp.GradScaler(device, **k),
    "ours": lambda device, **k: LossScaler(**k),
    "fused": lambda device, **k: torch.amp.GradScaler(device, **k),  # with an optimizer that skips by itself
}


@devices
@pytest.mark.parametrize("kind", SCALERS)
@pytest.mark.parametrize("position", range(3))
def test_overflow_at_each_position(device, kind, position):
    """One inf in the window: no update, the scale halves, the scheduler waits; the next window is exact."""
    if kind == "fused" and device != "cpu":
        pytest.skip("torch has fused optimizers on its own devices only")
    batches = make_batches(6, device=device)
    model, full = make_model(device), make_model(device)
    options = {"lr": 0.05, "fused": kind == "fused"}
    optimizer, other = (torch.optim.Adam(m.parameters(), **options) for m in (model, full))
    scaler = SCALERS[kind](device, init_scale=2.0**10)
    scheduler = cases.make_scheduler(optimizer)
    bad = iter([i == position for i in range(6)])

    def loss_fn(out, y):
        loss = nn.functional.cross_entropy(out, y)
        return loss * math.inf if next(bad) else loss

    step = TrainStep(model, loss_fn, optimizer, accumulate=3, clip_norm=0.5, scaler=scaler, scheduler=scheduler)
    before = cases.weights(model)
    for i, batch in enumerate(batches[:3]):
        assert scaler.get_scale() == 2.0**10, "constant inside the window"
        out = step(*batch)
        assert (out.updated, out.skipped) == (False, i == 2)
    assert torch.equal(cases.weights(model), before)
    assert all(s["step"] == 0 for s in optimizer.state.values())  # a fused optimizer makes its state even so
    assert scaler.get_scale() == 2.0**9 and scheduler.last_epoch == 0 and step.skips == 1
    assert all(p.grad is None for p in model.parameters()) and step.pending == 0
    outputs = [step(*batch) for batch in batches[3:]]
    assert outputs[-1].updated and scheduler.last_epoch == 1 and scaler.get_scale() == 2.0**9
    expected = cases.train_full(full, nn.CrossEntropyLoss(), [batches[3:]], other, clip=0.5)[-1]
    assert apart(cases.weights(model), expected) < 1e-5


@devices
@pytest.mark.parametrize("position", range(3))
def test_naive_overflow_differs(device, position):
    """The test above can fail: stepping per micro-batch applies the others' gradients."""
    model = make_model(device)
    optimizer, scaler = cases.make_optimizer(model), torch.amp.GradScaler(device, init_scale=2.0**10)
    before = cases.weights(model)
    for i, (x, y) in enumerate(make_batches(3, device=device)):
        loss = nn.functional.cross_entropy(model(x), y) / 3
        scaler.scale(loss * math.inf if i == position else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert not torch.equal(cases.weights(model), before)


@pytest.mark.parametrize("scale", [2.0**127, 2.0**126])
@pytest.mark.parametrize("kind", ["torch", "ours"])
def test_scale_overflows_to_inf(kind, scale):
    """B29: growth stops at the largest finite scale."""
    scaler = SCALERS[kind]("cpu", init_scale=scale, growth_interval=1)
    model = nn.Linear(2, 1)
    step = TrainStep(model, lambda out, y: (out * 0).sum(), torch.optim.SGD(model.parameters(), 0.1), scaler=scaler)
    for _ in range(4):
        assert step(torch.ones(1, 2), None).updated
        assert scaler.get_scale() == 2.0**127


def test_scale_limits_and_fixed():
    scaler = LossScaler(4.0, min_scale=2.0, max_scale=8.0, growth_interval=1)
    fixed = LossScaler(4.0, dynamic=False)
    history = []
    for overflow in (0, 0, 1, 1, 1, 0):
        scaler._adjust(bool(overflow))
        fixed._adjust(bool(overflow))
        history.append(scaler.get_scale())
    assert history == [8, 8, 4, 2, 2, 4] and fixed.get_scale() == 4.0


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_same_rule_as_torch_and_mindspore(interval):
    """Four dynamic scalers see the same overflows and keep the same scale; each can take over from ours."""
    mindspore = pytest.importorskip("mindspore")
    rng = random.Random(interval)
    ours, theirs = LossScaler(2.0**14, growth_interval=interval), torch.amp.GradScaler("cpu", 2.0**14, 2, 0.5, interval)
    manager = mindspore.amp.DynamicLossScaleManager(2.0**14, 2, interval)
    scaler = mindspore.amp.DynamicLossScaler(2.0**14, 2, interval)
    p = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([p], 0.1)
    for i in range(25):
        overflow = rng.random() < 0.3
        for s in (ours, theirs):
            s.scale(torch.zeros(()))
            p.grad = torch.tensor([1.0, math.inf if overflow else 1.0])
            s.step(optimizer)
            s.update()
        manager.update_loss_scale(overflow)
        scaler.adjust(mindspore.Tensor(not overflow))
        scale = ours.get_scale()
        assert scale == theirs.get_scale() == manager.get_loss_scale() == float(scaler.scale_value.asnumpy())
        assert ours.state_dict() == theirs.state_dict()
        if i % 5 == 3:  # hand over, in every direction
            assert LossScaler.from_mindspore(manager).state_dict() == ours.state_dict()
            assert LossScaler.from_mindspore(scaler).state_dict() == ours.state_dict()
            theirs.load_state_dict(LossScaler.from_mindspore(ours.to_mindspore()).state_dict())
            state = ours.mindspore_state()
            ours = LossScaler()
            ours.load_state_dict(state)
            manager = ours.to_mindspore()
            theirs2 = torch.amp.GradScaler("cpu")
            theirs2.load_state_dict(ours.state_dict())
            ours.load_state_dict(theirs2.state_dict())


def test_fixed_scale_from_and_to_mindspore():
    mindspore = pytest.importorskip("mindspore")
    for source in (mindspore.amp.FixedLossScaleManager(512.0), mindspore.amp.StaticLossScaler(512.0)):
        scaler = LossScaler.from_mindspore(source)
        assert scaler.get_scale() == 512.0 and not scaler.dynamic
    assert scaler.to_mindspore().get_loss_scale() == 512.0
    with pytest.raises(ValueError, match="drop_overflow_update=True; received False"):
        LossScaler.from_mindspore(mindspore.amp.FixedLossScaleManager(512.0, drop_overflow_update=False))
    with pytest.raises(TypeError, match="expected a MindSpore loss scale manager"):
        LossScaler.from_mindspore(object())


@devices
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_training_is_autocast_on_cpu(device, dtype):
    """A float16 or bfloat16 run, scaled and accumulated: the loss curve of torch on the CPU."""
    curves = []
    for place in ("cpu", device):
        model = make_model(place)
        step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=2,
                         scaler=LossScaler(1024.0))  # fmt: skip
        losses = []
        for batch in make_batches(8, device=place) * 2:
            with torch.autocast(place, dtype=dtype):
                losses.append(step(*batch).loss.float().cpu())
        curves.append(torch.stack(losses))
        assert step.updates == 8
    assert torch.allclose(*curves, rtol=2e-2 if dtype == torch.bfloat16 else 2e-3)
    assert curves[0][-8:].mean() < curves[0][:8].mean()


@devices
def test_float16_parameters(device):
    """MindSpore's O3: torch's GradScaler refuses float16 gradients, ours unscales them as MindSpore does."""

    def run(scaler):
        model = make_model(device, torch.float16)
        step = TrainStep(
            model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), accumulate=2, scaler=scaler
        )
        for batch in make_batches(4, device=device, dtype=torch.float16):
            step(*batch)
        return step

    scaled, plain = run(LossScaler(256.0)), run(None)
    assert scaled.updates == 2 and apart(cases.weights(scaled.model), cases.weights(plain.model)) < 1e-2
    with pytest.raises(ValueError, match="unscale FP16"):
        run(torch.amp.GradScaler(device))


def test_small_gradients_survive():
    """What the scale is for: a gradient of 1e-8 is 0 in float16, and is not with a scale."""
    moved = {}
    for name, scaler in {"plain": None, "scaled": LossScaler(2.0**14)}.items():
        w = nn.Parameter(torch.zeros(1))
        step = TrainStep(lambda x: (w * 1e-4).half() * x, lambda out, y: out.float().mean() * 1e-5,
                         torch.optim.SGD([w], 1e10), scaler=scaler)  # fmt: skip
        step(torch.full((1,), 1e-3, dtype=torch.float16), None)
        moved[name] = float(w)
    assert moved["plain"] == 0.0 and moved["scaled"] == pytest.approx(-1e-2, rel=0.05)


def test_endless_overflow_is_an_error():
    scaler = LossScaler(4.0)
    with pytest.raises(RuntimeError, match="1001 updates in a row"):
        for _ in range(1001):
            scaler._adjust(True)


ERRORS = [
    (lambda: LossScaler(0.5), "scale: expected 1 ... 3.4e"),
    (lambda: LossScaler(math.inf), "scale: expected"),
    (lambda: LossScaler(growth_factor=1.0), "growth_factor: expected a number above 1"),
    (lambda: LossScaler(backoff_factor=1.0), "backoff_factor: expected a number between 0 and 1"),
    (lambda: LossScaler(growth_interval=0), "growth_interval: expected a whole number from 1"),
    (lambda: LossScaler(max_scale=math.inf), "max_scale: expected"),
    (lambda: LossScaler().load_state_dict({}), "empty"),
    (lambda: LossScaler().load_state_dict({"scale": 1.0}), "lacks"),
    (lambda: LossScaler().load_state_dict({"loss_scale": 1.0}), "lacks"),
    (lambda: LossScaler().update(), "came before step"),
    (lambda: LossScaler().scale(3.0), "expected a tensor"),
    (lambda: LossScaler(growth_factor=3.0).mindspore_state(), "one scale_factor"),
]


@pytest.mark.parametrize("call, message", ERRORS, ids=range(len(ERRORS)))
def test_errors(call, message):
    with pytest.raises((ValueError, RuntimeError, KeyError, TypeError), match=message):
        call()


def test_disabled_scalers_do_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        off = [LossScaler(enabled=False), torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cuda")]
    expected = None
    for scaler in [None, *off]:
        model = make_model()
        step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=2, scaler=scaler)
        curve, _ = cases.train_step(step, make_batches(3))
        expected = curve if expected is None else expected
        assert len(curve) == 2 and all(torch.equal(a, b) for a, b in zip(curve, expected))
