"""Gradient accumulation for `mindspore.nn.Cell` networks, in three cells and the loop that drives them.

    grad_sum = optimizer.parameters.clone(prefix="grad_sum", init="zeros")
    zeros = optimizer.parameters.clone(prefix="zeros", init="zeros")
    forward_backward = TrainForwardBackward(nn.WithLossCell(network, loss_fn), optimizer, grad_sum)
    update, clear = TrainOptim(optimizer, grad_sum), TrainClear(grad_sum, zeros)
    for data, label in four_batches:
        loss = forward_backward(data, label)
    update()                                    # the mean of the four gradients
    clear()

or, with the window, the tail, printing, callbacks and evaluation done:

    GradientAccumulation(network, loss_fn, optimizer).train_process(epochs, dataset, mini_steps=4)

What a window holds: the sum of w_i * gradient_i (w_i = 1, or what the user's `weight` says), and the three totals
[sum of w_i, sum of w_i * loss_i, number of micro-batches that overflowed], kept beside the gradients. `TrainOptim`
divides, once, by the weight that is really there: a window of any length is averaged over its own length. In
data-parallel mode it sums gradients and totals over the ranks first, in one all-reduce.

Both of MindSpore's modes run the same code. BatchNorm's statistics are those of each micro-batch, in any mode.
"""

import numbers
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from ..runtime import ms

mindspore = ms()  # before the imports below: it starts MindSpore with our settings

import numpy as np  # noqa: E402
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops  # noqa: E402
from mindspore.communication import GlobalComm, get_group_size  # noqa: E402
from mindspore.train import DatasetHelper, Model, RunContext  # noqa: E402
from mindspore.train.callback import _CallbackManager, _InternalCallbackParam  # noqa: E402

float32 = mindspore.float32
WEIGHT, LOSS, OVERFLOW = 0, 1, 2  # the totals of a window

_add = ops.MultitypeFuncGraph("add_weighted_gradient")
_mean = ops.MultitypeFuncGraph("mean_gradient")
_clear = ops.MultitypeFuncGraph("clear_gradient")
_finite = ops.MultitypeFuncGraph("gradient_is_finite")
_assign, _assign_add = ops.Assign(), ops.AssignAdd()


@_add.register("Tensor", "Tensor", "Tensor")
def _add_weighted(weight, total, gradient):
    return _assign_add(total, ops.cast(gradient, total.dtype) * ops.cast(weight, total.dtype))


@_mean.register("Tensor", "Tensor", "Tensor")
def _mean_gradient(factor, total, parameter):
    return ops.cast(total * ops.cast(factor, total.dtype), parameter.dtype)


@_clear.register("Tensor", "Tensor")
def _clear_gradient(total, zero):
    return _assign(total, zero)  # not total * 0: that keeps an infinity as NaN


@_finite.register("Tensor")
def _gradient_is_finite(gradient):
    return ops.cast(ops.ReduceAll()(ops.IsFinite()(gradient)), float32)


def all_finite(gradients):
    """Whether no element of a tuple of tensors is infinite or NaN, as a bool tensor. Usable inside a graph."""
    finite = ops.HyperMap()(_finite, gradients)
    return ops.equal(ops.AddN()(finite), ops.scalar_to_tensor(float(len(finite)), float32))


