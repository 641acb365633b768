"""TrainForwardBackward, TrainOptim, TrainClear and GradientAccumulation on MindSpore Cells, in both modes."""

import re
import subprocess
import sys
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
from mindspore.train import Callback, CheckpointConfig, LossMonitor, ModelCheckpoint  # isort: skip

from msadapter.train import GradientAccumulation, TrainClear, TrainForwardBackward, TrainOptim, samples


@pytest.fixture(autouse=True)
def pynative():
    """Each test starts in PyNative mode and leaves it so."""
    mindspore.set_context(mode=PYNATIVE)
    yield
    mindspore.set_context(mode=PYNATIVE)


both_modes = pytest.mark.parametrize("mode", [PYNATIVE, GRAPH], ids=["pynative", "graph"])


class Record(Callback):
    """What callbacks were told, in order."""

    def __init__(self):
        self.events = []

    def on_train_step_begin(self, run_context):
        self.note("begin", run_context)

    def on_train_step_end(self, run_context):
        self.note("end", run_context)

    def note(self, event, run_context):
        p = run_context.original_args()
        self.events.append((event, p.cur_epoch_num, p.cur_step_num, p.batch_num))


def train(batch, mini_steps, epochs=1, weight=None, **options):
    """(losses, weights) after GradientAccumulation."""
    network, loss_fn, optimizer = make()
    trainer = GradientAccumulation(network, loss_fn, optimizer, metrics={"accuracy"}, weight=weight)
    losses = trainer.train_process(epochs, pipeline(batch), mini_steps, per_print_times=0, **options)
    return losses, weights(network)


@pytest.mark.parametrize("mini_steps", [1, 2, 3, 4])
def test_window_equals_full_batch_with_tail(mini_steps):
    """10 batches of 4: K = 3 and 4 leave a tail, averaged over its own length."""
    expected_losses, expected = full_batches(windows(40, 4 * mini_steps, epochs=2))
    losses, found = train(4, mini_steps, epochs=2)
    assert len(losses) == 2 * -(-10 // mini_steps)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert difference(found, expected) < 1e-5


def test_naive_update_per_micro_batch_differs():
    expected = full_batches(windows(40, 16))[1]
    naive = full_batches(windows(40, 4))[1]
    assert difference(naive, expected) > 1e-2
    assert difference(train(4, 4)[1], expected) < 1e-5


def test_graph_mode_equals_pynative():
    losses, expected = train(4, 3)
    mindspore.set_context(mode=GRAPH)
    graph_losses, found = train(4, 3)
    np.testing.assert_allclose(graph_losses, losses, rtol=1e-5)
    assert difference(found, expected) < 1e-5


def test_window_larger_than_the_epoch_is_one_update():
    expected = full_batches([(0, 40)] * 2)[1]
    losses, found = train(10, 100, epochs=2)
    assert len(losses) == 2
    assert difference(found, expected) < 1e-5


def test_last_batch_smaller_counts_by_its_samples():
    """40 samples in batches of 12: the fourth has 4. Equal weights give another mean, and a warning."""
    expected = full_batches([(0, 40)])[1]
    assert difference(train(12, 4, weight=samples)[1], expected) < 1e-5
    with pytest.warns(UserWarning, match=r"Micro-batches of \[4, 12\] samples.*weight=samples"):
        naive = train(12, 4)[1]
    assert difference(naive, expected) > 1e-4


@both_modes
def test_the_three_cells_by_hand(mode):
    mindspore.set_context(mode=mode)
    network, loss_fn, optimizer = make(loss_scale=128.0)
    grad_sum = optimizer.parameters.clone(prefix="grad_sum", init="zeros")
    zeros = optimizer.parameters.clone(prefix="zeros", init="zeros")
    with_loss = nn.WithLossCell(network, loss_fn)
    forward_backward = TrainForwardBackward(with_loss, optimizer, grad_sum, sens=128.0)
    update, clear = TrainOptim(optimizer, grad_sum), TrainClear(grad_sum, zeros)
    start = weights(network)
    for first in (0, 16):
        for a in range(first, first + 16, 4):
            forward_backward(Tensor(X[a : a + 4]), Tensor(Y[a : a + 4]))
            if first == 0:
                assert difference(weights(network), start) == 0
        update()
        clear()
        assert all(not g.asnumpy().any() for g in grad_sum)
    mindspore.set_context(mode=PYNATIVE)
    assert difference(weights(network), full_batches([(0, 16), (16, 32)])[1]) < 1e-5
    assert int(optimizer.global_step.asnumpy()[0]) == 2


def test_clear_after_an_infinite_gradient():
    """0 * inf is NaN: clearing must assign."""
    network, loss_fn, optimizer = make()
    grad_sum = optimizer.parameters.clone(prefix="grad_sum", init="zeros")
    for g in grad_sum:
        g.set_data(Tensor(np.full(g.shape, np.inf, np.float32)))
    TrainClear(grad_sum)()
    assert all(not g.asnumpy().any() for g in grad_sum)


@both_modes
def test_learning_rate_schedule_advances_once_per_update(mode):
    mindspore.set_context(mode=mode)
    rates = [0.1, 0.01, 0.001]
    network, loss_fn, optimizer = make(learning_rate=rates)
    GradientAccumulation(network, loss_fn, optimizer).train_process(1, pipeline(4), 4, per_print_times=0)
    mindspore.set_context(mode=PYNATIVE)
    assert int(optimizer.global_step.asnumpy()[0]) == 3
    assert difference(weights(network), full_batches(windows(40, 16), learning_rate=rates)[1]) < 1e-5


@both_modes
def test_batch_norm_statistics_are_updated_once_per_micro_batch(mode):
    """PyNative gradients that run the forward twice would update them twice."""
    mindspore.set_context(mode=mode)
    network = nn.SequentialCell(nn.BatchNorm1d(4), nn.Dense(4, 3))
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    GradientAccumulation(network, loss_fn, optimizer).train_process(1, pipeline(20), 2, per_print_times=0)
    mean = np.zeros(4, np.float32)
    for half in (X[:20], X[20:]):
        mean = 0.9 * mean + 0.1 * half.mean(0)
    np.testing.assert_allclose(network[0].moving_mean.asnumpy(), mean, atol=1e-6)


def test_callbacks_count_updates(tmp_path, capsys):
    network, loss_fn, optimizer = make()
    record = Record()
    saving = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=9))
    trainer = GradientAccumulation(network, loss_fn, optimizer, metrics={"accuracy"})
    trainer.train_process(2, pipeline(4), 4, [LossMonitor(), record, saving], pipeline(8), per_print_times=0)
    assert [e for e in record.events if e[0] == "begin"] == [
        ("begin", epoch, step, 3) for epoch, step in [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]
    ]
    assert record.events[1::2] == [("end", *e[1:]) for e in record.events[::2]]
    printed = capsys.readouterr().out
    assert "epoch: 1 step: 3, loss is" in printed and "epoch: 2 step: 3, loss is" in printed
    assert "step: 4" not in printed and printed.count("Eval result") == 2
    assert sorted(p.name for p in tmp_path.glob("*.ckpt")) == ["net-1_2.ckpt", "net-2_1.ckpt", "net-2_3.ckpt"]


