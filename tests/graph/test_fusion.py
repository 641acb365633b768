"""Lines that are fused, and values that a graph takes for finite: the same results as op by op, and the form expected."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import msadapter

from .util import DEVICE, batches, check, step_of

NAN, INF = float("nan"), float("inf")


def primitives(step):
    """{name: how many lines} of a compiled step."""
    names = re.findall(r" = (\w+?)_\d+\(", step.source())
    return {name: names.count(name) for name in names}


def trained(make_module, make_optimizer, steps=6, **changes):
    """A step that ran eagerly and one that ran compiled, with their modules."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = make_module().to(DEVICE)
        optimizer = make_optimizer(module)
        step = step_of(module, optimizer)
        step = msadapter.compile(step) if compiled else step
        losses = [step(x).item() for x in batches(steps, (8, 16))]
        found.append((losses, {k: v.cpu() for k, v in module.state_dict().items()}, step))
    (expected, parameters, _), (losses, compiled_parameters, step) = found
    assert_close(losses, expected, rtol=1e-6, atol=1e-7)
    assert_close(compiled_parameters, parameters, rtol=1e-5, atol=1e-6)
    assert step.stats()["hits"] >= steps - 3, step.stats()
    return step


def deep():
    return nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())))


# ------------------------------------------------------------------------------------------------- many small parameters

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "maximize": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, maximize=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_small_parameters_are_updated_together(name):
    step = trained(deep, lambda module: OPTIMIZERS[name](module.parameters()))
    count = primitives(step)
    assert count["Stack"] >= 2 and count["Unstack"] >= 1


def test_groups_with_numbers_of_their_own():
    """Parameters of one shape, half of them with another rate: two stacks, not one."""

    def optimizer(module):
        p = list(module.parameters())
        return torch.optim.AdamW([{"params": p[::2]}, {"params": p[1::2], "lr": 1e-2, "weight_decay": 0.0}], lr=1e-3)

    trained(deep, optimizer)


def test_frozen_and_shared_parameters():
    def module():
        model = deep()
        model[3].weight = model[0].weight
        model[6].bias.requires_grad_(False)
        return model

    trained(module, lambda m: torch.optim.Adam((p for p in m.parameters() if p.requires_grad), lr=1e-3))


def test_a_few_stay_as_they_are():
    module = lambda: nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))  # noqa: E731
    step = trained(module, lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    assert "Stack" not in primitives(step)


def test_rows_used_alone():
    """One of the stacked results is also read outside of the optimizer."""

    def scenario(wrap):
        torch.manual_seed(0)
        module = deep().to(DEVICE)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        plain = step_of(module, optimizer)

        @wrap
        def f(x):
            loss = plain(x)
            return loss, module[1].weight.detach() * 2, torch.cat([p.detach().flatten() for p in module.parameters()]).sum()

        return [f(x) for x in batches(5, (8, 16))] + [dict(module.state_dict())]

    check(scenario)


# ------------------------------------------------------------------------------------------------------ large parameters


def test_scaled_sums_of_large_tensors():
    step = trained(lambda: nn.Linear(16, 4096), lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))
    assert primitives(step)["AddExt"] == 2


@pytest.mark.parametrize("values", [(1.5, -2.0), (INF, 0.0), (NAN, 1.0), (-INF, INF), (0.0, NAN)])
def test_scaled_sums_of_any_values(values):
    """x + s y and x - s y in float32, with a product that is used once, and one that is used twice."""

    def scenario(wrap):
        @wrap
        def f(x, y, s):
            twice = y * s
            return x + y * s, y * s + x, x - y * s, y * s - x, (x + twice) * twice

        x, y = batches(2, (256, 256))
        x[0, :2] = torch.tensor(values)
        y[0, 1:3] = torch.tensor(values)
        return [f(x, y, torch.tensor(s, device=DEVICE)) for s in (0.5, 1.0, -3.0, 0.25, values[0])]

    check(scenario, rtol=1e-6)


# --------------------------------------------------------------------------------------------------------------- softmax


