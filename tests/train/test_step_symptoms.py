"""The symptoms of docs/accumulation.md, each a test named after it, unless another file tests it or it cannot arise."""

import contextlib
import copy
import gc
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from msadapter.train import LossScaler, TrainStep, samples, valid_targets
from tests.train import step_cases as cases
from tests.train.step_cases import apart, make_batches, make_model, windows_of

F64 = torch.float64


def linear(value=0.0, size=2):
    """A parameter w and the model x -> w * x: its gradient is the mean of x."""
    w = nn.Parameter(torch.full((size,), float(value), dtype=F64))
    return w, lambda x: w * x


def total(out, y):
    return out.sum()


def gradients_of(optimizer):
    seen = []
    optimizer.register_step_pre_hook(
        lambda o, *_: seen.append([p.grad.clone() for g in o.param_groups for p in g["params"]])
    )
    return seen


# -- the denominator of the loss ----------------------------------------------------------------------------------


def test_b01_variable_token_counts():
    """n = 1 and 3 valid tokens: the mean of means is (a + b) / 2, the full batch (a + 3 b) / 4."""
    w, model = linear(size=1)
    optimizer = torch.optim.SGD([w], 1.0)
    seen = gradients_of(optimizer)
    step = TrainStep(model, lambda out, y: out[y != -100].mean(), optimizer, accumulate=2, weight=valid_targets())
    step(torch.tensor([4.0, 9.0, 9.0], dtype=F64), torch.tensor([0, -100, -100]))
    step(torch.tensor([1.0, 2.0, 3.0], dtype=F64), torch.tensor([0, 0, 0]))
    assert float(seen[0][0]) == pytest.approx((4 + 1 + 2 + 3) / 4)
    assert float(seen[0][0]) != pytest.approx((4 + 2) / 2)


def test_b02_sum_of_means_is_not_the_mean():
    """With x1 / n1 + x2 / n2 the loss would be the sum; the tally of tokens divides at the update."""
    w, model = linear(size=1)
    optimizer = torch.optim.SGD([w], 1.0)
    seen = gradients_of(optimizer)
    step = TrainStep(model, lambda out, y: out.mean(), optimizer, accumulate=2, weight=samples)
    for x in ([1.0, 2.0], [3.0, 4.0, 5.0]):
        x = torch.tensor(x, dtype=F64)
        step(x, x)
    assert float(seen[0][0]) == pytest.approx(15 / 5)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_b03_custom_loss_is_not_multiplied_by_the_steps(accumulate):
    """Any loss that is a mean works: the step divides once, whatever the loss knows about the window."""
    w, model = linear()
    optimizer = torch.optim.SGD([w], 1.0)
    seen = gradients_of(optimizer)
    step = TrainStep(model, total, optimizer, accumulate=accumulate)
    for _ in range(accumulate):
        step(torch.ones(2, dtype=F64), None)
    assert torch.equal(seen[0][0], torch.ones(2, dtype=F64))


def test_b04_divided_twice():
    """A loss that already sums is refused, since the step would divide it by the wrong number."""
    model = make_model()
    for options in ({"accumulate": 2}, {"weight": samples}):
        with pytest.raises(ValueError, match="expected the mean of the loss .* received CrossEntropyLoss"):
            TrainStep(model, nn.CrossEntropyLoss(reduction="sum"), cases.make_optimizer(model), **options)
    step = TrainStep(model, nn.CrossEntropyLoss(reduction="none"), cases.make_optimizer(model))
    with pytest.raises(ValueError, match=r"expected the mean loss, a scalar; received shape \(4,\)"):
        step(*make_batches(1)[0])


def test_b09_uneven_last_batch_is_named():
    """Without weight, unequal micro-batches (or ignored targets, or class weights) count alike: that is said once."""
    for name, word in [
        ("unequal sizes", "samples"),
        ("ignore_index", "valid_targets"),
        ("class weights", "class_weights"),
    ]:
        model = make_model()
        step = TrainStep(model, cases.make_loss(name)[0], cases.make_optimizer(model), accumulate=3)
        batches = make_batches(3, name)
        if name != "unequal sizes":  # of one size
            batches = [(x[:2], torch.tensor([1, -100 if name == "ignore_index" else 2])) for x, _ in batches]
        with pytest.warns(UserWarning, match=f"weight={'samples' if word == 'samples' else 'valid_targets'}") as record:
            for batch in batches:
                step(*batch)
        assert len(record) == 1 and word in str(record[0].message)


# -- the end of the window ----------------------------------------------------------------------------------------