class TrainForwardBackward(nn.Cell):
    """Forward, backward, and the gradients added to `grad_sum`; the weights stay. Returns the micro-batch's loss.

    Args:
        network: a Cell that computes the loss, such as `nn.WithLossCell(network, loss_fn)`.
        optimizer: its parameters are the ones that get gradients.
        grad_sum: `optimizer.parameters.clone(prefix="grad_sum", init="zeros")`.
        sens: the loss scale, a number or a Parameter. The gradients are multiplied by it, as in
            `nn.TrainOneStepCell`; give the optimizer the same `loss_scale`. It is not 1/K: the window is averaged.
        check_overflow: whether to note in the window's totals that a gradient was infinite or NaN.
    """

    def __init__(self, network, optimizer, grad_sum, sens=1.0, check_overflow=False):
        super().__init__(auto_prefix=False)
        expect_cell("TrainForwardBackward", "network", network)
        expect_optimizer("TrainForwardBackward", optimizer)
        self.grad_sum = check_grad_sum("TrainForwardBackward", grad_sum, optimizer)
        self.totals = window_totals(self.grad_sum)
        self.sens = sens if isinstance(sens, Parameter) else check_sens("TrainForwardBackward", sens)
        self.micro_weight = Parameter(Tensor(1.0, float32), name=self.totals.name + ".weight", requires_grad=False)
        self.check_overflow = check_overflow
        self.scaled_loss = _ScaledLoss(network)
        # One forward for loss and gradient: BatchNorm's statistics and dropout's masks are drawn once.
        self.loss_and_grad = ops.value_and_grad(self.scaled_loss, None, optimizer.parameters, has_aux=True)
        self.map = ops.HyperMap()
        self.set_train()

    def construct(self, *inputs):
        (_, loss), grads = self.loss_and_grad(self.sens, *inputs)
        weight = self.micro_weight * 1.0
        mean_loss = ops.cast(loss, float32).mean()
        overflow = weight * 0.0
        if self.check_overflow:
            overflow = 1.0 - ops.cast(all_finite(grads), float32)
        added = self.map(ops.partial(_add, weight), self.grad_sum, grads)
        counted = _assign_add(self.totals, ops.stack((weight, weight * mean_loss, overflow)))
        return ops.depend(loss, (added, counted))

    def set_weight(self, weight: float) -> None:
        """The weight of the next micro-batches in their window's mean: 1, or the number of their valid targets."""
        if not isinstance(weight, numbers.Real) or not 0 < weight < float("inf"):
            raise ValueError(
                f"Expected a micro-batch's weight to be a positive number; received {weight!r}. A batch without a "
                "valid target has no mean loss: leave it out of the dataset."
            )
        self.micro_weight.set_data(Tensor(float(weight), float32))


class TrainOptim(nn.Cell):
    """The update: the optimizer applied to the mean gradient of the window in `grad_sum`.

    In data-parallel mode the window is the union of all ranks' windows: one all-reduce, here and nowhere else.
    `gradients_mean=False` multiplies by the number of ranks, as MindSpore's context setting of that name does.
    """

    def __init__(self, optimizer, grad_sum, gradients_mean=True):
        super().__init__(auto_prefix=False)
        expect_optimizer("TrainOptim", optimizer)
        self.optimizer = optimizer
        self.window_mean = WindowMean(optimizer, check_grad_sum("TrainOptim", grad_sum, optimizer), gradients_mean)

    def construct(self):
        grads, _ = self.window_mean(1.0)
        return self.optimizer(grads)

    def __call__(self):
        if self.window_mean.totals.asnumpy()[WEIGHT] == 0:
            raise RuntimeError(
                "TrainOptim: expected gradients in grad_sum; received an empty window. Call TrainForwardBackward, "
                "made with the same grad_sum, before the update."
            )
        return super().__call__()


class TrainClear(nn.Cell):
    """Empties the window. `zeros`: `optimizer.parameters.clone(prefix="zeros", init="zeros")`, or None."""

    def __init__(self, grad_sum, zeros=None):
        super().__init__(auto_prefix=False)
        if zeros is not None and [z.shape for z in zeros] != [g.shape for g in grad_sum]:
            raise ValueError(
                f"TrainClear: expected one tensor of zeros of each shape in grad_sum, {_shapes(grad_sum)}; received "
                f'{_shapes(zeros)}. Make them with optimizer.parameters.clone(prefix="zeros", init="zeros").'
            )
        self.grad_sum = ParameterTuple(grad_sum)
        self.totals = window_totals(grad_sum)
        self.has_zeros = zeros is not None
        self.zeros = zeros if zeros is not None else ()
        self.map = ops.HyperMap()

    def construct(self):
        zeros = self.zeros if self.has_zeros else self.map(ops.zeros_like, self.grad_sum)
        cleared = self.map(_clear, self.grad_sum, zeros)
        return ops.depend(True, (cleared, _assign(self.totals, ops.zeros_like(self.totals))))


