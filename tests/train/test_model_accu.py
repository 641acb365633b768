"""The two-graph form: TrainAccuStepsCell, TrainAccuStepsWithLossScaleCell, Model_ACCU; one process and two ranks."""

import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.train.accu_cases import (
    GRAPH,
    PYNATIVE,
    X,
    Y,
    difference,
    full_batches,
    make,
    mindspore,
    pipeline,
    weights,
    windows,
)

from mindspore import Tensor, nn  # isort: skip
from mindspore.amp import DynamicLossScaleManager, FixedLossScaleManager  # isort: skip
from mindspore.train import Callback, CheckpointConfig, LossMonitor, ModelCheckpoint  # isort: skip

from msadapter.train import Model_ACCU, TrainAccuStepsCell, TrainAccuStepsWithLossScaleCell, model, samples

both_modes = pytest.mark.parametrize("mode", [PYNATIVE, GRAPH], ids=["pynative", "graph"])
BAD = np.where(np.arange(4)[:, None] == 1, np.float32(3e38), X[:4])  # a micro-batch whose gradient overflows


@pytest.fixture(autouse=True)
def pynative():
    mindspore.set_context(mode=PYNATIVE)
    yield
    mindspore.set_context(mode=PYNATIVE)


def train(batch, steps, epochs=1, callbacks=None, **options):
    """The weights after Model_ACCU."""
    network, loss_fn, optimizer = make()
    trainer = Model_ACCU(network, loss_fn, optimizer, grad_accumulation_step=steps, **options)
    trainer.train(epochs, pipeline(batch), callbacks)
    return weights(network)


class MeanSquare(nn.Cell):
    """A loss whose gradient overflows for huge inputs: mean((x w)^2)."""

    def __init__(self):
        super().__init__()
        self.w = mindspore.Parameter(Tensor(np.full((4, 1), 0.5, np.float32)), name="w")

    def construct(self, x, y):
        return mindspore.ops.matmul(x, self.w).square().mean()


def scaled_cell(scale=1024.0, steps=3, window=1000, learning_rate=(0.1, 0.05, 0.02)):
    network = MeanSquare()
    optimizer = nn.Momentum(network.trainable_params(), learning_rate, 0.9)
    manager = nn.DynamicLossScaleUpdateCell(scale, 2, window)
    return network, TrainAccuStepsWithLossScaleCell(network, optimizer, manager, grad_accumulation_step=steps)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_window_equals_full_batch_with_tail(steps):
    expected = full_batches(windows(40, 4 * steps, epochs=2))[1]
    assert difference(train(4, steps, epochs=2), expected) < 1e-5


def test_naive_update_per_micro_batch_differs():
    assert difference(full_batches(windows(40, 4))[1], train(4, 4)) > 1e-2


@pytest.mark.parametrize("manager", [None, DynamicLossScaleManager(1024, 2, 100)], ids=["plain", "scaled"])
def test_graph_mode_equals_pynative(manager):
    expected = train(4, 3, loss_scale_manager=manager)
    mindspore.set_context(mode=GRAPH)
    assert difference(train(4, 3, loss_scale_manager=manager), expected) < 1e-5


@both_modes
def test_cell_alternates_between_its_two_graphs(mode):
    """K - 1 calls only accumulate, the K-th updates; a graph is compiled once whatever the window's length."""
    mindspore.set_context(mode=mode)
    network, loss_fn, optimizer = make()
    cell = TrainAccuStepsCell(nn.WithLossCell(network, loss_fn), optimizer, grad_accumulation_step=3)
    before, changed = weights(network), []
    for a in range(0, 36, 4):
        cell(Tensor(X[a : a + 4]), Tensor(Y[a : a + 4]))
        changed.append(difference(weights(network), before) > 0)
        before = weights(network)
    assert changed == [False, False, True] * 3
    if mode == GRAPH:
        assert len(cell.accumulation_graph.compile_cache) == len(cell.update_graph.compile_cache) == 1
    assert cell.reductions == 0  # one process: nothing to reduce
    mindspore.set_context(mode=PYNATIVE)
    assert difference(weights(network), full_batches(windows(36, 12))[1]) < 1e-5