def test_b11_flush_is_explicit():
    """An inner loop over the pieces of the last batch does not update at each piece."""
    model = make_model()
    step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=4, weight=samples)
    flags = []
    for x, y in step.epoch(make_batches(2)):  # 2 batches of 4, in pieces of 1
        flags += [step(x[i : i + 1], y[i : i + 1]).updated for i in range(4)]
    assert flags == [False, False, False, True] * 2 and step.updates == 2 and step.pending == 0


@pytest.mark.parametrize("loader", ["DataLoader", "list", "generator"])
def test_b12_any_loader_is_flushed(loader):
    """No loader needs preparing: the tail is applied for whatever can be iterated."""
    data = make_batches(5)
    if loader == "DataLoader":
        pairs = [(x[i], y[i]) for x, y in data for i in range(4)]
        batches = torch.utils.data.DataLoader(pairs, batch_size=4)
    else:
        batches = data if loader == "list" else iter(data)
    model, full = make_model(), make_model()
    step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=3)
    for batch in step.epoch(batches):
        step(*batch)
    expected = cases.train_full(full, nn.CrossEntropyLoss(), windows_of(data, 3), cases.make_optimizer(full))
    assert step.updates == 2 and apart(cases.weights(model), expected[-1]) < 1e-5


@pytest.mark.parametrize("count", range(1, 10))
def test_b13_no_micro_batch_is_dropped(count):
    """Every micro-batch is in exactly one update, also the last full window."""
    w, model = linear(size=1)
    optimizer = torch.optim.SGD([w], 1.0)
    seen = gradients_of(optimizer)
    step = TrainStep(model, total, optimizer, accumulate=3)
    data = [float(2**i) for i in range(count)]
    for x in step.epoch(data):
        step(torch.tensor([x], dtype=F64), None)
    assert [float(g[0]) for g in seen] == pytest.approx([sum(w) / len(w) for w in windows_of(data, 3)])


def test_b14_tail_is_divided_by_its_own_weight():
    w, model = linear(size=1)
    optimizer = torch.optim.SGD([w], 1.0)
    seen = gradients_of(optimizer)
    step = TrainStep(model, total, optimizer, accumulate=8)
    for x in (1.0, 3.0):
        step(torch.tensor([x], dtype=F64), None)
    out = step.flush()
    assert float(seen[0][0]) == 2.0 and (out.loss, out.updated, out.skipped) == (None, True, False)
    assert step.flush() == (None, False, False, None), "nothing pending: nothing happens"


def test_b15_more_steps_than_batches_is_an_error():
    """accumulate=8 and 3 batches an epoch: with flush one update an epoch; without, an error."""

    def make():
        model = make_model()
        return TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=8)

    batches = make_batches(3)
    step = make()
    for batch in step.epoch(batches):
        step(*batch)
    assert step.updates == 1

    message = "accumulate=8 is larger than the 3 micro-batches of an epoch.*flush"
    with pytest.raises(ValueError, match=message):  # before the first batch
        step.epoch(batches, flush=False)
    with pytest.raises(RuntimeError, match="not one update ran"):  # a loader without a length: at its end
        for batch in step.epoch(iter(batches), flush=False):
            step(*batch)
    step.flush()
    with pytest.raises(RuntimeError, match="accumulate=8 is larger than the 3 micro-batches of the whole run"):
        with make() as step:  # a plain loop in a with block
            for batch in batches:
                step(*batch)


@pytest.mark.parametrize("how", ["plain", "enumerate", "workers", "flush", "enough", "two loaders", "next(iter)"])
def test_b15_plain_loop_over_a_data_loader(how):
    """The second epoch begins without an update: an error. Loops that are in order go on."""
    pairs = [(x[i], y[i]) for x, y in make_batches(3) for i in range(4)]
    workers = {"num_workers": 1, "persistent_workers": True} if how == "workers" else {}
    loader = torch.utils.data.DataLoader(pairs, batch_size=4, **workers)
    model = make_model()
    step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=3 if how == "enough" else 8)

    def run():
        longer = iter(torch.utils.data.DataLoader(pairs, batch_size=1)) if how == "two loaders" else None
        for _ in range(3):
            if how == "next(iter)":
                step(*next(iter(loader)))
                continue
            for _, batch in enumerate(loader) if how == "enumerate" else zip(range(9), loader):
                step(*batch)
                if longer is not None:
                    next(longer)
            if how == "flush":
                step.flush()

    if how in ("plain", "enumerate", "workers"):
        with pytest.raises(RuntimeError, match="accumulate=8 is larger than the 3 micro-batches of an epoch: not one"):
            run()
        assert step.pending == 3
    else:
        run()
    step.flush()


