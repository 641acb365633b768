"""TrainStep equals one full batch, and differs from the naive loop where that is wrong."""

import io
import random

import pytest
import torch
from torch import nn

from msadapter.train import LossScaler, TrainStep, valid_targets
from tests.train import step_cases as cases
from tests.train.step_cases import (
    CLASSES,
    DEVICES,
    FEATURES,
    LOSSES,
    TOLERANCE,
    apart,
    make_batches,
    make_model,
    windows_of,
)

DTYPES = (torch.float64, torch.float32)
devices = pytest.mark.parametrize("device", DEVICES)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["f64", "f32"])


def both(device, dtype, name, accumulate, count, kind="sgd", clip=None, schedule=False, scaler=None, **model_options):
    """The weights after each update: (of TrainStep, of the full batches), and the step's outputs."""
    loss_fn, weight = cases.make_loss(name, device, dtype)
    batches = make_batches(count, name, device, dtype)
    model, full = make_model(device, dtype, **model_options), make_model(device, dtype, **model_options)
    optimizer, other = cases.make_optimizer(model, kind), cases.make_optimizer(full, kind)
    schedulers = [cases.make_scheduler(o) if schedule else None for o in (optimizer, other)]
    step = TrainStep(
        model, loss_fn, optimizer, accumulate=accumulate, weight=weight, clip_norm=clip, scaler=scaler,
        scheduler=schedulers[0],
    )  # fmt: skip
    curve, outputs = cases.train_step(step, batches)
    return curve, cases.train_full(full, loss_fn, windows_of(batches, accumulate), other, clip, schedulers[1]), outputs


def exact(device):
    """Equal bit for bit on the CPU; MindSpore's kernels differ in the last bit by where their memory lies."""
    return 0.0 if device == "cpu" else 1e-6


def assert_same(curve, expected, tolerance):
    assert len(curve) == len(expected) > 0
    for got, want in zip(curve, expected):
        assert apart(got, want) < tolerance


@devices
@dtypes
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("accumulate", range(1, 8))
def test_window_equals_full_batch(device, dtype, name, accumulate):
    # two windows and a tail of every length that accumulate allows
    count = 2 * accumulate + (accumulate - 1 if accumulate % 2 else accumulate // 2)
    curve, expected, outputs = both(device, dtype, name, accumulate, count)
    assert_same(curve, expected, TOLERANCE[dtype])
    flags = [o.updated for o in outputs]
    assert flags == [i % accumulate == accumulate - 1 for i in range(count)] + [count % accumulate > 0]


@devices
@dtypes
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("options", [{"clip": 0.3}, {"schedule": True}, {"clip": 0.3, "schedule": True, "scaler": 1}])
def test_clip_and_scheduler_equal_full_batch(device, dtype, kind, options):
    if "scaler" in options:
        options = {**options, "scaler": torch.amp.GradScaler(device, init_scale=1024.0)}
    curve, expected, outputs = both(device, dtype, "ignore_index", 3, 8, kind, **options)
    assert_same(curve, expected, TOLERANCE[dtype])
    if "clip" in options:
        assert [o.grad_norm is not None for o in outputs] == [o.updated for o in outputs]
        assert all(float(o.grad_norm) > 0.3 for o in outputs if o.updated)  # else the clip shows nothing


@devices
def test_one_micro_batch_is_bitwise_the_plain_loop(device):
    for name in LOSSES:
        curve, expected, _ = both(device, torch.float32, name, 1, 3)
        assert all(apart(a, b) <= exact(device) for a, b in zip(curve, expected)), name


@pytest.mark.parametrize(
    "name, count, clip",
    [("unequal sizes", 6, None), ("ignore_index", 6, None), ("label smoothing", 6, None), ("class weights", 6, None),
     ("equal sizes", 5, None), ("equal sizes", 6, 0.3)],
    ids=["unequal sizes", "ignore_index", "label smoothing", "class weights", "tail", "clip"],
)  # fmt: skip
def test_naive_loop_differs(name, count, clip):
    """The comparisons above can fail: the usual loop does not pass them."""
    loss_fn, _ = cases.make_loss(name, dtype=torch.float64)
    batches = windows_of(make_batches(count, name, dtype=torch.float64), 3)
    model, full = make_model(dtype=torch.float64), make_model(dtype=torch.float64)
    naive = cases.train_naive(model, loss_fn, batches, cases.make_optimizer(model), clip)
    expected = cases.train_full(full, loss_fn, batches, cases.make_optimizer(full), clip)[-1]
    assert apart(naive, expected) > 1e-3


@devices
def test_weights_of_very_different_size(device):
    """The unit of the sums moves with the weights; the result does not."""
    dtype = torch.float64
    model, full = make_model(device, dtype), make_model(device, dtype)
    batches = make_batches(5, "unequal sizes", device, dtype)
    wanted = iter([1e-3, 7.0, 500.0, 2.0, 1e6])
    given = [1e-3, 7.0, 500.0, 2.0, 1e6]
    step = TrainStep(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 1.0), accumulate=5,
                     weight=lambda x, y: next(wanted))  # fmt: skip
    curve, _ = cases.train_step(step, batches)
    loss = sum(w * nn.functional.cross_entropy(full(x), y) for w, (x, y) in zip(given, batches)) / sum(given)
    loss.backward()
    torch.optim.SGD(full.parameters(), 1.0).step()
    assert_same(curve, [cases.weights(full)], 1e-6)