def test_checkpoint_resumes_on_the_same_curve(tmp_path):
    """It holds the optimizer's state too, and no open window."""
    expected = train(4, 4, epochs=2)[1]
    network, loss_fn, optimizer = make()
    saving = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(save_checkpoint_steps=3))
    trainer = GradientAccumulation(network, loss_fn, optimizer)
    trainer.train_process(1, pipeline(4), 4, saving, per_print_times=0)
    saved = mindspore.load_checkpoint(str(tmp_path / "net-1_3.ckpt"))
    assert not [name for name in saved if "grad_sum" in name]
    network, loss_fn, optimizer = make(seed=5)
    trainer = GradientAccumulation(network, loss_fn, optimizer)
    mindspore.load_param_into_net(network, saved)
    mindspore.load_param_into_net(optimizer, saved)
    trainer.train_process(2, pipeline(4), 4, per_print_times=0, initial_epoch=1)
    assert difference(weights(network), expected) < 1e-6


def test_sums_cloned_from_other_sums_are_another_window():
    network, loss_fn, optimizer = make()
    with_loss = nn.WithLossCell(network, loss_fn)
    first = optimizer.parameters.clone(prefix="first", init="zeros")
    forward_backward = TrainForwardBackward(with_loss, optimizer, first)
    second = first.clone(prefix="second", init="zeros")
    forward_backward(Tensor(X), Tensor(Y))
    with pytest.raises(RuntimeError, match="empty window"):
        TrainOptim(optimizer, second)()
    TrainOptim(optimizer, list(first))()
    assert difference(weights(network), full_batches([(0, 40)])[1]) < 1e-5