def test_set_accumulation_and_flush():
    network, loss_fn, optimizer = make()
    cell = TrainAccuStepsCell(nn.WithLossCell(network, loss_fn), optimizer)
    batches = [(Tensor(X[a : a + 4]), Tensor(Y[a : a + 4])) for a in range(0, 20, 4)]
    cell.set_accumulation(True)
    for batch in batches[:2]:
        cell(*batch)
    cell.set_accumulation(False)
    cell(*batches[2])
    cell.set_accumulation(True)
    for batch in batches[3:]:
        cell(*batch)
    cell.flush()
    assert difference(weights(network), full_batches([(0, 12), (12, 20)])[1]) < 1e-5
    with pytest.raises(RuntimeError, match="expected an open window"):
        cell.flush()


@both_modes
def test_overflow_at_each_position_skips_the_window_and_halves_the_scale(mode):
    mindspore.set_context(mode=mode)
    good = [Tensor(X[a : a + 4]) for a in (0, 4, 8)]
    label = Tensor(Y[:4])
    network, cell = scaled_cell()
    clean, clean_cell = scaled_cell()
    scale = 1024.0
    for position in range(3):
        before = weights(network)
        for i, x in enumerate(good):
            _, overflow, used = cell(Tensor(BAD) if i == position else x, label)
            assert float(used.asnumpy()) == scale  # constant inside the window
            assert bool(overflow.asnumpy()) == (i >= position)
        scale /= 2
        assert float(cell.scale_sense.asnumpy()) == scale
        assert difference(weights(network), before) == 0
        assert all(not g.asnumpy().any() for g in cell.accu_grads)
    assert int(cell.optimizer.global_step.asnumpy()[0]) == 0  # nor did the schedule advance
    for x in good:
        cell(x, label)
        clean_cell(x, label)
    assert difference(weights(network), weights(clean)) < 1e-6  # nothing of the bad windows is left
    assert int(cell.optimizer.global_step.asnumpy()[0]) == 1


def test_overflow_in_the_tail_and_in_flush():
    network, cell = scaled_cell()
    before = weights(network)
    cell(Tensor(BAD), Tensor(Y[:4]))
    overflow, scale = cell.flush()
    assert bool(overflow.asnumpy()) and float(scale.asnumpy()) == 1024
    assert float(cell.scale_sense.asnumpy()) == 512
    assert difference(weights(network), before) == 0


def test_scale_grows_by_updates_and_stays_finite():
    """`scale_window` counts windows, not micro-batches; a scale that would become infinite stays."""
    network, cell = scaled_cell(scale=2.0**10, steps=2, window=3, learning_rate=0.01)
    scales = []
    for _ in range(12):
        cell(Tensor(X[:4]), Tensor(Y[:4]))
        scales.append(float(cell.scale_sense.asnumpy()))
    grown = scales.index(2.0**11)
    assert grown % 2 == 1 and grown >= 5
    cell.set_sense_scale(Tensor(2.0**127, mindspore.float32))
    for _ in range(20):
        cell(Tensor(X[:4] * 1e-30), Tensor(Y[:4]))
    assert float(cell.scale_sense.asnumpy()) == 2.0**127


def test_loss_scale_does_not_change_the_result():
    expected = full_batches(windows(40, 16))[1]
    assert difference(train(4, 4, loss_scale_manager=DynamicLossScaleManager(4096, 2, 1)), expected) < 1e-5
    assert difference(train(4, 4, loss_scale_manager=FixedLossScaleManager(4096, True)), expected) < 1e-5


def test_model_with_overflow_keeps_the_manager_in_step():
    """Model_ACCU tells the host's manager too; its scale is the device's."""
    network = MeanSquare()
    manager = DynamicLossScaleManager(1024, 2, 1000)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    trainer = Model_ACCU(network, None, optimizer, grad_accumulation_step=2, loss_scale_manager=manager)
    x = np.concatenate([X[:4], BAD, X[4:16]])
    trainer.train(1, pipeline(4, x, Y[: len(x)]))
    assert manager.get_loss_scale() == 512 == float(trainer.train_network.scale_sense.asnumpy())
    assert int(optimizer.global_step.asnumpy()[0]) == 2


def test_unequal_batches_with_weight():
    expected = full_batches([(0, 40)])[1]
    assert difference(train(12, 4, weight=samples), expected) < 1e-5
    with pytest.warns(UserWarning, match=r"Micro-batches of \[4, 12\] samples"):
        assert difference(train(12, 4), expected) > 1e-4


