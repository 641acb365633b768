"""The parallel form of gradient accumulation for `mindspore.nn.Cell` networks: two graphs that alternate.

    model = Model_ACCU(network, loss_fn, optimizer, metrics={"accuracy"}, grad_accumulation_step=4)
    model.train(epochs, dataset, callbacks=[LossMonitor()], dataset_sink_mode=False)
    model.eval(test_dataset)

The accumulation graph does forward, backward and add. The update graph does forward, backward and add, reduces the
window's gradients over the ranks, divides once, updates and clears. A window of K micro-batches runs the first graph
K - 1 times and the second once, so that the gradients cross the network once per window whatever K is.

With a loss scale, each micro-batch's overflow is noted in the window's totals, which go through the same all-reduce:
all ranks decide alike. One overflow anywhere skips the whole update, empties the window and halves the scale; the
scale is constant inside a window, and the optimizer's learning-rate schedule does not advance when it is skipped.

Two workers on CPU: set parallel_mode to data_parallel, call `mindspore.communication.init("mccl")`, and run with
`msrun --worker_num=2 --local_worker_num=2 train.py`.
"""

import warnings

from ..runtime import ms

mindspore = ms()  # before the imports below: it starts MindSpore with our settings

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from mindspore.amp import DynamicLossScaleManager, auto_mixed_precision  # noqa: E402
from mindspore.train import DatasetHelper, Model, RunContext  # noqa: E402

from . import cells  # noqa: E402
from .cells import OVERFLOW, float32  # noqa: E402

_AMP_LEVELS = ("O0", "O1", "O2", "O3", "auto")
_noticed: set[str] = set()


class TrainAccuStepsCell(nn.Cell):
    """One training step per micro-batch; returns the micro-batch's loss.

    Args:
        network: a Cell that computes the loss, such as `nn.WithLossCell(network, loss_fn)`.
        optimizer: a `mindspore.nn` optimizer.
        sens: multiplies the gradients, as in `nn.TrainOneStepCell`; give the optimizer the same `loss_scale`.
        grad_accumulation_step: micro-batches in a window; None: what MindSpore's parallel context says (2.10 takes
            only 1 there).
        gradients_mean: over ranks, the mean (True) or the sum (False) of the ranks' mean gradients.

    Calls alternate by themselves; `set_accumulation` takes over for the next ones, `flush` applies an open window.
    """

    def __init__(self, network, optimizer, sens=1.0, grad_accumulation_step=None, gradients_mean=True):
        super().__init__(auto_prefix=False)
        name = type(self).__name__
        cells.expect_cell(name, "network", network)
        cells.expect_optimizer(name, optimizer)
        self.network, self.optimizer = network, optimizer
        self.grad_accumulation_step = accumulation_steps(name, grad_accumulation_step)
        self.accu_grads = cells.gradient_sums(optimizer, "accu_grads")
        self.window_mean = cells.WindowMean(optimizer, self.accu_grads, gradients_mean)
        self.clear = cells.TrainClear(self.accu_grads)
        self._build(sens)
        self._forced: bool | None = None
        self._position = 0  # micro-batches in the open window
        self.set_train()

    def _build(self, sens) -> None:
        self.accumulation_graph = cells.TrainForwardBackward(self.network, self.optimizer, self.accu_grads, sens)
        self.flush_graph = _Apply(self.window_mean, self.optimizer, self.clear)
        self.update_graph = _Update(self.accumulation_graph, self.flush_graph)

    def __call__(self, *inputs):
        if self.accumulates_next:
            self._position += 1
            return self.accumulation_graph(*inputs)
        self._position = 0
        return self.update_graph(*inputs)

    @property
    def accumulates_next(self) -> bool:
        """Whether the next call accumulates, rather than update."""
        return self._position + 1 < self.grad_accumulation_step if self._forced is None else self._forced

    def set_accumulation(self, accumulation: bool | None) -> None:
        """True: the next calls accumulate; False: they update; None: every `grad_accumulation_step`-th updates."""
        self._forced = accumulation

    def set_weight(self, weight: float) -> None:
        """The weight of the next micro-batches in their window's mean."""
        self.forward_backward.set_weight(weight)

    def flush(self):
        """Applies the open window, averaged over its own length. In data-parallel mode every rank must call it."""
        if self._position == 0:
            raise RuntimeError("flush: expected an open window; received none: the last call made an update.")
        self._position = 0
        return self.flush_graph()

    @property
    def forward_backward(self) -> cells.TrainForwardBackward:
        """The cell that runs in both graphs."""
        return self.update_graph.forward_backward

    @property
    def reductions(self) -> int:
        """How many all-reduces of gradients there were: one per window in data-parallel mode, else 0."""
        return int(self.window_mean.reductions.asnumpy())

    def window_outputs(self):
        """What callbacks get after an update: the mean loss of the window over all ranks."""
        return Tensor(self.window_mean.loss(), float32)

    def checkpoint_parts(self) -> tuple:
        """What a checkpoint at the end of a window has to hold."""
        return self.network, self.optimizer