def test_stop_requested_by_a_callback():
    class Stop(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 2:
                run_context.request_stop()

    losses, _ = train(4, 4, epochs=3, callbacks=Stop())
    assert len(losses) == 2


def test_interrupted_window_does_not_leak_into_the_next_training():
    class Fail(Exception):
        pass

    def weight(data, label, calls=[]):
        calls.append(1)
        if len(calls) == 3:
            raise Fail
        return 1

    network, loss_fn, optimizer = make()
    trainer = GradientAccumulation(network, loss_fn, optimizer, weight=weight)
    with pytest.raises(Fail):
        trainer.train_process(1, pipeline(4), 4, per_print_times=0)
    trainer.train_process(1, pipeline(4), 4, per_print_times=0)
    assert difference(weights(network), full_batches(windows(40, 16))[1]) < 1e-5


def test_prints_and_evaluates(capsys):
    network, loss_fn, optimizer = make()
    trainer = GradientAccumulation(network, loss_fn, optimizer, metrics={"accuracy"})
    trainer.train_process(1, pipeline(4), mini_steps=4, valid_dataset=pipeline(8))
    printed = capsys.readouterr().out.splitlines()
    assert [line.rsplit(" ", 1)[0] for line in printed[:3]] == [f"epoch: 1 step: {i}, loss is" for i in (1, 2, 3)]
    assert printed[3] == f"epoch: 1, {trainer.eval(pipeline(8))}"


def test_wrong_arguments():
    network, loss_fn, optimizer = make()
    trainer = GradientAccumulation(network, loss_fn, optimizer)
    with pytest.raises(ValueError, match="mini_steps to be a positive int; received 0"):
        trainer.train_process(1, pipeline(4), 0)
    with pytest.raises(ValueError, match="epochs to be a positive int; received 1.5"):
        trainer.train_process(1.5, pipeline(4))
    with pytest.raises(TypeError, match="mindspore.dataset pipeline; received list. Wrap arrays"):
        trainer.train_process(1, [(X, Y)])
    with pytest.raises(ValueError, match="expected metrics with valid_dataset"):
        trainer.train_process(1, pipeline(4), valid_dataset=pipeline(4))
    with pytest.raises(ValueError, match="eval: expected metrics"):
        trainer.eval(pipeline(4))
    with pytest.raises(TypeError, match="network to be a mindspore.nn.Cell; received function.*TrainStep"):
        GradientAccumulation(lambda x: x, loss_fn, optimizer)
    with pytest.raises(TypeError, match="a mindspore.nn optimizer; received NoneType"):
        GradientAccumulation(network, loss_fn, None)
    with_loss = nn.WithLossCell(network, loss_fn)
    grad_sum = optimizer.parameters.clone(prefix="g", init="zeros")
    with pytest.raises(ValueError, match="one Parameter of each shape .* Make it with optimizer.parameters.clone"):
        TrainForwardBackward(with_loss, optimizer, grad_sum[:2])
    with pytest.raises(ValueError, match="sens, the loss scale, to be positive and finite; received 0"):
        TrainForwardBackward(with_loss, optimizer, grad_sum, 0)
    with pytest.warns(UserWarning, match="sens=0.25 makes every gradient smaller. The window is averaged already"):
        TrainForwardBackward(with_loss, optimizer, grad_sum, 0.25)
    with pytest.raises(RuntimeError, match="received an empty window. Call TrainForwardBackward"):
        TrainOptim(optimizer, grad_sum)()
    with pytest.raises(ValueError, match="weight to be a positive number; received 0"):
        GradientAccumulation(network, loss_fn, optimizer, weight=lambda *batch: 0).train_process(1, pipeline(4))


def test_native_example_reads_idx_files(tmp_path):
    random = np.random.RandomState(0)
    for part in ("train", "t10k"):
        files = {
            f"{part}-images-idx3-ubyte": (2051, random.randint(0, 256, (128, 28, 28), dtype=np.uint8)),
            f"{part}-labels-idx1-ubyte": (2049, random.randint(0, 10, 128, dtype=np.uint8)),
        }
        for name, (magic, array) in files.items():
            (tmp_path / name).write_bytes(np.array([magic, *array.shape], ">u4").tobytes() + array.tobytes())
    script = Path(__file__).parents[2] / "examples" / "mindspore_native.py"
    command = [sys.executable, str(script), "--data", str(tmp_path), "--epochs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^loss: 2\.\d{6}  \[  0/  2\]$", done.stdout, re.M)
    assert "Test accuracy after 1 epochs" in done.stdout
    assert (tmp_path / "misclassified.png").read_bytes().startswith(b"\x89PNG")


def test_import_of_the_package_does_not_start_mindspore():
    code = "import sys, msadapter.train; print('mindspore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stdout + done.stderr