@devices
@pytest.mark.parametrize("position", range(3))
def test_micro_batch_without_valid_targets(device, position):
    """Its mean loss is nan (0 / 0), its weight 0: it contributes nothing."""
    dtype = torch.float64
    batches = make_batches(3, "ignore_index", device, dtype)
    batches[position] = (batches[position][0], torch.full_like(batches[position][1], -100))
    model, full = make_model(device, dtype), make_model(device, dtype)
    step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=3, weight=valid_targets())
    curve, outputs = cases.train_step(step, batches)
    assert outputs[position].loss.isnan() and outputs[2].updated
    expected = cases.train_full(full, nn.CrossEntropyLoss(), [batches], cases.make_optimizer(full))
    assert_same(curve, expected, 1e-6)


@devices
def test_window_without_any_valid_target_is_skipped(device):
    model = make_model(device)
    optimizer = cases.make_optimizer(model, "adamw")
    scaler, scheduler = LossScaler(64.0), cases.make_scheduler(optimizer)
    step = TrainStep(model, nn.CrossEntropyLoss(), optimizer, accumulate=2, weight=valid_targets(), clip_norm=1.0,
                     scaler=scaler, scheduler=scheduler)  # fmt: skip
    before, scaling = cases.weights(model), scaler.state_dict()
    x, y = make_batches(1, device=device)[0]
    outputs = [step(x, torch.full_like(y, -100)) for _ in range(2)]
    assert [o.skipped for o in outputs] == [False, True] and not outputs[1].updated and outputs[1].grad_norm is None
    assert torch.equal(cases.weights(model), before) and not optimizer.state
    assert scaler.state_dict() == scaling and scheduler.last_epoch == 0 and step.skips == 1


