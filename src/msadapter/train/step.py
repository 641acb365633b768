"""One training step with exact gradient accumulation: forward, backward, reduce, unscale, clip, update, schedule.

    step = TrainStep(model, loss_fn, optimizer, accumulate=4, weight=valid_targets(), clip_norm=1.0)
    for epoch in range(epochs):
        for x, y in step.epoch(loader):        # applies the last, shorter window too
            out = step(x, y)                   # one micro-batch; out.updated is True on every fourth

What happens at the boundary of a window, once each and in this order:

    reduce      one all-reduce over the data-parallel ranks      Window.close
    divide      by the sum of weights of all micro-batches       Window.close
    unscale     by the loss scale                                scaler.unscale_
    clip        to clip_norm                                     clip_grad_norm_
    update      unless a gradient is inf or nan                  scaler.step, or optimizer.step
    rescale     halve after an overflow                          scaler.update
    schedule    only after an update                             scheduler.step
    clear       every p.grad is None again                       Window.clear

It works on any device. docs/accumulation.md tells what may go wrong in such loops and why it does not here.
"""

import contextlib
import math
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from ..graph.switches import eagerly, graph_mode
from . import accumulation
from .accumulation import HALVES, VERSION, Window, outside_autocast
from .checks import LoaderWatch, check_arguments, check_history, check_loss, check_mean, warn_of_unequal
from .loss_scale import LossScaler


class StepOutput(NamedTuple):
    """What one micro-batch, or `flush`, did.

    Attributes:
        loss: the micro-batch's mean loss as loss_fn gave it, detached, not scaled; None from `flush`.
        updated: the optimizer updated the parameters.
        skipped: a window ended without an update: a gradient was inf or nan (scaler), or its weight was 0.
        grad_norm: the norm of the window's gradient before clipping, a 0-d tensor; None inside a window, without
            clip_norm and when the weight was 0. Not finite after an overflow.
    """

    loss: torch.Tensor | None
    updated: bool
    skipped: bool
    grad_norm: torch.Tensor | None