class GradientAccumulation:
    """Trains `network` with windows of micro-batches on a `mindspore.dataset` pipeline.

    Args:
        network, loss_fn, optimizer: as for `mindspore.train.Model`; `loss_fn=None` if the network returns the loss.
        metrics: what `eval` reports, as for `mindspore.train.Model`: a set of names or a dict.
        weight: a function of a batch that returns its weight in the window's mean, such as the number of its valid
            targets; default: every batch counts the same.
    """

    def __init__(self, network, loss_fn, optimizer, metrics=None, weight=None):
        expect_cell("GradientAccumulation", "network", network)
        expect_optimizer("GradientAccumulation", optimizer)
        self._network, self._loss_fn, self._optimizer, self._weight = network, loss_fn, optimizer, weight
        self._metrics = metrics
        grad_sum = gradient_sums(optimizer, "grad_sum")
        network_with_loss = nn.WithLossCell(network, loss_fn) if loss_fn is not None else network
        self._train_forward_backward = TrainForwardBackward(network_with_loss, optimizer, grad_sum)
        self._train_optim = TrainOptim(optimizer, grad_sum)
        self._train_clear = TrainClear(grad_sum)
        self._eval_model: Any = None

    def train_process(
        self, epochs, dataset, mini_steps=4, callbacks=None, valid_dataset=None, per_print_times=1, initial_epoch=0
    ):
        """Train; returns the mean loss of each update.

        A step is an update: callbacks are called once per window, with steps numbered by windows and
        `batch_num` the number of updates in an epoch, ceil(batches / mini_steps). The last window of an epoch may
        be shorter; it is applied too. `per_print_times`: print every so many updates, 0: never.
        `valid_dataset` is evaluated after each epoch, if `metrics` were given.
        """
        check_positive_int("train_process", "epochs", epochs)
        check_positive_int("train_process", "mini_steps", mini_steps)
        batches = check_dataset("train_process", dataset)
        if valid_dataset is not None and self._metrics is None:
            raise ValueError(
                "train_process: expected metrics with valid_dataset; received none. Name them in the constructor: "
                "GradientAccumulation(network, loss_fn, optimizer, metrics={'accuracy'})."
            )
        same_start(self._network, self._optimizer, batches)
        empty_window(self._train_forward_backward.grad_sum)
        batch_weight = BatchWeight(self._weight, self._train_forward_backward)
        helper = DatasetHelper(dataset, dataset_sink_mode=False, epoch_num=epochs - initial_epoch)
        parameters = callback_parameters(
            CheckpointView(self._network, self._optimizer), self._network, self._loss_fn, self._optimizer,
            dataset, callbacks, epochs - initial_epoch, -(-batches // mini_steps),
        )  # fmt: skip
        losses = []
        with _CallbackManager(parameters.list_callback) as listeners:
            context = RunContext(parameters)
            listeners.on_train_begin(context)
            for epoch in range(initial_epoch + 1, epochs + 1):
                parameters.cur_epoch_num = epoch
                listeners.on_train_epoch_begin(context)
                self._train_forward_backward.set_train()
                for step, loss in self._epoch(helper, mini_steps, batch_weight, listeners, context, parameters):
                    losses.append(loss)
                    if per_print_times and step % per_print_times == 0:
                        print(f"epoch: {epoch} step: {step}, loss is {loss}", flush=True)
                dataset.reset()
                if valid_dataset is not None:
                    parameters.metrics = self.eval(valid_dataset)
                    if per_print_times:
                        print(f"epoch: {epoch}, {parameters.metrics}", flush=True)
                listeners.on_train_epoch_end(context)
                if context.get_stop_requested():
                    break
            listeners.on_train_end(context)
        return losses

    def eval(self, dataset):
        """The metrics on a dataset, as a dict."""
        if self._metrics is None:
            raise ValueError(
                "eval: expected metrics; received none. Name them in the constructor: "
                "GradientAccumulation(network, loss_fn, optimizer, metrics={'accuracy'})."
            )
        if self._eval_model is None:
            self._eval_model = Model(self._network, self._loss_fn, metrics=self._metrics)
        result = self._eval_model.eval(dataset, dataset_sink_mode=False)
        self._network.set_train()
        return result

    def _epoch(self, helper, mini_steps, batch_weight, listeners, context, parameters):
        """Runs one epoch; yields (number of the update in the epoch, mean loss) after each update."""
        for batch, starts, ends in micro_batches(helper, mini_steps):
            parameters.train_dataset_element = batch
            if starts:
                parameters.cur_step_num += 1
                listeners.on_train_step_begin(context)
            batch_weight.set(batch, starts)
            self._train_forward_backward(*batch)
            if not ends:
                continue
            self._train_optim()
            self._train_clear()
            loss = self._train_optim.window_mean.loss()
            parameters.net_outputs = Tensor(loss, float32)
            listeners.on_train_step_end(context)
            yield (parameters.cur_step_num - 1) % parameters.batch_num + 1, loss
            if context.get_stop_requested():
                break


# What the cells here and in model.py are made of.


class _ScaledLoss(nn.Cell):
    """(scale * loss, loss) of a network that returns its loss: the first is differentiated, the second reported."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, scale, *inputs):
        loss = self.network(*inputs)
        return ops.cast(loss, float32) * scale, loss


class WindowMean(nn.Cell):
    """The window's mean gradient divided by `scale`, and its totals: over all ranks in data-parallel mode.

    Gradients and totals of all parameters go through one all-reduce, as one vector; `reductions` counts them.
    """

    def __init__(self, optimizer, grad_sum, gradients_mean=True):
        super().__init__(auto_prefix=False)
        self.weights = optimizer.parameters
        self.grad_sum = grad_sum
        self.totals = window_totals(grad_sum)
        self.ranks = data_parallel_ranks()
        self.applied = Parameter(Tensor(np.zeros(3, np.float32)), name=self.totals.name + ".applied")
        self.rank_factor = 1.0 if gradients_mean else float(self.ranks)
        self.reductions = Parameter(Tensor(0, mindspore.int32), name=self.totals.name + ".reductions")
        self.reduce = _SumOverRanks(grad_sum, self.totals, self.ranks) if self.ranks > 1 else None
        self.map = ops.HyperMap()

    def construct(self, scale):
        sums, totals = self.grad_sum, self.totals
        if self.ranks > 1:
            sums, totals = self.reduce(sums, totals)
            totals = ops.depend(totals, _assign_add(self.reductions, Tensor(1, mindspore.int32)))
        factor = ops.div(self.rank_factor, totals[WEIGHT] * scale)
        grads = self.map(ops.partial(_mean, factor), sums, self.weights)
        return grads, ops.depend(totals, _assign(self.applied, totals))

    def loss(self) -> float:
        """The mean loss of the last window."""
        totals = self.applied.asnumpy()
        return float(totals[LOSS] / totals[WEIGHT])


class _SumOverRanks(nn.Cell):
    """Sums of tensors and of the totals over all ranks, in one collective."""

    def __init__(self, tensors, totals, ranks):
        super().__init__(auto_prefix=False)
        self.ranks = ranks
        self.shapes = [tuple(t.shape) for t in tensors] + [tuple(totals.shape)]
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.sizes = sizes
        self.dtypes = [t.dtype for t in tensors]
        self.double = any(t.dtype == mindspore.float64 for t in tensors)
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, GlobalComm.WORLD_COMM_GROUP)
        self.all_gather = ops.AllGather(GlobalComm.WORLD_COMM_GROUP)

    def construct(self, tensors, totals):
        dtype = mindspore.float64 if self.double else float32
        pieces = ()
        for tensor in tensors:
            pieces += (ops.cast(ops.reshape(tensor, (-1,)), dtype),)
        flat = ops.concat(pieces + (ops.cast(totals, dtype),))
        if self.double:  # MindSpore's AllReduce has no float64
            flat = ops.reshape(self.all_gather(flat), (self.ranks, -1)).sum(0)
        else:
            flat = self.all_reduce(flat)
        sums = ()
        for i in range(len(self.dtypes)):
            piece = flat[self.starts[i] : self.starts[i] + self.sizes[i]]
            sums += (ops.cast(ops.reshape(piece, self.shapes[i]), self.dtypes[i]),)
        return sums, ops.cast(flat[self.starts[-1] :], float32)


def window_totals(grad_sum) -> Parameter:
    """The totals of the window in `grad_sum`; cells made with the same `grad_sum` get the same Parameter."""
    first = grad_sum[0]
    owner, totals = getattr(first, "window_totals", (None, None))
    if owner != id(first):  # none yet, or another's: Parameter.clone copies attributes
        name = f"{first.name}.window_totals"
        totals = Parameter(Tensor(np.zeros(3, np.float32)), name=name, requires_grad=False)
        first.window_totals = (id(first), totals)
    return totals


def gradient_sums(optimizer, prefix: str) -> ParameterTuple:
    """Zeros to sum gradients in: one Parameter for each of the optimizer's, float32 where that is float16."""
    wide = (float32, mindspore.float64)
    return ParameterTuple(
        Parameter(
            Tensor(np.zeros(p.shape, np.float32)).astype(p.dtype if p.dtype in wide else float32),
            name=f"{prefix}.{p.name}",
            requires_grad=False,
        )
        for p in optimizer.parameters
    )


def empty_window(grad_sum) -> None:
    """Forgets a window that an exception left open."""
    for total in (*grad_sum, window_totals(grad_sum)):
        total.set_data(Tensor(np.zeros(total.shape, np.float32)).astype(total.dtype))


class BatchWeight:
    """Gives each micro-batch its weight; warns, once, of micro-batches of unequal size that count alike."""

    def __init__(self, function, forward_backward):
        self.function, self.forward_backward = function, forward_backward
        self.sizes: set[int] = set()  # the numbers of samples of the window's micro-batches
        self.warned = False
        forward_backward.set_weight(1)

    def set(self, batch: tuple, starts: bool) -> None:
        if self.function is not None:
            weight = self.function(*batch)
            self.forward_backward.set_weight(weight.asnumpy().item() if isinstance(weight, Tensor) else weight)
            return
        if starts:
            self.sizes.clear()
        self.sizes.update(t.shape[0] for t in batch[-1:] if isinstance(t, Tensor) and t.ndim)
        if len(self.sizes) > 1 and not self.warned:
            self.warned = True
            warnings.warn(
                f"Micro-batches of {sorted(self.sizes)} samples count alike in one window, so that its gradient is not "
                "that of one full batch: pass weight=samples (from msadapter.train), or batch with "
                "drop_remainder=True.",
                stacklevel=4,
            )


def micro_batches(batches: Iterable, window: int) -> Iterator[tuple[tuple, bool, bool]]:
    """(batch, whether it starts a window, whether it ends one) for each batch; the last batch always ends one."""
    iterator = iter(batches)
    batch = next(iterator, None)
    position = 0
    while batch is not None:
        following = next(iterator, None)
        ends = position == window - 1 or following is None
        yield tuple(batch), position == 0, ends
        position = 0 if ends else position + 1
        batch = following


def data_parallel_ranks() -> int:
    """How many ranks share the gradient: 1 unless MindSpore's parallel mode is data_parallel or hybrid_parallel."""
    mode = mindspore.get_auto_parallel_context("parallel_mode")
    if mode == "stand_alone":
        return 1
    if mode not in ("data_parallel", "hybrid_parallel"):
        raise ValueError(
            f"Expected MindSpore's parallel_mode to be stand_alone or data_parallel; received {mode}. For networks cut "
            "by MindSpore itself use mindspore.parallel.nn.GradAccumulation."
        )
    try:
        return get_group_size()
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"Expected started communication in parallel_mode {mode}; received none. Call "
            "mindspore.communication.init() first ('mccl' on CPU) and run the script with msrun."
        ) from error