def test_weights_reach_the_compiled_graphs():
    """Each micro-batch has another weight; a graph must not keep the first."""

    def trained():
        number = iter(range(1, 100))
        return train(4, 4, weight=lambda data, label: next(number))

    expected = trained()
    assert difference(expected, train(4, 4)) > 1e-3
    mindspore.set_context(mode=GRAPH)
    assert difference(trained(), expected) < 1e-5


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_amp_levels_compute_in_float16(level):
    network, loss_fn, optimizer = make()
    manager = DynamicLossScaleManager(1024, 2, 100)
    trainer = Model_ACCU(
        network, loss_fn, optimizer, amp_level=level, grad_accumulation_step=4, loss_scale_manager=manager
    )
    trainer.train(1, pipeline(4))
    assert 1e-7 < difference(weights(network), full_batches(windows(40, 16))[1]) < 5e-3


def test_float16_weights_are_summed_in_float32():
    """Eight gradients of 1 and 2**-12 each: the small ones would be lost in float16."""

    class Linear(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = mindspore.Parameter(Tensor(np.zeros(1, np.float16)), name="w")

        def construct(self, x, y):
            return (self.w * x.astype(mindspore.float16)).sum()

    network = Linear()
    cell = TrainAccuStepsCell(network, nn.SGD(network.trainable_params(), 1.0), grad_accumulation_step=9)
    for x in [1.0] + [2.0**-12] * 7:
        cell(Tensor([x], mindspore.float32), Tensor(0))
    assert cell.accu_grads[0].dtype == mindspore.float32
    assert float(cell.accu_grads[0].asnumpy()[0]) == 1 + 7 * 2.0**-12


def test_callbacks_count_updates(tmp_path, capsys):
    events = []

    class Record(Callback):
        def on_train_step_end(self, run_context):
            p = run_context.original_args()
            events.append((p.cur_epoch_num, p.cur_step_num, p.batch_num))

    saving = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=9))
    train(4, 4, 2, [LossMonitor(), Record(), saving], loss_scale_manager=DynamicLossScaleManager(64, 2, 100))
    assert events == [(1, 1, 3), (1, 2, 3), (1, 3, 3), (2, 4, 3), (2, 5, 3), (2, 6, 3)]
    printed = capsys.readouterr().out
    assert printed.count("loss is") == 6 and "epoch: 2 step: 3, loss is" in printed
    assert sorted(p.name for p in tmp_path.glob("*.ckpt")) == ["net-1_2.ckpt", "net-2_1.ckpt", "net-2_3.ckpt"]
    saved = mindspore.load_checkpoint(str(tmp_path / "net-2_3.ckpt"))
    assert {"0.weight", "moments.0.weight", "global_step", "scale_sense"} <= set(saved)
    assert not [name for name in saved if "accu_grads" in name]


def test_checkpoint_resumes_on_the_same_curve(tmp_path):
    """Weights, moments and the loss scale's state; saved at the end of a window."""

    def trainer(seed):
        network, loss_fn, optimizer = make(seed)
        manager = DynamicLossScaleManager(64, 2, 2)  # grows after each second update
        return network, Model_ACCU(network, loss_fn, optimizer, grad_accumulation_step=4, loss_scale_manager=manager)

    network, whole = trainer(0)
    whole.train(2, pipeline(4))
    _, half = trainer(0)
    half.train(1, pipeline(4), ModelCheckpoint("net", str(tmp_path), CheckpointConfig(save_checkpoint_steps=3)))
    other, resumed = trainer(5)
    saved = mindspore.load_checkpoint(str(tmp_path / "net-1_3.ckpt"))
    mindspore.load_param_into_net(resumed.train_network, saved)
    resumed.train(2, pipeline(4), initial_epoch=1)
    assert difference(weights(other), weights(network)) < 1e-6
    scales = [m.train_network.scale_sense.asnumpy() for m in (whole, half, resumed)]
    assert scales[0] == scales[2] > scales[1]