class TrainStep:
    """Train on micro-batches as on one large batch: the update of K micro-batches is that of their union.

    The window's gradient is sum of w_i * grad(loss_i) over sum of w_i, over its micro-batches on all ranks.

    Args:
        model: called as model(*inputs). Modules wrapped in DistributedDataParallel do not reduce by themselves:
            forward and backward run in their `no_sync`, and the window is reduced here, once (their own average is
            wrong for unequal weights).
        loss_fn: called as loss_fn(model(*inputs), target); a scalar, the *mean* over the micro-batch's weight.
        optimizer: a torch.optim.Optimizer whose parameters have no gradient yet, or zeros.
        accumulate: micro-batches in a window, from 1.
        weight: called as weight(*inputs, target) before the forward pass; what the mean of the loss divides by, a
            number >= 0 (or a tensor of one element, which costs a synchronisation). None: 1, right when all
            micro-batches have the same size. `samples` and `valid_targets` are ready-made. A micro-batch of weight 0
            (whose mean loss is nan) contributes nothing.
        clip_norm: the largest 2-norm of the window's gradient over the optimizer's parameters.
        scaler: a torch.amp.GradScaler or a LossScaler.
        scheduler: stepped once per update, never after a skipped one. Its lengths count updates: see `updates_in`.
        data_parallel: a torch.distributed ProcessGroup, a 1-D DeviceMesh, or True for the default group. Every rank
            must run the same number of windows, and call `flush` as often. The parameters and buffers of the first
            rank are broadcast here. Over gloo, device tensors pass through host memory. With tensor or context
            parallelism pass the data-parallel group only.
        compile: run forward and backward, and the end of a window, as MindSpore graphs (train/compiled.py). What cannot
            be a graph runs eagerly, with a warning that says why. None: only under
            `mindspore.set_context(mode=mindspore.GRAPH_MODE)`. The parameters must be on the `mindspore` device.

    Between the calls of a window `p.grad` holds the running sum, to be read only (see accumulation.py); outside of a
    window it is None. Gradient hooks run in each backward pass and see scaled, weighted gradients. To see the final
    gradient: `optimizer.register_step_pre_hook`.

    Raises (here): TypeError, ValueError, RuntimeError for arguments that do not fit, with what to do.
    """

    def __init__(
        self,
        model: Callable,
        loss_fn: Callable,
        optimizer: torch.optim.Optimizer,
        *,
        accumulate: int = 1,
        weight: Callable | None = None,
        clip_norm: float | None = None,
        scaler: Any = None,
        scheduler: Any = None,
        data_parallel: Any = None,
        compile: bool | None = None,
    ) -> None:
        check_arguments(model, loss_fn, optimizer, accumulate, weight, clip_norm, scaler, scheduler)
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.accumulate, self.weight, self.clip_norm = int(accumulate), weight, clip_norm
        self.scaler, self.scheduler = scaler, scheduler
        self.updates = self.skips = self.reductions = 0
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        self._wrappers = [m for m in modules if isinstance(m, torch.nn.parallel.DistributedDataParallel)]
        self.group = accumulation.process_group(data_parallel, self._wrappers)
        if self.accumulate > 1 or weight is not None or self.group is not None:
            check_mean(loss_fn)
        self._window = Window(optimizer, wide=self.accumulate > 1)
        if self.group is not None:
            if any(hasattr(p, "device_mesh") for p in self._window.params):
                raise TypeError("data_parallel: expected plain parameters; received DTensors. Leave data_parallel out.")
            if not self._wrappers:
                tensors = [*model.parameters(), *model.buffers()] if modules else self._window.params
                accumulation.broadcast(tensors, self.group)
        self._window.begin()
        self._sizes: set[int] = set()
        self._warned = self.accumulate == 1 and self.group is None
        self._applying, self._watch = False, None
        self.compile, self._graphs, self._told = compile, None, False
        if compile and any(p.device.type != "mindspore" for p in self._window.params):
            raise ValueError(
                f"compile: expected parameters on the mindspore device; received some on {self._window.params[0].device}. "
                "Move the model there before the optimizer is made."
            )
        self._saved = 0  # micro-batches of the open window that a state_dict holds
        this = weakref.ref(self)

        def guard(*_):
            _guard(this())

        guard.only_guards = True
        hook = optimizer.register_step_pre_hook(guard)
        weakref.finalize(self, hook.remove)

    # -- one micro-batch ------------------------------------------------------------------------------------------

    def __call__(self, *batch: Any) -> StepOutput:
        """Forward and backward of one micro-batch, `step(*inputs, target)`; the update when the window is full.

        An exception in the forward pass leaves the window as it was. One in the backward pass empties it, since a part
        of the gradients is already added.

        Raises:
            TypeError: no target; the loss is no tensor; a gradient is sparse.
            ValueError: the loss has more than one element; the weight is negative or not finite.
            RuntimeError: the loss depends on no parameter; something else changed the gradients or the scale; a
                DataLoader's epoch ended before the first update.
        """
        if not batch:
            raise TypeError("step(*inputs, target): expected at least a target; received nothing.")
        window = self._window
        if window.count:
            window.check_untouched()
        else:
            window.begin()
            self._sizes.clear()
        if self.accumulate > 1 and not (self.updates or self.skips):
            self._check_epoch()
        weight = self._weight_of(batch)
        graphs = self._compiled() if weight > 0 and not window.outgrown_by(weight) else None
        loss = self._forward(batch, weight) if graphs is None else self._in_graph(graphs, batch, weight)
        window.count += 1
        window.weight += weight
        self._saved = 0
        if window.count < self.accumulate:
            return StepOutput(loss, False, False, None)
        return self._apply(loss)

    def _forward(self, batch, weight):
        with contextlib.ExitStack() as stack, eagerly():
            for wrapper in self._wrappers:
                stack.enter_context(wrapper.no_sync())  # around forward too: that is where DDP decides
            loss = self.loss_fn(self.model(*batch[:-1]), batch[-1])
            check_loss(loss)
            if weight > 0:
                self._backward(loss, weight)
        return loss.detach()

    def _compiled(self):
        """The graphs of this step; None if it runs eagerly."""
        if not (graph_mode() if self.compile is None else self.compile):
            return None
        from . import compiled

        if self._graphs is None or not self._graphs.fits(self):
            reason = compiled.obstacle(self)
            if reason is not None and self.compile and not self._told:
                self._told = True
                compiled.tell(f"TrainStep runs eagerly: {reason}.")
            self._graphs = compiled.Compiled(self) if reason is None else None
        return self._graphs

    def _in_graph(self, graphs, batch, weight):
        window, scale = self._window, self._window.scale
        scale = self._scale() if scale is None else scale
        if isinstance(self.scaler, torch.amp.GradScaler):
            self.scaler.scale(torch.zeros((), device=graphs.device))  # torch makes its scale tensor here
        loss = graphs.backward(batch, weight, scale, weighted=self.weight is not None and self.accumulate > 1)
        window.scale = scale
        window.collect()
        return loss

    def flush(self) -> StepOutput:
        """Apply an incomplete window: its micro-batches divided by their own weight. Nothing pending: nothing happens.

        With data_parallel it is a collective: every rank calls it, also one that has nothing pending.
        """
        pending = self._window.count or self.group is not None
        return self._apply(None) if pending else StepOutput(None, False, False, None)

    def epoch(self, loader: Iterable, *, flush: bool = True) -> Iterator:
        """Iterate over an epoch's micro-batches and flush at its end: `for x, y in step.epoch(loader): step(x, y)`.

        Leaving the loop by `break` does not flush.

        Args:
            flush: False carries an incomplete window into the next epoch.

        Raises:
            ValueError: flush is False and `accumulate` is larger than len(loader): no epoch would make an update.
            RuntimeError: the same, seen at the end of a loader without a length.
        """
        if not flush and hasattr(loader, "__len__") and len(loader) < self.accumulate:
            raise ValueError(self._too_few(f"the {len(loader)} micro-batches of an epoch"))
        return self._epoch(loader, flush)

    def _epoch(self, loader, flush):
        before = self.updates + self.skips
        yield from loader
        if flush:
            self.flush()
        elif self.updates + self.skips == before and self._window.count:
            raise RuntimeError(self._too_few(f"the micro-batches of this epoch ({self._window.count} are pending)"))

    def _too_few(self, batches):
        return (
            f"accumulate={self.accumulate} is larger than {batches}: not one update ran. "
            "Call step.flush() at the end of each epoch, loop over step.epoch(loader), or lower accumulate."
        )

    def _check_epoch(self):
        """In a plain loop over a DataLoader: did its epoch end before the first update?"""
        if self._watch is None or not self._window.count:
            self._watch = LoaderWatch()
        elif 0 < (length := self._watch.ended()) <= self._window.count:  # a prefetching thread may be ahead
            raise RuntimeError(self._too_few(f"the {length} micro-batches of an epoch"))

    def updates_in(self, batches: int) -> int:
        """Updates in an epoch of so many micro-batches, ceil(batches / accumulate): what a scheduler counts."""
        return math.ceil(batches / self.accumulate)

    @property
    def pending(self) -> int:
        """Micro-batches in the open window, 0 ... accumulate - 1."""
        return self._window.count

    def _weight_of(self, batch):
        if self.weight is None:
            if not self._warned:
                first = self._window.count == 0 and self.updates == 0
                self._warned = warn_of_unequal(self.loss_fn, batch[-1], self._sizes, look_inside=first)
            return 1.0
        weight = self.weight(*batch)
        weight = float(weight.item() if isinstance(weight, torch.Tensor) else weight)
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight(*inputs, target): expected a finite number from 0; received {weight}.")
        return weight

    def _backward(self, loss, weight):
        window, scaler = self._window, self.scaler
        if window.scale is None:
            window.scale = self._scale()
        check_history(loss)
        factor = window.factor(weight)
        if loss.dtype in HALVES:
            loss = loss.float()  # the factor and the scale need more than 8 or 11 bits
        if factor != 1.0:
            loss = loss * factor
        if scaler is not None:
            loss = scaler.scale(loss)
        try:
            with outside_autocast(loss.device.type):
                loss.backward()
            window.collect()
        except BaseException:
            window.clear(self.model)
            raise

    def _scale(self):
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    # -- the boundary ---------------------------------------------------------------------------------------------

    def _apply(self, loss):
        window = self._window
        window.check_untouched()
        count, scale = window.count, self._scale()
        if window.scale not in (None, scale):
            raise RuntimeError(
                f"The loss scale changed inside an accumulation window, from {window.scale:g} to {scale:g}: expected "
                "it to be constant. Remove scaler.update() from the loop; the step calls it once per window."
            )
        norm, updated, self._applying = None, False, True
        try:
            with outside_autocast(window.params[0].device.type):
                graphs = self._compiled()
                if graphs is not None and not graphs.can_update():
                    graphs = None
                divide = graphs is not None and self.group is None  # the graph divides by the weights, not `close`
                total = window.weight if divide else window.close(self.group, scale)
                self.reductions += self.group is not None
                if total > 0:
                    self._check_reached()
                    norm, updated = self._update(scale) if graphs is None else graphs.update(divide, scale, self.clip_norm)
        finally:
            self._applying = False
            window.clear(self.model)
        if updated:
            self.updates += 1
            if self.scheduler is not None:
                self.scheduler.step()
        elif count or total > 0:
            self.skips += 1
        else:  # a flush with nothing pending on any rank
            return StepOutput(None, False, False, None)
        return StepOutput(loss, updated, not updated, norm)

    def _check_reached(self):
        if not self._window.sums and all(p.grad is None for p in self._window.params):
            raise RuntimeError(
                "Expected the loss to reach a parameter of the optimizer; it reached none in the whole window. Was the "
                "optimizer made for another model, or before the model's parameters were replaced?"
            )

    def _update(self, scale):
        params = [p for p in self._window.params if p.grad is not None]
        scaler, norm = self.scaler, None
        if scaler is not None:
            scaler.scale(torch.zeros((), device=params[0].device))  # torch makes its scale tensor here
            scaler.unscale_(self.optimizer)
        if self.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(params, self.clip_norm).detach()
        if scaler is None:
            self.optimizer.step()
            return norm, True
        overflow = scaler.overflow if isinstance(scaler, LossScaler) else False
        scaler.step(self.optimizer)
        scaler.update()
        if not isinstance(scaler, LossScaler):
            overflow = float(scaler.get_scale()) < scale  # torch's backoff_factor is below 1
        return norm, not overflow

    def stats(self) -> dict[str, dict]:
        """What `msadapter.compile` says of each graph (train/compiled.py): {"micro": {...}, ...}; {} for an eager step."""
        return {} if self._graphs is None else self._graphs.stats()

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a run needs, besides the states of model, optimizer and scheduler, to resume inside a window.

            version, accumulate, updates, skips
            window    count, weight, unit, scale; gradients: a tensor or None per parameter of the optimizer
            scaler    scaler.state_dict(), or None
            rng       torch: the CPU generator, (N,) uint8 (dropout on the device draws from it); python: `random`

        The tensors are copies, ordinary ones on the parameters' device, for `torch.save` and
        `torch.load(weights_only=True)`. With data_parallel each rank saves its own. The position in the data is the
        loader's.
        """
        self._saved = self._window.count
        return {
            "version": VERSION,
            "accumulate": self.accumulate,
            "updates": self.updates,
            "skips": self.skips,
            "window": self._window.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "rng": {"torch": torch.get_rng_state(), "python": random.getstate()},
        }

    def load_state_dict(self, state: dict[str, Any], *, rng: bool = True) -> None:
        """Resume from `state_dict`; load the model and the optimizer first.

        Args:
            rng: False leaves the random generators as they are.

        Raises:
            KeyError: no such state.
            ValueError: an open window of another `accumulate`; other parameters; a scaler on one side only.
        """
        missing = [k for k in ("version", "accumulate", "window", "scaler", "rng") if k not in state]
        if missing:
            raise KeyError(f"Expected the state of a TrainStep; the entries {missing} are missing.")
        if state["version"] != VERSION:
            raise ValueError(f"Expected a TrainStep state of version {VERSION}; received version {state['version']}.")
        if state["window"]["count"] and state["accumulate"] != self.accumulate:
            raise ValueError(
                f"Expected accumulate={state['accumulate']}, as in the open window that was saved; received "
                f"{self.accumulate}. Resume with the same accumulate, or save after flush()."
            )
        if (state["scaler"] is None) != (self.scaler is None):
            raise ValueError(
                f"Expected {'no' if state['scaler'] is None else 'a'} scaler, as when the state was saved; received "
                f"{self.scaler}. The running sums are scaled with it."
            )
        self._window.load_state_dict(state["window"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.updates, self.skips = state["updates"], state["skips"]
        self._saved = self._window.count
        if rng:
            torch.set_rng_state(state["rng"]["torch"].cpu())
            version, words, gauss = state["rng"]["python"]
            random.setstate((version, tuple(words), gauss))

    def __enter__(self) -> "TrainStep":
        return self

    def __exit__(self, kind, *_) -> None:
        """Leaving a `with` block with micro-batches that were neither applied nor saved is a RuntimeError."""
        if kind is None:
            self._check_lost()

    def __del__(self) -> None:
        if "_saved" in self.__dict__:  # fully made
            self._check_lost()

    def _check_lost(self):
        count = self._window.count
        if count and count != self._saved:
            self._saved = count
            if not self.updates and not self.skips:
                raise RuntimeError(self._too_few(f"the {count} micro-batches of the whole run"))
            raise RuntimeError(
                f"The last {count} micro-batches were never applied. Call step.flush() at the end of each epoch, or "
                "loop over step.epoch(loader)."
            )


def _guard(step):
    if step is not None and step._window.count and not step._applying:
        raise RuntimeError(
            f"optimizer.step() was called inside an accumulation window (micro-batch {step._window.count} of "
            f"{step.accumulate}): expected TrainStep to call it. Remove it from the loop; flush() ends a window early."
        )