@devices
@pytest.mark.parametrize("position", range(1, 6))
def test_resume_at_each_position(device, position):
    """A run killed inside a window goes on on the same curve, bit for bit: dropout, random data and scaler included."""

    def begin():
        model = make_model(device, dropout=0.3)
        optimizer = cases.make_optimizer(model, "adamw")
        scheduler = cases.make_scheduler(optimizer)
        scaler = LossScaler(256.0, growth_interval=1)
        step = TrainStep(model, nn.CrossEntropyLoss(), optimizer, accumulate=3, weight=valid_targets(), clip_norm=1.0,
                         scaler=scaler, scheduler=scheduler)  # fmt: skip
        return step, {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": step}

    def go(step, batches):
        losses = []
        for x, y in batches:
            losses.append(float(step(x * (1 + random.random()), y).loss))  # Python's generator draws too
        return losses

    batches = make_batches(7, "ignore_index", device)
    step, parts = begin()
    torch.manual_seed(5)
    random.seed(5)
    losses = go(step, batches[:position])
    file = io.BytesIO()
    torch.save({k: v.state_dict() for k, v in parts.items()}, file)
    losses += go(step, batches[position:])
    step.flush()

    torch.manual_seed(99)
    random.seed(99)
    resumed, parts = begin()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    assert resumed.pending == position % 3
    assert go(resumed, batches[position:]) == pytest.approx(losses[position:], rel=exact(device))
    resumed.flush()
    assert apart(cases.weights(resumed.model), cases.weights(step.model)) <= exact(device)
    assert (resumed.updates, resumed.skips) == (step.updates, step.skips)


@devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_parameters_are_summed_in_float32(device, dtype):
    """32 equal gradients: their sum in bfloat16 stalls, in float32 it does not."""
    model = nn.Linear(4, 1, bias=False).to(device=device, dtype=dtype)
    seen = []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.weight.grad.detach().cpu().float()))
    x = torch.tensor([[1.0, 1 / 3, 0.7, -0.013]], dtype=dtype, device=device)
    step = TrainStep(model, lambda out, y: (out - out.detach() + 1).mean(), optimizer, accumulate=32)
    for _ in range(31):
        step(x, None)
        assert model.weight.grad is None
    saved = step.state_dict()["window"]["gradients"][0]
    assert saved.dtype == torch.float32
    assert step(x, None).updated
    assert torch.equal(seen[0], x.cpu().float())
    naive = torch.zeros(1, 4, dtype=dtype)
    for _ in range(32):
        naive += x.cpu()
    assert dtype != torch.bfloat16 or not torch.equal((naive / 32).float(), x.cpu().float())


@devices
def test_frozen_and_unused_parameters_stay_without_gradient(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.frozen, self.unused = (nn.Linear(FEATURES, CLASSES) for _ in range(3))
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.used(x) + self.frozen(x)

    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.5)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    step = TrainStep(model, nn.CrossEntropyLoss(), optimizer, accumulate=2, clip_norm=1.0)
    for batch in make_batches(4, device=device):
        step(*batch)
        assert model.frozen.weight.grad is None and model.unused.weight.grad is None
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {"used.weight", "used.bias"}  # weight decay must not touch what got no gradient


@devices
def test_gradient_hooks_and_several_inputs(device):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_model()

        def forward(self, a, b):
            return self.inner(a + b)

    model = Sum().to(device)
    calls = []
    handle = model.inner[0].weight.register_hook(lambda g: (calls.append(1), g * 0)[1])
    before = model.inner[0].weight.detach().clone()
    step = TrainStep(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), accumulate=2)
    for x, y in make_batches(2, device=device):
        step(x, x, y)
    assert len(calls) == 2 and torch.equal(model.inner[0].weight, before)
    handle.remove()


@devices
@pytest.mark.parametrize("around", ["model", "step"])
def test_autocast(device, around):
    """autocast inside of the model, or around the step: the same as the plain loop, whose backward is outside of it."""

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_model(device)

        def forward(self, x):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=around == "model"):
                return self.inner(x)

    batches = make_batches(4, device=device)
    model, plain = Cast(), Cast()
    step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=2)
    optimizer = cases.make_optimizer(plain)
    for i, (x, y) in enumerate(batches):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=around == "step"):
            out = step(x, y)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=around == "step"):
            loss = nn.functional.cross_entropy(plain(x), y)
        (loss / 2).backward()
        assert torch.allclose(out.loss, loss.detach(), rtol=1e-6)
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert apart(cases.weights(model), cases.weights(plain)) < 1e-5


def test_public_names():
    import msadapter.train as train

    assert {"TrainStep", "LossScaler", "valid_targets", "samples"} <= set(dir(train))
    with pytest.raises(AttributeError, match="expected one of TrainStep"):
        _ = train.TrainStop