def test_fit_and_eval():
    network, loss_fn, optimizer = make()
    trainer = Model_ACCU(network, loss_fn, optimizer, {"accuracy"}, grad_accumulation_step=4)
    trainer.fit(2, pipeline(4), pipeline(8), dataset_sink_mode=False, valid_dataset_sink_mode=False)
    assert difference(weights(network), full_batches(windows(40, 16, epochs=2))[1]) < 1e-5
    logits = np.tanh(X @ weights(network)[0].T + weights(network)[1]) @ weights(network)[2].T + weights(network)[3]
    assert trainer.eval(pipeline(8))["accuracy"] == pytest.approx((logits.argmax(1) == Y).mean())


def test_sink_mode_is_replaced_on_cpu_with_one_notice():
    model._noticed.clear()
    network, loss_fn, optimizer = make()
    trainer = Model_ACCU(network, loss_fn, optimizer, grad_accumulation_step=4)
    with pytest.warns(UserWarning, match="the CPU has no dataset queue"):
        trainer.train(1, pipeline(4), dataset_sink_mode=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train(1, pipeline(4), dataset_sink_mode=True)


def test_sink_mode_where_a_device_has_a_queue(monkeypatch):
    """No such device here: a stand-in for MindSpore's queue. Both graphs draw from it, each batch once."""
    source = list(pipeline(4))

    class Helper:
        iter = type("", (), {"dataset": type("", (), {"__transfer_dataset__": type("", (), {"queue_name": "q"})})})
        stopped = []

        def __init__(self, dataset, dataset_sink_mode, sink_size, epoch_num):
            assert dataset_sink_mode and sink_size == -1

        def types_shapes(self):
            return [mindspore.float32, mindspore.int32], [(4, 4), (4,)]

        def stop_send(self):
            self.stopped.append("stop")

        def release(self):
            self.stopped.append("release")

    served = iter(source * 2)
    monkeypatch.setattr(model, "DatasetHelper", Helper)
    monkeypatch.setattr(model.nn, "GetNextSingleOp", lambda types, shapes, queue: lambda: next(served))

    def sink(self, epoch, dataset, listeners, parameters, initial_epoch, valid):
        self._train_dataset_sink_process(epoch, dataset, listeners, parameters, -1, initial_epoch, valid)

    monkeypatch.setattr(Model_ACCU, "_train_process", sink)
    assert difference(train(4, 3, epochs=2), full_batches(windows(40, 12, epochs=2))[1]) < 1e-5
    assert next(served, None) is None and Helper.stopped == ["stop", "release"]


def test_accumulation_step_of_the_context_is_accepted_where_mindspore_does():
    mindspore.set_auto_parallel_context(grad_accumulation_step=1)
    network, loss_fn, optimizer = make()
    cell = TrainAccuStepsCell(nn.WithLossCell(network, loss_fn), optimizer)
    assert cell.grad_accumulation_step == 1 and not cell.accumulates_next
    with pytest.raises(ValueError, match="deprecated"):  # MindSpore 2.10; ours takes it as an argument
        mindspore.set_auto_parallel_context(grad_accumulation_step=4)


def test_wrong_arguments():
    network, loss_fn, optimizer = make()
    with_loss = nn.WithLossCell(network, loss_fn)
    with pytest.raises(ValueError, match="grad_accumulation_step to be a positive int; received 0"):
        Model_ACCU(network, loss_fn, optimizer, grad_accumulation_step=0)
    with pytest.raises(TypeError, match="Model_ACCU: expected a mindspore.nn optimizer; received NoneType"):
        Model_ACCU(network, loss_fn)
    with pytest.raises(ValueError, match="amp_level to be one of .*; received 'O9'"):
        Model_ACCU(network, loss_fn, optimizer, amp_level="O9")
    with pytest.raises(TypeError, match="scale_sense to be a Cell such as nn.DynamicLossScaleUpdateCell"):
        TrainAccuStepsWithLossScaleCell(with_loss, optimizer, 1024)
    with pytest.raises(ValueError, match=r"scale_sense of shape \(\) or \(1,\); received \(2,\)"):
        TrainAccuStepsWithLossScaleCell(with_loss, optimizer, Tensor([1.0, 2.0]))
    trainer = Model_ACCU(network, loss_fn, optimizer, grad_accumulation_step=2)
    with pytest.raises(ValueError, match="sink_size=-1; received 3"):
        trainer.train(1, pipeline(4), sink_size=3)
    with pytest.raises(TypeError, match="mindspore.dataset pipeline; received list"):
        trainer.train(1, [])
    with pytest.raises(ValueError, match=r"batches \(data, label\); received 1 columns"):
        trainer.train(1, mindspore.dataset.NumpySlicesDataset(X, shuffle=False).batch(4))
    mindspore.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    try:
        with pytest.raises(ValueError, match="parallel_mode to be stand_alone or data_parallel; received semi_auto"):
            TrainAccuStepsCell(with_loss, optimizer)
    finally:
        mindspore.reset_auto_parallel_context()


# Two ranks: accu_worker.py trains all cases under msrun, once per session; the tests read what it wrote.


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """case -> [results of rank 0, of rank 1]."""
    folder = tmp_path_factory.mktemp("two_ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = Path(__file__).parents[2]
    here = os.path.dirname(sys.executable)
    env = {
        **os.environ,
        "PATH": here + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]),
        "MS_CPU_COMM_OP_TIMEOUT": "60",
        "GLOG_v": "4",
    }
    command = [
        os.path.join(here, "msrun"), "--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1",
        f"--master_port={port}", "--join=True", f"--log_dir={folder}", str(root / "tests/train/accu_worker.py"),
        str(folder),
    ]  # fmt: skip
    run = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output = run.communicate(timeout=240)[0]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    logs = "".join(p.read_text()[-3000:] for p in sorted(folder.glob("worker_*.log")))
    assert run.returncode == 0, output[-2000:] + logs
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    return {case: [ranks[case] for ranks in found] for case in found[0]}


