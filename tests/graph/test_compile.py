"""msadapter.compile: the models' steps, what it tells, and what goes wrong around it."""

import copy
import datetime
import logging
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from itertools import cycle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import msadapter
from msadapter.graph import capture
from msadapter.graph.compile import CaptureWarning
from tests.models import CASES, compare

from .util import DEVICE, batches, check, step_of

FORMS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.05),
}
OPTIMIZERS = {
    **FORMS,
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adam_capturable": lambda p: torch.optim.Adam(p, lr=0.01, capturable=True, foreach=False),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "sgd_maximize": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}
# They read numbers from the device at each step.
EAGER_OPTIMIZERS = {
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "asgd": torch.optim.ASGD,
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}
# Masks whose size changes with each batch.
EAGER_MODELS = {"gcn", "gru_lm_packed"}
# A change of 1e-7 in ResNet-18's weights changes its losses on PyTorch's CPU by 2e-3 at 0.01, by 2e-7 at 0.001.
GENTLE = {"resnet18": lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9, nesterov=True, weight_decay=1e-3)}
STEPS = 10


def train(case, optimizer, compiled):
    torch.manual_seed(compare.SEED)
    module = case.build().to(DEVICE)
    optimizer = optimizer(module.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(*batch):
        optimizer.zero_grad()
        losses = case.loss(module, batch)
        losses = losses if isinstance(losses, list) else [losses]
        for loss in losses:
            loss.backward()
        optimizer.step()
        return losses

    run = msadapter.compile(step) if compiled else step
    losses = []
    for i in range(STEPS):
        batch = case.batch(torch.Generator().manual_seed(i))
        losses += [loss.item() for loss in run(*(part.to(DEVICE) for part in batch))]
        schedule.step()
    return losses, module, run


@pytest.mark.parametrize(("name", "form"), list(zip(CASES, cycle(FORMS))))
def test_model(name, form):
    """Ten steps. An adaptive optimizer makes whole steps of the rounding noise of gradients that are zero, so where a
    parameter is off by more than rounding, it may be off by as much as all steps together."""
    case, optimizer = CASES[name], GENTLE.get(name, FORMS[form])
    expected, host, _ = train(case, optimizer, compiled=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        losses, module, step = train(case, optimizer, compiled=True)
    assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    stats = step.stats()
    assert stats["hits"] >= STEPS - 3 or (name in EAGER_MODELS and stats["reasons"]), stats
    entries = host.state_dict()
    noise = 0 if form == "sgd" else 1e-3 * STEPS
    for key, value in module.state_dict().items():
        wrong = ~torch.isclose(value.cpu(), entries[key].cpu(), rtol=1e-5, atol=1e-5)
        if wrong.any():
            assert noise and wrong.float().mean() < 0.34, key
            assert (value.cpu() - entries[key].cpu()).abs().max() <= noise, key


def small(optimizer):
    def scenario(wrap):
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(DEVICE)
        o = optimizer(module.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(o, 0.9)

        @wrap
        def step(x):
            o.zero_grad()
            loss = module(x).pow(2).mean()
            loss.backward()
            o.step()
            return loss

        losses = []
        for x in batches(8):
            losses.append(step(x))
            schedule.step()
        return losses, module.state_dict(), o.state_dict()

    return scenario


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    check(small(OPTIMIZERS[name]))


@pytest.mark.parametrize("name", EAGER_OPTIMIZERS)
def test_optimizer_that_reads(name):
    check(small(EAGER_OPTIMIZERS[name]), graph=False, because="runs eagerly")


# ---------------------------------------------------------------------------------------------------------- what it tells


def test_fullgraph_raises():
    @msadapter.compile(fullgraph=True)
    def step(x):
        return x * 2 if x.sum().item() > 0 else x

    with pytest.raises(RuntimeError, match=r"Expected step to be one graph.*test_compile.py:\d+"):
        for x in batches(4):
            step(x)


def test_a_warning_names_the_place_once():
    @msadapter.compile
    def step(x):
        return x.sum().item()

    with pytest.warns(CaptureWarning, match="step runs eagerly") as caught:
        for x in batches(6):
            step(x)
    assert len(caught) == 1


LOG = logging.getLogger("test")


@pytest.mark.parametrize("effect, name", [
    (lambda: print(end=""), "print"), (lambda: time.perf_counter(), "perf_counter"), (lambda: time.sleep(0), "sleep"),
    (lambda: datetime.datetime.now(), "now"), (lambda: open(os.devnull).close(), "open"),
    (lambda: LOG.warning("beside"), "logging"), (lambda: random.Random(3).uniform(1, 2), "random numbers"),
])  # fmt: skip
def test_an_effect_is_named_with_its_place(effect, name):
    @msadapter.compile
    def step(x):
        effect()
        return x * 2

    with pytest.warns(CaptureWarning, match=rf"step runs eagerly: Python state.*: {name} \(test_compile.py:\d+\)"):
        for x in batches(8):
            step(x)
    assert not step.stats()["hits"]


def test_a_disabled_log_message_is_no_effect():
    @msadapter.compile
    def step(x):
        LOG.debug("not shown")
        return x * 2

    for x in batches(4):
        step(x)
    assert step.stats()["hits"]


def test_a_profiler_of_the_user_stays_on():
    seen = []
    step = msadapter.compile(lambda x: x * 2)
    sys.setprofile(lambda *event: seen.append(event[1]))
    try:
        for x in batches(4):
            step(x)
        assert sys.getprofile() is not None and seen
    finally:
        sys.setprofile(None)
    step(batches(1)[0])
    assert sys.getprofile() is None


def test_many_captures_give_advice():
    @msadapter.compile
    def step(x):
        return x * 2

    with pytest.warns(CaptureWarning, match="has been captured 9 times.*shapes"):
        for n in range(1, 11):
            for _ in range(2):
                step(torch.ones(n, device=DEVICE))
    stats = step.stats()
    assert stats["captures"] == 10 and stats["eager"] == 20
    assert any("shapes" in change for change in stats["changed"])


def test_arguments_that_are_always_new_are_not_recorded_for_ever():
    @msadapter.compile
    def step(x, k):
        return x * k

    with pytest.warns(CaptureWarning, match="no two of them were alike"):
        for i in range(40):
            step(torch.ones(2, device=DEVICE), float(i))
    assert len(step._pending) <= 4


def test_reset_and_source():
    step = msadapter.compile(lambda x: x * 2)
    with pytest.raises(RuntimeError, match="three times"):
        step.source()
    for x in batches(3):
        step(x)
    assert "def step" in step.source()
    step.reset()
    for x in batches(3):
        step(x)
    assert step.stats()["captures"] == 2
    with pytest.raises(TypeError):
        msadapter.compile(3)


# --------------------------------------------------------------------------------------------------------- around a call


def test_an_exception_leaves_no_hooks():
    before = (torch.Tensor.numpy, capture.Primitive.__call__, sys.getprofile())

    @msadapter.compile
    def step(x):
        x + 1
        raise KeyError("mine")

    for x in batches(3):
        with pytest.raises(KeyError):
            step(x)
    assert not capture._hooks._users
    assert (torch.Tensor.numpy, capture.Primitive.__call__, sys.getprofile()) == before


def test_threads():
    """Two threads compile, run and train at once."""
    results, errors = {}, []

    def work(k):
        try:
            torch.manual_seed(0)
            module = copy.deepcopy(base)
            optimizer = torch.optim.Adam(module.parameters(), lr=0.01)

            @msadapter.compile
            def step(x):
                optimizer.zero_grad()
                loss = module(x * k).pow(2).mean()
                loss.backward()
                optimizer.step()
                return loss

            results[k] = [step(x).item() for x in data], step.stats()
        except Exception as error:
            errors.append(error)

    base, data = nn.Linear(4, 4).to(DEVICE), batches(10)
    threads = [threading.Thread(target=work, args=(k,)) for k in (1.0, 2.0)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    together = dict(results)
    for k in (1.0, 2.0):
        work(k)
        assert_close(together[k][0], results[k][0])
        assert together[k][1]["hits"] == 7, together[k][1]


def test_loader_workers():
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, i):
            return torch.full((4,), float(i))

    step = msadapter.compile(lambda x: x.to(DEVICE) * 2)
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1)
    values = [step(x)[:, 0].tolist() for x in loader]
    assert values == [[2.0 * (4 * i + k) for k in range(4)] for i in range(6)]
    assert step.stats()["hits"] == 4


def test_memory_is_flat():
    import gc

    import psutil

    module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.2), nn.Linear(64, 4)).to(DEVICE)
    step = msadapter.compile(step_of(module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)))

    def resident(steps):
        for _ in range(steps):
            step(torch.rand(4, 4).to(DEVICE))
        gc.collect()
        return psutil.Process().memory_info().rss / 2**20

    before = resident(300)
    assert resident(1200) - before < 8