def same_start(network, optimizer, batches: int) -> None:
    """In data-parallel mode: every rank starts from rank 0's parameters and has the same number of batches."""
    if data_parallel_ranks() == 1:
        if GlobalComm.INITED and get_group_size() > 1:
            warnings.warn(
                f"{get_group_size()} ranks train in parallel_mode stand_alone, each by itself. To train together: "
                "mindspore.set_auto_parallel_context(parallel_mode='data_parallel') before the cells are made.",
                stacklevel=3,
            )
        return
    counts = ops.AllGather()(Tensor([batches], float32)).asnumpy().astype(int).tolist()
    if len(set(counts)) > 1:
        raise ValueError(
            f"Expected the same number of batches on every rank; received {counts}. Ranks meet once per window: cut "
            "the data evenly with num_shards and shard_id of the dataset."
        )
    parameters = {id(p): p for cell in (network, optimizer) for p in cell.get_parameters()}.values()
    parameters = [p for p in parameters if p.dtype in (float32, mindspore.float16, mindspore.bfloat16) and p.size]
    flat = np.concatenate([p.astype(float32).asnumpy().reshape(-1) for p in parameters])
    flat = ops.Broadcast(0)((Tensor(flat),))[0].asnumpy()
    for p in parameters:
        value, flat = flat[: p.size], flat[p.size :]
        p.set_data(Tensor(value.reshape(p.shape)).astype(p.dtype))