def test_b15_plain_loop_says_so_when_it_ends(monkeypatch):
    """A plain loop that forgets flush(): the error comes when the step goes, and is printed at the end of a script."""
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: caught.append(str(u.exc_value)))

    def train(count, **how):
        model = make_model()
        step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=3)
        for batch in make_batches(count):
            step(*batch)
        if how.get("save"):
            step.state_dict()
        if how.get("flush"):
            step.flush()

    for count, how in [(2, {}), (5, {}), (3, {}), (2, {"save": True}), (2, {"flush": True})]:
        train(count, **how)
        gc.collect()
    assert len(caught) == 2
    assert "accumulate=3 is larger than the 2 micro-batches of the whole run: not one update ran" in caught[0]
    assert "The last 2 micro-batches were never applied" in caught[1]

    script = (
        "import torch; from msadapter.train import TrainStep\n"
        "w = torch.nn.Parameter(torch.ones(1))\n"
        "step = TrainStep(lambda x: w * x, lambda o, y: o.sum(), torch.optim.SGD([w], 0.1), accumulate=9)\n"
        "step(torch.ones(1), None)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "accumulate=9 is larger than the 1 micro-batches of the whole run" in run.stderr


def test_b16_resume_in_another_window_size_is_an_error():
    """Resuming inside a window is tested at each position in test_step.py; here what must not be loaded."""
    batches = make_batches(2)

    def make(accumulate=3, scaler=None, model=None):
        model = model or make_model()
        return TrainStep(
            model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=accumulate, scaler=scaler
        )

    step = make()
    step(*batches[0])
    state = step.state_dict()
    with pytest.raises(ValueError, match="Expected accumulate=3.*received 4"):
        make(4).load_state_dict(state)
    with pytest.raises(ValueError, match="Expected no scaler"):
        make(scaler=LossScaler()).load_state_dict(state)
    with pytest.raises(ValueError, match="Expected the gradients of 2 parameters"):
        make(model=nn.Linear(6, 5)).load_state_dict(state)
    with pytest.raises(KeyError, match="state of a TrainStep"):
        make().load_state_dict({})
    with pytest.raises(ValueError, match="version 1; received version 7"):
        make().load_state_dict({**state, "version": 7})
    other = make()
    other.load_state_dict(state, rng=False)
    state["window"]["gradients"][0].zero_()  # the state is a copy
    assert other.pending == 1 and other.model[0].weight.grad.abs().sum() > 0
    step.flush()
    make(4).load_state_dict(step.state_dict())  # between windows any size may follow
    other.flush()


@pytest.mark.parametrize(
    "call", ["optimizer.step", "zero_grad", "zero_grad to 0", "clip", "backward", "unscale_", "update"]
)
def test_b17_calls_that_belong_to_the_step_are_errors(call):
    """optimizer.step(), zero_grad() and the like in the loop, out of habit: named, never silently wrong."""
    model = make_model()
    optimizer, scaler = cases.make_optimizer(model), torch.amp.GradScaler("cpu", init_scale=64.0)
    step = TrainStep(model, nn.CrossEntropyLoss(), optimizer, accumulate=2, scaler=scaler)
    x, y = make_batches(1)[0]
    step(x, y)
    calls = {
        "optimizer.step": optimizer.step,
        "zero_grad": optimizer.zero_grad,
        "zero_grad to 0": lambda: optimizer.zero_grad(set_to_none=False),
        "clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
        "backward": lambda: nn.functional.cross_entropy(model(x), y).backward(),
        "unscale_": lambda: scaler.unscale_(optimizer),
        "update": lambda: scaler.update(32.0),
    }
    with pytest.raises(RuntimeError, match="inside an accumulation window|unscale_.. has already been called"):
        calls[call]()
        step(x, y)
    step._window.clear()


def test_b17_after_the_window_they_do_nothing():
    """zero_grad() and step() after each call with accumulate=1: the gradients are gone already."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    step = TrainStep(model, nn.CrossEntropyLoss(), optimizer)
    step(*make_batches(1)[0])
    before = cases.weights(model)
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(cases.weights(model), before)


# -- DistributedDataParallel (see also test_step_parallel.py) -----------------------------------------------------


@pytest.fixture
def one_rank(tmp_path):
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


@pytest.mark.parametrize("nested", [False, True], ids=["b18_no_sync_around_forward", "b20_nested_modules"])
def test_ddp_never_reduces_by_itself(one_rank, nested):
    """DDP decides in forward whether backward reduces: a communication hook would see any reduction."""
    model = make_model()
    wrapped = nn.parallel.DistributedDataParallel(model)
    reduced = []

    def hook(state, bucket):
        reduced.append(1)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapped.register_comm_hook(None, hook)
    whole = nn.Sequential(wrapped, nn.Identity()) if nested else wrapped
    step = TrainStep(whole, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=2)
    for batch in make_batches(4):
        step(*batch)
    assert not reduced and step.reductions == 2 and step.group is wrapped.process_group
    wrapped(make_batches(1)[0][0]).sum().backward()
    assert reduced, "outside of the step DDP does what it always does"


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_b19_off_by_one_in_the_synchronised_micro_batch(one_rank, accumulate):
    """One reduction per window, of all of it (4.0 and 7.0 on two ranks would stay apart): counted here."""
    model = make_model()
    step = TrainStep(
        model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=accumulate, data_parallel=True
    )
    for i, batch in enumerate(make_batches(6), 1):
        step(*batch)
        assert step.reductions == i // accumulate


# -- scheduler, clipping, scaling, batch norm ---------------------------------------------------------------------


def test_b23_scheduler_steps_once_per_update():
    model = make_model()
    optimizer = cases.make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    step = TrainStep(model, nn.CrossEntropyLoss(), optimizer, accumulate=3, scheduler=scheduler)
    rates = []
    for batch in step.epoch(make_batches(7)):
        step(*batch)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]) and scheduler.last_epoch == 3
    with pytest.raises(TypeError, match="ReduceLROnPlateau leave scheduler out"):
        TrainStep(model, total, optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))


def test_b24_total_steps_are_updates():
    """ceil(batches / accumulate), and the scheduler ends exactly there."""
    model = make_model()
    optimizer = cases.make_optimizer(model)
    step = TrainStep(model, nn.CrossEntropyLoss(), optimizer, accumulate=3)
    assert [step.updates_in(n) for n in (1, 3, 4, 7)] == [1, 1, 2, 3]
    step.scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=2 * step.updates_in(7))
    for _ in range(2):
        for batch in step.epoch(make_batches(7)):
            step(*batch)
    assert step.updates == 6 and optimizer.param_groups[0]["lr"] == 0.0


def test_b25_clip_once_per_window():
    """[2, 0] and [0, 2] with clip_norm 1: the mean [1, 1] is clipped to [1, 1] / sqrt(2); clipped one by one: other."""
    w, model = linear()
    optimizer = torch.optim.SGD([w], 1.0)
    seen = gradients_of(optimizer)
    step = TrainStep(model, total, optimizer, accumulate=2, clip_norm=1.0)
    outputs = [step(torch.tensor(x, dtype=F64), None) for x in ([2.0, 0.0], [0.0, 2.0])]
    assert torch.allclose(seen[0][0], torch.full((2,), 0.5**0.5, dtype=F64), rtol=1e-5)
    assert outputs[0].grad_norm is None and float(outputs[1].grad_norm) == pytest.approx(2**0.5)
    step = TrainStep(model, total, optimizer, accumulate=2, clip_norm=1.0)
    for x in ([3.0, 0.0], [0.0, 1.0]):  # unequal: clipping each would give equal parts
        step(torch.tensor(x, dtype=F64), None)
    assert float(seen[1][0][0] / seen[1][0][1]) == pytest.approx(3.0)


def test_b27_unscale_once_per_window():
    """clip_norm and a GradScaler together over several windows: unscale_ runs once in each."""
    model = make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    calls, unscale = [], scaler.unscale_
    scaler.unscale_ = lambda o: (calls.append(1), unscale(o))[1]
    step = TrainStep(
        model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=3, clip_norm=1.0, scaler=scaler
    )
    for batch in make_batches(9):
        step(*batch)
    assert len(calls) == 3 == step.updates


def test_b28_scale_is_constant_inside_the_window():
    """With a growth after every update the scale changes at the boundary only; overflows: test_step_scale.py."""
    model = make_model()
    scaler = LossScaler(64.0, growth_interval=1)
    step = TrainStep(model, nn.CrossEntropyLoss(), cases.make_optimizer(model), accumulate=3, scaler=scaler)
    scales = [(step(*batch), scaler.get_scale())[1] for batch in make_batches(7)]
    assert scales == [64, 64, 128, 128, 128, 256, 256]
    step.flush()


def test_b30_batch_norm_statistics_are_per_micro_batch():
    """It cannot equal the full batch in training mode, and is not claimed to; in eval mode it does."""

    def run(training):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)).double().train(training)
        full = copy.deepcopy(model)
        batches = make_batches(4, dtype=F64)
        step = TrainStep(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), accumulate=4)
        for batch in batches:
            step(*batch)
        cases.train_full(full, nn.CrossEntropyLoss(), [batches], torch.optim.SGD(full.parameters(), 0.1))
        return apart(cases.weights(model), cases.weights(full)), int(model[1].num_batches_tracked)

    distance, tracked = run(True)
    assert distance > 1e-4 and tracked == 4
    distance, tracked = run(False)
    assert distance < 1e-12 and tracked == 0


# -- errors -------------------------------------------------------------------------------------------------------


def argument_errors():
    w, model = linear()
    sgd = torch.optim.SGD([w], 0.1)
    return [
        ({"accumulate": 0}, ValueError, "accumulate: expected a whole number from 1; received 0"),
        ({"accumulate": True}, ValueError, "accumulate"),
        ({"accumulate": 2.0}, ValueError, "accumulate"),
        ({"clip_norm": 0.0}, ValueError, "clip_norm: expected None or a positive number"),
        ({"weight": 3}, TypeError, "weight: expected None or a function"),
        ({"scaler": 1024.0}, TypeError, "scaler: expected a torch.amp.GradScaler"),
        ({"scheduler": 3}, TypeError, "scheduler: expected"),
        ({"model": 3}, TypeError, "model: expected a module"),
        ({"loss_fn": None}, TypeError, "loss_fn: expected a function"),
        ({"optimizer": [w]}, TypeError, "optimizer: expected a torch.optim.Optimizer"),
        ({"optimizer": torch.optim.LBFGS([w])}, TypeError, "LBFGS evaluates"),
    ], {"model": model, "loss_fn": total, "optimizer": sgd}


@pytest.mark.parametrize("index", range(11))
def test_argument_errors(index):
    errors, good = argument_errors()
    options, error, message = errors[index]
    options = {**good, **options}
    with pytest.raises(error, match=message):
        TrainStep(**options)


def test_errors_in_a_step():
    w, model = linear()
    x = torch.ones(2, dtype=F64)
    optimizer = torch.optim.SGD([w], 0.1)

    def error(kind, message, batch=(x, None), **options):
        step = TrainStep(options.pop("model", model), options.pop("loss_fn", total), optimizer, accumulate=2, **options)
        with pytest.raises(kind, match=message):
            step(*batch)
        assert step.pending == 0 and w.grad is None

    error(TypeError, "expected at least a target", ())
    error(TypeError, "expected a scalar tensor; received float", loss_fn=lambda o, y: 1.0)
    error(ValueError, r"received shape \(2,\)", loss_fn=lambda o, y: o)
    error(ValueError, "expected a finite number from 0; received -1", weight=lambda *b: -1)
    error(ValueError, "received nan", weight=lambda *b: math.nan)
    error(RuntimeError, "depends on a trainable parameter", model=lambda x: x)
    w.grad = torch.ones_like(w)
    with pytest.raises(RuntimeError, match="Expected no gradients at the start"):
        TrainStep(model, total, optimizer)
    w.grad.zero_()
    TrainStep(model, total, optimizer)  # zeros are no gradient
    assert w.grad is None
    step = TrainStep(model, total, torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1))
    with pytest.raises(RuntimeError, match="reached none in the whole window"):
        step(x, None)


def test_sparse_gradients_are_refused():
    with torch.device("cpu"):  # the device has no sparse tensors, and another test may have made it the default
        model = nn.Embedding(4, 2, sparse=True)
        step = TrainStep(model, total, torch.optim.SGD(model.parameters(), 0.1), accumulate=2)
        with pytest.raises(TypeError, match="expected dense gradients|Expected dense gradients"):
            step(torch.tensor([1]), None)
    assert model.weight.grad is None and step.pending == 0


def test_failed_backward_empties_the_window():
    """A part of its gradients is added already: none of them is ever applied. A failed forward changes nothing."""

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ArithmeticError("no backward")

    w, model = linear()
    x, fail = torch.ones(2, dtype=F64), []
    optimizer = torch.optim.SGD([w], 1.0)
    step = TrainStep(lambda x: Bad.apply(model(x)) if fail else model(x), total, optimizer, accumulate=3)
    step(x, None)
    with contextlib.suppress(TypeError):
        step("no tensor", None)
    assert step.pending == 1
    fail.append(1)
    with pytest.raises(ArithmeticError):
        step(x, None)
    assert step.pending == 0 and w.grad is None