def test_channels_last_momentum():
    def losses(wrap):
        torch.manual_seed(0)
        module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).to(DEVICE)
        step = wrap(step_of(module, torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)))
        return [step(torch.rand(2, 3, 6, 6).to(DEVICE)).item() for _ in range(8)], step, module

    expected, _, host = losses(lambda step: step)
    found, step, module = losses(msadapter.compile)
    assert step.stats()["hits"] >= 4, step.stats()
    assert_close(found, expected)
    assert_close(module.weight, host.weight)
    assert module.weight.stride() == host.weight.stride()


def test_bfloat16_that_moves():
    """A graph on CPU has no kernels to reshape, transpose or broadcast bfloat16."""
    step = msadapter.compile(lambda x: ((x * 2).reshape(6, 10).t() * 3, x.expand(2, 3, 4, 5) + 1))
    for i in range(5):
        x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(i)).bfloat16()
        for got, expected in zip(step(x.to(DEVICE)), step.__wrapped__(x)):
            assert torch.equal(got.cpu(), expected)
    assert step.stats()["hits"] == 3, step.stats()


# --------------------------------------------------------------------------------------------------------------- the cache

SCRIPT = """
    import warnings, torch, msadapter
    warnings.simplefilter("always")
    torch.ones(1, device="mindspore")
    step = msadapter.compile(lambda x: x * 2 + 1)
    for i in range(5):
        y = step(torch.full((3,), float(i), device="mindspore"))
    assert y.tolist() == [9.0] * 3, y
    assert step.stats()["hits"] == 3, step.stats()
"""


def test_cache_of_a_command(tmp_path):
    """python -c, which is no file that MindSpore's cache could look at; and a cache that is no folder."""
    path = tmp_path / "file"
    path.write_text("no folder")
    env = {**os.environ, "MSADAPTER_CACHE": str(path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Set MSADAPTER_CACHE" in done.stderr
    assert path.read_text() == "no folder"