class CheckpointView(nn.Cell):
    """What ModelCheckpoint saves: Cells and Parameters of the training state, without the open window."""

    def __init__(self, *parts):
        super().__init__(auto_prefix=False)
        for i, part in enumerate(parts):
            setattr(self, f"part{i}", part)


def callback_parameters(train_network, network, loss_fn, optimizer, dataset, callbacks, epochs, steps_per_epoch):
    """What MindSpore's callbacks read, with a step being one update."""
    parameters = _InternalCallbackParam()
    parameters.update(
        train_network=train_network, network=network, loss_fn=loss_fn, optimizer=optimizer, mode="train",
        epoch_num=epochs, batch_num=steps_per_epoch, cur_step_num=0, cur_epoch_num=0, train_dataset=dataset,
        parallel_mode=mindspore.get_auto_parallel_context("parallel_mode"), device_number=data_parallel_ranks(),
        list_callback=_as_list(callbacks), dataset_sink_mode=False, train_dataset_element=None, net_outputs=None,
        last_save_ckpt_step=None, latest_ckpt_file=None, loss_scale_mananger=None, initial_step=0,
    )  # fmt: skip
    return parameters


def _as_list(callbacks) -> list:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]


# Checks of arguments: each message says what was expected, what came, and what to do.


def check_sens(where: str, sens) -> float:
    """A loss scale."""
    if isinstance(sens, bool) or not isinstance(sens, numbers.Real):
        raise TypeError(f"{where}: expected sens, the loss scale, to be a number; received {type(sens).__name__}.")
    if not 0 < sens < float("inf"):
        raise ValueError(f"{where}: expected sens, the loss scale, to be positive and finite; received {sens}.")
    if sens < 1:
        warnings.warn(
            f"{where}: sens={sens} makes every gradient smaller. The window is averaged already; sens is the loss "
            "scale, not 1 / number of micro-batches.",
            stacklevel=3,
        )
    return float(sens)