@pytest.mark.parametrize("shape", [(6, 10), (4, 5, 7), (300, 100)])
def test_log_softmax_and_its_gradient_share_the_exponentials(shape):
    steps = []

    def scenario(wrap):
        @wrap
        def f(x):
            x = x.detach().requires_grad_()
            loss = F.log_softmax(x, -1).pow(2).mean()
            loss.backward()
            return loss, x.grad

        steps.append(f)
        return [f(x * 3) for x in batches(5, shape)]

    check(scenario)
    if len(shape) == 2:
        assert primitives(steps[1])["Exp"] == 1


def test_cross_entropy_of_extreme_rows():
    def scenario(wrap):
        @wrap
        def f(x, y):
            x = x.detach().requires_grad_()
            loss = F.cross_entropy(x, y, reduction="none")
            loss.sum().backward()
            return loss, x.grad

        (x,) = batches(1, (5, 9))
        x[1] *= 300
        x[2, 3], x[3, :4], x[4] = INF, -INF, NAN
        y = torch.tensor([0, 1, 2, 8, 4], device=DEVICE)
        return [f(x + i, y) for i in range(5)]

    check(scenario)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_rows_that_see_nothing(masked):
    """Captured without them, the call that has one is done eagerly; and the reverse."""

    def scenario(wrap):
        @wrap
        def f(q, mask):
            q = q.detach().requires_grad_()
            out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
            out.pow(2).sum().backward()
            return out, q.grad

        some = torch.zeros(4, 4, device=DEVICE)
        none = some.clone()
        none[2] = -INF
        q = batches(8, (2, 3, 4, 5))
        first, other = (none, some) if masked else (some, none)
        return [f(x, first) for x in q[:4]] + [f(q[4], other)] + [f(x, first) for x in q[5:]]

    check(scenario)


# ---------------------------------------------------------------------------------------------------------------- finite


def pooled(x, *args, **options):
    x = x.detach().requires_grad_()
    y, index = F.max_pool2d(x, *args, return_indices=True, **options)
    (y.nan_to_num(0, 0, 0) * torch.arange(y.numel(), device=y.device).view(y.shape)).sum().backward()
    return y, index, x.grad


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_pooling_a_value_that_is_not_finite(wrong, at):
    """Before, while and after the call is captured."""

    def scenario(wrap):
        f = wrap(lambda x: pooled(x, 2))
        images = batches(9, (2, 3, 8, 8))
        images[at][1, 2, 4, 5] = wrong
        images[at][0, 0, 0] = wrong
        images[-1][0, 1, 1, 1] = wrong
        return [f(x) for x in images]

    stats = check(scenario)
    assert any("finite" in text for text in stats["changed"]), stats


def test_pooling_of_what_the_graph_computes():
    def scenario(wrap):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(64, 3))
        module = module.to(DEVICE)
        step = wrap(step_of(module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)))
        images = batches(8, (2, 3, 8, 8))
        images[6][:] = NAN
        return [step(x) for x in images] + [dict(module.state_dict())]

    check(scenario)