class TrainAccuStepsWithLossScaleCell(TrainAccuStepsCell):
    """As TrainAccuStepsCell, with a loss scale; returns (loss, overflow, scale).

    `scale_sense` is a Cell such as `nn.DynamicLossScaleUpdateCell(2.0**16, 2, 1000)`, called once per window, or a
    Tensor of shape () or (1,): a fixed scale that `set_sense_scale` changes. `overflow` says, after an accumulation,
    whether the window has overflowed on this rank so far; after an update, whether it was skipped (on all ranks).
    """

    def __init__(self, network, optimizer, scale_sense, grad_accumulation_step=None, gradients_mean=True):
        super().__init__(network, optimizer, scale_sense, grad_accumulation_step, gradients_mean)

    def _build(self, scale_sense) -> None:
        manager = None
        if isinstance(scale_sense, nn.Cell):
            manager, scale_sense = scale_sense, Tensor(float(scale_sense.get_loss_scale()), float32)
        if not isinstance(scale_sense, Tensor):
            raise TypeError(
                "TrainAccuStepsWithLossScaleCell: expected scale_sense to be a Cell such as "
                f"nn.DynamicLossScaleUpdateCell, or a Tensor; received {type(scale_sense).__name__}."
            )
        if scale_sense.shape not in ((), (1,)):
            raise ValueError(
                f"TrainAccuStepsWithLossScaleCell: expected scale_sense of shape () or (1,); received {scale_sense.shape}."
            )
        self.loss_scaling_manager = manager
        self.scale_sense = Parameter(_scalar(scale_sense), name="scale_sense", requires_grad=False)
        forward_backward = cells.TrainForwardBackward(
            self.network, self.optimizer, self.accu_grads, self.scale_sense, check_overflow=True
        )
        self.accumulation_graph = _ScaledAccumulation(forward_backward, self.scale_sense)
        self.flush_graph = _ScaledApply(self.window_mean, self.optimizer, self.clear, self.scale_sense, manager)
        self.update_graph = _ScaledUpdate(forward_backward, self.flush_graph)

    def set_sense_scale(self, scale: Tensor) -> None:
        """Sets the loss scale, between windows."""
        if not isinstance(scale, Tensor) or scale.size != 1:
            raise TypeError(f"set_sense_scale: expected a Tensor with one element; received {scale!r}.")
        if self._position:
            raise RuntimeError("set_sense_scale: expected no open window, inside which the scale is constant.")
        self.scale_sense.set_data(_scalar(scale))

    def window_outputs(self):
        return super().window_outputs(), self.flush_graph.skipped, self.flush_graph.scale_used

    def checkpoint_parts(self) -> tuple:
        manager = () if self.loss_scaling_manager is None else (self.loss_scaling_manager,)
        return self.network, self.optimizer, self.scale_sense, *manager