def check_positive_int(where: str, name: str, value) -> int:
    """A number of things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where}: expected {name} to be a positive int; received {value!r}.")
    return value


def check_dataset(where: str, dataset) -> int:
    """A `mindspore.dataset` pipeline with data; returns its number of batches."""
    if not isinstance(dataset, mindspore.dataset.Dataset):
        raise TypeError(
            f"{where}: expected a mindspore.dataset pipeline; received {type(dataset).__name__}. Wrap arrays with "
            "mindspore.dataset.NumpySlicesDataset(arrays).batch(n)."
        )
    batches = dataset.get_dataset_size()
    if batches < 1:
        raise ValueError(f"{where}: expected a dataset with at least one batch; received an empty one.")
    return batches


def check_grad_sum(where: str, grad_sum, optimizer) -> ParameterTuple:
    """The gradient sums that belong to an optimizer."""
    shapes = [tuple(p.shape) for p in optimizer.parameters]
    if not isinstance(grad_sum, tuple | list) or not all(isinstance(g, Parameter) for g in grad_sum):
        received = type(grad_sum).__name__
    elif [tuple(g.shape) for g in grad_sum] != shapes:
        received = f"shapes {_shapes(grad_sum)}"
    else:
        return ParameterTuple(grad_sum)
    raise ValueError(
        f"{where}: expected grad_sum to hold one Parameter of each shape {shapes}; received {received}. Make it with "
        'optimizer.parameters.clone(prefix="grad_sum", init="zeros").'
    )


def _shapes(tensors) -> list:
    return [tuple(t.shape) for t in tensors]


def expect_cell(where: str, name: str, value) -> None:
    if not isinstance(value, nn.Cell):
        raise TypeError(
            f"{where}: expected {name} to be a mindspore.nn.Cell; received {type(value).__name__}. PyTorch modules are "
            "trained by msadapter.train.TrainStep."
        )


def expect_optimizer(where: str, optimizer) -> None:
    if not isinstance(optimizer, nn.Optimizer):
        raise TypeError(
            f"{where}: expected a mindspore.nn optimizer; received {type(optimizer).__name__}. Make one such as "
            "nn.Momentum(network.trainable_params(), 0.01, 0.9)."
        )