def test_nothing_is_changed_by_a_run_that_is_discarded():
    """The parameter is updated once, and the random generator moves once, by the call that meets a NaN."""

    def scenario(wrap):
        torch.manual_seed(0)
        w = torch.ones(2, 3, 8, 8, device=DEVICE, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

        @wrap
        def f(x):
            optimizer.zero_grad()
            loss = F.max_pool2d(F.dropout(x * w, 0.5), 2).nan_to_num(0).sum()
            loss.backward()
            optimizer.step()
            return loss

        images = batches(8, (2, 3, 8, 8))
        images[5][0, 0, 0, 0] = NAN
        return [(f(x), w.detach().clone(), torch.rand(2)) for x in images]

    check(scenario)


LARGE = (4, 16, 32, 32)


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize("fn", [F.relu, F.relu6, lambda x: F.max_pool2d(F.relu(x), 2), lambda x: (x.view(64, -1) * 2).relu_()])
def test_relu_of_a_value_that_is_not_finite(fn, wrong, at):
    def scenario(wrap):
        w = torch.ones(LARGE, device=DEVICE, requires_grad=True)

        @wrap
        def f(x):
            w.grad = None
            y = fn(x * w)
            (y.nan_to_num(0, 0, 0) * torch.arange(y.numel(), device=y.device).view(y.shape)).sum().backward()
            return y, w.grad

        images = batches(8, LARGE)
        images[at][1, 2, 4, 5] = wrong
        images[-1][0, 0, 0, 0] = wrong
        return [f(x) for x in images]

    check(scenario)


def test_a_relu_of_infinity_runs_the_users_hook_once():
    """A run that is discarded would run it again, eagerly, and nothing can undo what the user's code did."""

    def scenario(wrap):
        torch.manual_seed(0)
        module = nn.Linear(1024, 4).to(DEVICE)
        optimizer, counted = torch.optim.SGD(module.parameters(), lr=0.1), [0]

        def hook(*_):
            counted[0] += 1
            optimizer.param_groups[0]["lr"] = 0.1 / counted[0]

        optimizer.register_step_pre_hook(hook)

        @wrap
        def step(x):
            optimizer.zero_grad()
            loss = module(torch.relu(x)).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        images = batches(8, (64, 1024))
        images[5][0, 0] = -INF
        return [(step(x), counted[0]) for x in images] + [dict(module.state_dict())]

    check(scenario)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample(mode):
    def scenario(wrap):
        @wrap
        def f(x, grid):
            x, grid = x.detach().requires_grad_(), grid.detach().requires_grad_()
            y = F.grid_sample(x, grid * 0.5, mode=mode, align_corners=False)
            y.pow(2).sum().backward()
            return y, x.grad, grid.grad

        grids = batches(6, (2, 5, 5, 2))
        return [f(x, grid) for x, grid in zip(batches(6, (2, 3, 8, 8)), grids)]

    check(scenario)


# -------------------------------------------------------------------------------------------------- what was once wrong


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_exponentials_of_a_log_softmax_in_another_type(dtype):
    def scenario(wrap):
        kept = torch.zeros(4, 6, device=DEVICE, dtype=dtype)

        @wrap
        def f(x):
            y = F.log_softmax(x, -1).double().exp()
            kept.copy_(y * 9)
            return y.to(dtype), str((y.to(dtype)).dtype)

        return [f(x) for x in batches(5, (4, 6))] + [kept]

    check(scenario, rtol=1e-3)


def test_a_log_softmax_without_its_maximum_overflows_where_it_did():
    def scenario(wrap):
        @wrap
        def f(x):
            return torch.exp(x - torch.log(torch.exp(x).sum(-1, keepdim=True)))

        return [f(x + shift) for x, shift in zip(batches(6, (2, 3)), (0, 1, 2, 0, 100, -120))]

    check(scenario)


def test_parameters_that_are_views_of_one_buffer():
    """A chain of concatenations as long as there are parameters: lines are told apart without printing them."""

    def scenario(wrap):
        torch.manual_seed(0)
        flat = torch.randn(8 * 12, device=DEVICE)
        parameters = [flat[8 * i : 8 * i + 8].requires_grad_() for i in range(12)]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

        @wrap
        def f(x):
            optimizer.zero_grad()
            loss = sum((p * x).pow(2).sum() for p in parameters)
            loss.backward()
            optimizer.step()
            return loss

        return [(f(x), flat.detach().clone()) for x in batches(5, (8,))]

    check(scenario)


@pytest.mark.parametrize("name", ["chained", "sequential"])
def test_schedulers_in_schedulers_after_a_discarded_run(name):
    schedulers = torch.optim.lr_scheduler

    def scenario(wrap):
        w = torch.ones(1, 1, 4, 4, device=DEVICE, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        parts = [schedulers.LinearLR(optimizer, 0.1, total_iters=8), schedulers.ExponentialLR(optimizer, 0.9)]
        if name == "chained":
            schedule = schedulers.ChainedScheduler(parts)
        else:
            schedule = schedulers.SequentialLR(optimizer, parts, milestones=[6])

        @wrap
        def f(x):
            optimizer.zero_grad()
            loss = F.max_pool2d(x * w, 2).nan_to_num(0).sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        images = batches(9, (1, 1, 4, 4))
        images[5][0, 0, 0, 0] = NAN
        return [(f(x), optimizer.param_groups[0]["lr"], [s.last_epoch for s in parts]) for x in images]

    check(scenario)


@pytest.mark.filterwarnings("ignore")  # the class is the test's own
def test_an_optimizer_that_makes_tensors():
    class Signed(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(torch.full_like(p, 0.1) * p.grad.sign() + torch.ones_like(p) * 1e-3, alpha=-group["lr"])

    trained(lambda: nn.Linear(16, 4), lambda m: Signed(m.parameters()))