def rank_weights(result):
    return [np.array(w, np.float32) for w in result["weights"]]


modes = pytest.mark.parametrize("mode", ["pynative", "graph"])


@modes
def test_two_ranks_equal_one_process_on_the_union_batch(two_ranks, mode):
    """Batches of 2 on each rank, windows of 4 with a tail of 2: the union is windows of 16 samples, then 8."""
    losses, expected = full_batches(windows(40, 16, epochs=2))
    for result in two_ranks[f"{mode} plain"]:
        assert difference(rank_weights(result), expected) < 1e-5
        np.testing.assert_allclose(result["losses"], losses, rtol=1e-5)
    for result in two_ranks[f"{mode} scaled"]:
        assert difference(rank_weights(result), expected) < 1e-5


@modes
def test_one_all_reduce_per_window(two_ranks, mode):
    """10 batches per rank and epoch, K = 4: 3 windows, 2 epochs. In PyNative the primitive's calls are counted too."""
    for result in two_ranks[f"{mode} plain"]:
        assert result["reductions"] == 6
        assert result["primitive_calls"] == (6 if mode == "pynative" else None)


@modes
def test_overflow_on_one_rank_skips_on_both(two_ranks, mode):
    """Only rank 1 overflows, in the first micro-batch of its second window."""
    first, second = two_ranks[f"{mode} overflow"]
    assert first["weights"] == second["weights"]
    for result in (first, second):
        assert result["skipped"] == [False, True, False]
        assert result["scale"] == 512 and result["updates"] == 2


def test_ranks_with_unequal_weights(two_ranks):
    """Rank 0 has batches of 3 samples, rank 1 of 1: the mean is over samples."""
    expected = full_batches([(0, 40)])[1]
    for result in two_ranks["pynative weighted"]:
        assert difference(rank_weights(result), expected) < 1e-5


def test_cells_reduce_too(two_ranks):
    expected = full_batches(windows(40, 16))[1]
    for result in two_ranks["pynative cells"]:
        assert difference(rank_weights(result), expected) < 1e-5
        assert result["reductions"] == 3


def test_sum_over_ranks_on_request(two_ranks):
    """gradients_mean=False: twice the mean gradient, which is not the union batch's."""
    for result in two_ranks["pynative sum"]:
        assert difference(rank_weights(result), full_batches([(0, 40)])[1]) > 1e-2
        assert difference(rank_weights(result), full_batches([(0, 40)], learning_rate=0.2)[1]) < 1e-5


def test_unequal_numbers_of_batches_are_an_error_on_every_rank(two_ranks):
    for result in two_ranks["unequal batches"]:
        assert "the same number of batches on every rank; received [5, 4]" in result["error"]
