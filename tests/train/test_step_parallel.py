"""Two ranks with unequal token counts equal one process on the union of their batches; one all-reduce per window."""

import os
import subprocess
import sys

import pytest
import torch

from tests.train import step_cases as cases
from tests.train.step_cases import DEVICES, apart, windows_of
from tests.train.step_ranks import ACCUMULATE, COUNT, NAMES, RANKS, batches_of

UPDATES = -(-COUNT // ACCUMULATE)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The results of each rank."""
    folder = tmp_path_factory.mktemp("ranks")
    env = {**os.environ, "MSADAPTER_FALLBACK": "silent", "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.step_ranks", str(r), str(folder)],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(RANKS)
    ]
    for run in runs:
        _, error = run.communicate(timeout=600)
        assert run.returncode == 0, error[-3000:]
    return [torch.load(folder / f"{r}.pt") for r in range(RANKS)]


def expected(name, dtype, skip=0):
    """One process, each window's batches of both ranks in one."""
    both = [windows_of(batches_of(r, name, dtype=dtype), ACCUMULATE) for r in range(RANKS)]
    windows = [[batch for rank in both for batch in (rank[i] if i < len(rank) else [])] for i in range(UPDATES)]
    model = cases.make_model(dtype=dtype)
    optimizer = cases.make_optimizer(model)
    loss_fn, _ = cases.make_loss(name, dtype=dtype)
    return cases.train_full(model, loss_fn, windows[skip:], optimizer, 0.5, cases.make_scheduler(optimizer))


def check(ranks, key, name, dtype, tolerance):
    for result in (r[key] for r in ranks):
        wanted = expected(name, dtype)
        assert len(result["curve"]) == UPDATES == result["updates"] == result["reductions"]
        for got, want in zip(result["curve"], wanted):
            assert apart(got, want) < tolerance
        assert torch.equal(result["curve"][-1], ranks[0][key]["curve"][-1]), "the ranks stay together"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_equal_the_union(ranks, device, name):
    check(ranks, (device, name, "plain"), name, torch.float64, 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_two_ranks_in_float32(ranks, device):
    check(ranks, (device, "f32"), "ignore_index", torch.float32, 1e-5)


def test_distributed_data_parallel_is_reduced_once(ranks):
    check(ranks, "ddp", "ignore_index", torch.float64, 1e-6)


def test_mean_over_ranks_differs():
    """The comparisons can fail: averaging per-rank means, as DistributedDataParallel does, is another gradient."""
    loss_fn, _ = cases.make_loss("ignore_index", dtype=torch.float64)
    model, full = (cases.make_model(dtype=torch.float64) for _ in range(2))
    window = [windows_of(batches_of(r, "ignore_index"), ACCUMULATE)[0] for r in range(RANKS)]
    for rank in window:
        x, y = cases.union(rank)
        (loss_fn(model(x), y) / RANKS).backward()
    cases.make_optimizer(model).step()
    wanted = cases.train_full(full, loss_fn, [window[0] + window[1]], cases.make_optimizer(full))[-1]
    assert apart(cases.weights(model), wanted) > 1e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", range(RANKS))
def test_overflow_on_one_rank_skips_on_all(ranks, device, place):
    wanted = expected("ignore_index", torch.float64, skip=1)
    for result in (r[device, "overflow", place] for r in ranks):
        assert result["scale"] == 512.0 and result["skips"] == 1 and result["reductions"] == UPDATES
        assert result["flags"][ACCUMULATE - 1] == (False, True)
        assert len(result["curve"]) == UPDATES - 1
        assert all(apart(got, want) < 1e-6 for got, want in zip(result["curve"], wanted))
        assert result["lr"] == pytest.approx(0.1 * 0.5 ** (UPDATES - 1))


def test_parameters_used_on_some_ranks(ranks):
    for r in ranks:
        assert r["half used"]["moved"] == [True, True, False]
        assert torch.equal(r["half used"]["used"], ranks[0]["half used"]["used"])


def test_unlike_scales_are_an_error(ranks):
    assert all("same loss scale on each of the 2 ranks" in r["unlike scales"] for r in ranks)


def test_not_initialised_is_an_error():
    with pytest.raises(RuntimeError, match="expected torch.distributed to be initialised"):
        model = cases.make_model()
        cases.TrainStep(model, torch.nn.CrossEntropyLoss(), cases.make_optimizer(model), data_parallel=True)