class Model_ACCU(Model):  # noqa: N801  (the name that MindSpore's tutorials use)
    """`mindspore.train.Model` that accumulates gradients: train, fit, eval and predict as there.

    A step is an update: callbacks run once per window, get steps numbered by windows, `batch_num` =
    ceil(batches / grad_accumulation_step), and the window's mean loss; so LossMonitor prints, and ModelCheckpoint
    saves, only where a window is complete. The last window of an epoch may be shorter; it is applied too.

    Args:
        network, loss_fn, optimizer, metrics, eval_network, eval_indexes, amp_level: as for `Model`.
        grad_accumulation_step: micro-batches in a window; None: what MindSpore's parallel context says (2.10 takes
            only 1 there).
        gradients_mean: over ranks, the mean (True) or the sum (False) of the ranks' mean gradients. MindSpore's
            context setting of that name is not consulted: its default, the sum, is not the union batch's gradient.
        weight: a function of a batch that returns its weight in the window's mean, such as the number of its valid
            targets; default: every batch counts the same.
        loss_scale_manager: a FixedLossScaleManager or DynamicLossScaleManager; works on CPU too.

    In data-parallel mode `train` first gives every rank the parameters of rank 0.
    """

    def __init__(
        self,
        network,
        loss_fn=None,
        optimizer=None,
        metrics=None,
        eval_network=None,
        eval_indexes=None,
        amp_level="O0",
        *,
        grad_accumulation_step=None,
        gradients_mean=True,
        weight=None,
        loss_scale_manager=None,
    ):
        cells.expect_cell("Model_ACCU", "network", network)
        cells.expect_optimizer("Model_ACCU", optimizer)
        if amp_level not in _AMP_LEVELS:
            raise ValueError(f"Model_ACCU: expected amp_level to be one of {_AMP_LEVELS}; received {amp_level!r}.")
        self._accumulate = accumulation_steps("Model_ACCU", grad_accumulation_step)
        self._gradients_mean, self._weight = gradients_mean, weight
        if loss_scale_manager is None and amp_level == "O2":
            loss_scale_manager = DynamicLossScaleManager()
        extra = {} if loss_scale_manager is None else {"loss_scale_manager": loss_scale_manager}
        super().__init__(network, loss_fn, optimizer, metrics, eval_network, eval_indexes, amp_level, **extra)

    def train(self, epoch, train_dataset, callbacks=None, dataset_sink_mode=False, sink_size=-1, initial_epoch=0):
        """Train for `epoch` epochs. Sink mode is used where the device has it; on CPU, one notice says that it is not.

        `sink_size` must be -1: callbacks run once per window already.
        """
        cells.check_positive_int("Model_ACCU.train", "epoch", epoch)
        batches = cells.check_dataset("Model_ACCU.train", train_dataset)
        if sink_size != -1:
            raise ValueError(
                f"Model_ACCU.train: expected sink_size=-1; received {sink_size}. A step is one window of "
                f"{self._accumulate} micro-batches here, and callbacks run after each."
            )
        cells.same_start(self._network, self._optimizer, batches)
        sink = bool(dataset_sink_mode) and self._device_can_sink()
        super().train(epoch, train_dataset, callbacks, sink, -1, initial_epoch)

    def _build_train_network(self):
        network = self._network
        if self._amp_level != "O0":
            network = auto_mixed_precision(network, self._amp_level)
        if self._loss_fn is not None:
            network = _AmpLoss(network, self._loss_fn) if self._amp_level in ("O2", "O3", "auto") else nn.WithLossCell(
                network, self._loss_fn
            )  # fmt: skip
        sens = 1.0
        options = {"grad_accumulation_step": self._accumulate, "gradients_mean": self._gradients_mean}
        if self._loss_scale_manager is not None:
            scale_cell = self._loss_scale_manager.get_update_cell()
            if scale_cell is not None:
                return TrainAccuStepsWithLossScaleCell(network, self._optimizer, scale_cell, **options)
            sens = self._loss_scale_manager.get_loss_scale()
        return TrainAccuStepsCell(network, self._optimizer, sens, **options)

    def _train_process(self, epoch, train_dataset, list_callback=None, cb_params=None, initial_epoch=0, valid_infos=None):
        helper = DatasetHelper(train_dataset, dataset_sink_mode=False, epoch_num=epoch - initial_epoch)
        self._run(helper, epoch, train_dataset, list_callback, cb_params, initial_epoch, valid_infos)

    def _train_dataset_sink_process(
        self, epoch, train_dataset, list_callback=None, cb_params=None, sink_size=-1, initial_epoch=0, valid_infos=None
    ):
        # MindSpore binds a dataset to one network. Here two graphs take turns, so a third one fetches the batches.
        helper = DatasetHelper(train_dataset, dataset_sink_mode=True, sink_size=-1, epoch_num=epoch - initial_epoch)
        types, shapes = helper.types_shapes()
        get_next = nn.GetNextSingleOp(types, shapes, helper.iter.dataset.__transfer_dataset__.queue_name)
        batches = _Repeat(get_next, train_dataset.get_dataset_size())
        try:
            self._run(batches, epoch, train_dataset, list_callback, cb_params, initial_epoch, valid_infos)
        finally:
            helper.stop_send()
            helper.release()

    def _run(self, batches, epochs, dataset, listeners, parameters, initial_epoch, valid_infos):
        """The epochs; `batches` is iterated once per epoch."""
        cell = self._train_network
        parameters.batch_num = self.batch_num = -(-dataset.get_dataset_size() // self._accumulate)
        parameters.dataset_sink_mode = False  # to callbacks, every step is visible
        parameters.train_network = cells.CheckpointView(*cell.checkpoint_parts())
        cells.empty_window(cell.accu_grads)
        batch_weight = cells.BatchWeight(self._weight, cell.forward_backward)
        context = RunContext(parameters)
        listeners.on_train_begin(context)
        for epoch in range(initial_epoch + 1, epochs + 1):
            parameters.cur_epoch_num = self._current_epoch_num = epoch
            self._current_step_num = 0
            listeners.on_train_epoch_begin(context)
            cell.set_train()
            self._backbone_is_train = True
            for batch, starts, ends in cells.micro_batches(batches, self._accumulate):
                self._check_batch(batch)
                parameters.train_dataset_element = batch
                if starts:
                    parameters.cur_step_num += 1
                    self._current_step_num += 1
                    listeners.on_train_step_begin(context)
                batch_weight.set(batch, starts)
                cell.set_accumulation(not ends)
                cell(*batch)
                if not ends:
                    continue
                parameters.net_outputs = outputs = cell.window_outputs()
                if isinstance(outputs, tuple) and self._loss_scale_manager is not None:
                    self._loss_scale_manager.update_loss_scale(bool(outputs[1].asnumpy()))
                listeners.on_train_step_end(context)
                if context.get_stop_requested():
                    break
            cell.set_accumulation(None)
            self._eval_during_train(valid_infos, parameters, listeners)
            dataset.reset()
            listeners.on_train_epoch_end(context)
            parameters.pop("metrics", None)
            parameters.pop("eval_results", None)
            if context.get_stop_requested():
                break
        listeners.on_train_end(context)

    def _check_batch(self, batch) -> None:
        if self._loss_fn is not None and len(batch) != 2:
            raise ValueError(
                f"Model_ACCU.train: with a loss_fn, expected batches (data, label); received {len(batch)} columns. "
                "Give a network that returns the loss, and loss_fn=None, for other batches."
            )

    @staticmethod
    def _device_can_sink() -> bool:
        device = mindspore.get_context("device_target")
        if device != "CPU":
            return True
        if "sink" not in _noticed:
            _noticed.add("sink")
            warnings.warn(
                "dataset_sink_mode=True: the CPU has no dataset queue; batches are passed to the network directly.",
                stacklevel=3,
            )
        return False


# The graphs.


class _Apply(nn.Cell):
    """Mean of the window over all ranks, update, clear."""

    def __init__(self, window_mean, optimizer, clear):
        super().__init__(auto_prefix=False)
        self.window_mean, self.optimizer, self.clear = window_mean, optimizer, clear

    def construct(self):
        grads, totals = self.window_mean(1.0)
        updated = self.optimizer(grads)
        return ops.depend(True, (totals, updated, self.clear()))


class _Update(nn.Cell):
    """Forward, backward, add; then the update."""

    def __init__(self, forward_backward, apply):
        super().__init__(auto_prefix=False)
        self.forward_backward, self.apply_window = forward_backward, apply

    def construct(self, *inputs):
        loss = self.forward_backward(*inputs)
        return ops.depend(loss, self.apply_window())


class _ScaledAccumulation(nn.Cell):
    def __init__(self, forward_backward, scale_sense):
        super().__init__(auto_prefix=False)
        self.forward_backward, self.scale_sense, self.totals = forward_backward, scale_sense, forward_backward.totals

    def construct(self, *inputs):
        loss = self.forward_backward(*inputs)
        return loss, self.totals[OVERFLOW] > 0.0, self.scale_sense * 1.0


class _ScaledApply(nn.Cell):
    """As _Apply, with the gradients unscaled once; an overflow of any micro-batch on any rank skips the update."""

    def __init__(self, window_mean, optimizer, clear, scale_sense, manager):
        super().__init__(auto_prefix=False)
        self.window_mean, self.optimizer, self.clear = window_mean, optimizer, clear
        self.scale_sense, self.manager = scale_sense, manager
        self.skipped = Parameter(Tensor(False), name="window_skipped", requires_grad=False)
        self.scale_used = Parameter(Tensor(1.0, float32), name="window_scale", requires_grad=False)
        self.assign = ops.Assign()

    def construct(self):
        scale = self.scale_sense * 1.0
        grads, totals = self.window_mean(scale)
        overflow = ops.logical_or(totals[OVERFLOW] > 0.0, ops.logical_not(cells.all_finite(grads)))
        if self.manager is not None:
            overflow = self.manager(self.scale_sense, overflow)
            grown = self.scale_sense * 1.0
            self.assign(self.scale_sense, ops.select(ops.isfinite(grown), grown, scale))
        self.assign(self.skipped, overflow)
        self.assign(self.scale_used, scale)
        if not overflow:
            overflow = ops.depend(overflow, self.optimizer(grads))
        overflow = ops.depend(overflow, self.clear())
        return overflow, scale


class _ScaledUpdate(nn.Cell):
    def __init__(self, forward_backward, apply):
        super().__init__(auto_prefix=False)
        self.forward_backward, self.apply_window = forward_backward, apply

    def construct(self, *inputs):
        loss = self.forward_backward(*inputs)
        overflow, scale = self.apply_window()
        return loss, overflow, scale


class _AmpLoss(nn.Cell):
    """network and loss_fn; the loss is computed in float32."""

    def __init__(self, network, loss_fn):
        super().__init__(auto_prefix=False)
        self.network, self.loss_fn = network, loss_fn

    def construct(self, data, label):
        return self.loss_fn(ops.cast(self.network(data), float32), label)


class _Repeat:
    """Iterable: `count` results of `call`, each time that it is iterated."""

    def __init__(self, call, count):
        self.call, self.count = call, count

    def __iter__(self):
        return (self.call() for _ in range(self.count))


def _scalar(tensor: Tensor) -> Tensor:
    """A new float32 tensor of shape () (a Parameter that holds a reshaped one, a view, refuses Assign)."""
    return Tensor(tensor.asnumpy().item(), float32)


def accumulation_steps(where: str, given: int | None) -> int:
    """The window's length: the argument, or else what MindSpore's parallel context says."""
    if given is None:
        return int(mindspore.get_auto_parallel_context("grad_accumulation_step"))
    return cells.check_positive_int(where, "grad_accumulation_step", given)
