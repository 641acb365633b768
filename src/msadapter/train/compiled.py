"""The parts of a `TrainStep` as graphs: a micro-batch's forward and backward pass, and the end of a window.

They are cut where the window's rules look at numbers on the host (weights, the unit, counts). What such a number does to
tensors is handed over as a tensor, so that a new count of tokens is no new graph. `msadapter.compile` decides what can be a
graph; a part that cannot runs as it is written here, op by op, and does the same as the eager step:

    micro      loss, times w_i / unit, times the loss scale; backward; 16-bit gradients into their float32 sums
    unscale    with a scaler: divide by the weights, unscale
    boundary   divide by the weights (without a scaler), clip, update unless there was an overflow, clear

Whether there was an overflow is read between the last two, so that no graph depends on it.
"""

import warnings

import torch

from ..graph.switches import eagerly
from .accumulation import HALVES, outside_autocast
from .checks import check_history, check_loss
from .loss_scale import LossScaler, by_kind, unscale

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.float64: torch.float64}


class Compiled:
    """The graphs of one TrainStep, as long as `fits(step)`."""

    def __init__(self, step):
        from .. import compile

        window = step._window
        self._made_of = _parts(step)
        self.device = window.params[0].device
        self._window, self._scaler, self._optimizer = window, step.scaler, step.optimizer
        self._wide = [p for p in window.params if window.wide and p.dtype in HALVES]
        self._loss_dtype = torch.float64  # until the first loss is seen: holds every number
        self._dtypes = {_REAL.get(p.dtype, torch.float32) for p in window.params}
        self._told = False
        self.micro = compile(_micro(step.model, step.loss_fn, step.scaler, window, self._wide))
        self.unscale = compile(_unscale(step.optimizer, self._wide))
        self.boundary = compile(_boundary(step.model, step.optimizer, self._wide))

    def fits(self, step):
        """Whether the step is still made of the same objects."""
        parts = _parts(step)
        return len(parts) == len(self._made_of) and all(a is b for a, b in zip(parts, self._made_of))

    def backward(self, batch, weight, scale, weighted):
        """Forward and backward of one micro-batch of weight > 0; the detached loss.

        scale: the loss scale; weighted: whether the weights of micro-batches can differ.
        """
        window = self._window
        factor = weight / (window.unit or weight)
        numbers = [
            torch.tensor(factor, dtype=self._loss_dtype, device=self.device) if weighted else None,
            torch.tensor(scale, dtype=self._loss_dtype, device=self.device) if _ours(self._scaler) else None,
        ]
        first = not window.sums and all(p.grad is None for p in window.params)
        torch.clear_autocast_cache()  # a weight that was cast for an earlier call is no part of this one
        with eagerly():
            loss, sums = self.micro(batch, first, *numbers, [window.sums.get(p) for p in self._wide])
        self._loss_dtype = torch.float64 if loss.dtype is torch.float64 else torch.float32
        window.unit = window.unit or weight
        window.sums = {p: s for p, s in zip(self._wide, sums) if s is not None}
        return loss

    def can_update(self):
        """Whether the end of a window may be a graph now."""
        if _strangers(self._optimizer):
            if not self._told:
                self._told = True
                tell("TrainStep's update runs eagerly: the optimizer has step hooks, which may look at gradients.")
            return False
        return _ready(self._scaler, self._optimizer)

    def update(self, divide, scale, clip_norm):
        """The end of a window. (norm, whether the optimizer updated).

        divide: whether the gradients have yet to be divided by the weights.
        """
        window, scaler, optimizer = self._window, self._scaler, self._optimizer
        factor = window.unit / window.weight if divide and (window.wide or window.unit != window.weight) else None
        sums = [window.sums.get(p) for p in self._wide] if divide else [None] * len(self._wide)
        factor, overflow, enabled = self._number(factor), False, scaler is not None and scaler.is_enabled()
        with eagerly():
            if enabled:
                numbers = [self._number(scale), self._number(1.0 / scale)] if _ours(scaler) else [None, None]
                grads, found = self.unscale(factor, *numbers, sums, self._grads())
                for p, g in zip(window.params, grads):
                    p.grad = g
                if not _ours(scaler):
                    scaler.unscale_(optimizer)
                    found = scaler._found_inf_per_device(optimizer).values()
                overflow = any(bool(f) for f in found)
                factor, sums = None, [None] * len(sums)
            norm = self.boundary(factor, clip_norm, overflow, sums, self._grads())
        if _ours(scaler) and enabled:
            scaler._found, scaler._unscaled = [overflow], True
        if enabled:
            scaler.update()
        return norm, not overflow

    def _grads(self):
        return [p.grad for p in self._window.params]

    def stats(self):
        """{which graph: its `stats()`}, of those that were called."""
        steps = {"micro": self.micro, "unscale": self.unscale, "boundary": self.boundary}
        found = {name: step.stats() for name, step in steps.items()}
        return {name: counts for name, counts in found.items() if counts["hits"] or counts["eager"]}

    def _number(self, value):
        """{dtype: the number as a tensor of it}, so that its product with a gradient is rounded once."""
        return None if value is None else {d: torch.tensor(value, dtype=d, device=self.device) for d in self._dtypes}


def tell(text):
    from ..graph.compile import CaptureWarning

    warnings.warn(text, CaptureWarning, stacklevel=5)


def obstacle(step):
    """Why no graph can do this step's work; None if one can."""
    if any(p.device.type != "mindspore" for p in step._window.params):
        return "there are parameters on another device"
    if step._wrappers:
        return "DistributedDataParallel takes part in its backward pass. Pass data_parallel instead"
    if not _known(step.scaler):
        return f"the scaler is a {type(step.scaler).__name__}, which may do something else than a LossScaler or GradScaler"
    return None


def _parts(step):
    return [step.model, step.loss_fn, step.optimizer, step.scaler, *step._window.params]


def _ours(scaler):
    return type(scaler) is LossScaler


def _known(scaler):
    return scaler is None or _ours(scaler) or type(scaler) in (torch.amp.GradScaler, torch.cuda.amp.GradScaler)


def _ready(scaler, optimizer):
    """Whether nobody used the scaler since its last update: its own errors come from the eager step."""
    if _ours(scaler):
        return not (scaler._unscaled or scaler._stepped)
    return scaler is None or id(optimizer) not in getattr(scaler, "_per_optimizer_states", ())


def _strangers(optimizer):
    """Step hooks of others than TrainStep: they would be called without the gradients' values."""
    from torch.optim import optimizer as module

    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    hooks += [*module._global_optimizer_pre_hooks.values(), *module._global_optimizer_post_hooks.values()]
    return any(not getattr(hook, "only_guards", False) for hook in hooks)


def _micro(model, loss_fn, scaler, window, wide):
    def micro(batch, first, factor, scale, sums):
        loss = loss_fn(model(*batch[:-1]), batch[-1])
        check_loss(loss)
        check_history(loss)
        total = loss.float() if loss.dtype in HALVES else loss
        if factor is not None:
            total = total * factor.to(total.dtype)
        if scale is not None and scaler.is_enabled():
            total = total * scale.to(total.dtype)
        elif scaler is not None and scale is None:
            total = scaler.scale(total)
        try:
            with outside_autocast(total.device.type):
                total.backward()
            for i, p in enumerate(wide):
                if p.grad is not None:
                    g = p.grad.detach().float()
                    sums[i] = g if sums[i] is None else sums[i].add_(g)
                    p.grad = None
        except BaseException:
            window.clear(model)
            raise
        torch.clear_autocast_cache()
        return loss.detach(), sums

    micro.__name__ = "TrainStep's forward and backward pass"
    return micro


def _divided(params, wide, factor, sums, grads):
    """The window's gradients, one for each parameter or None.

    `grads` are those of the parameters, as arguments: each window has other tensors.
    """
    if factor is not None:
        grads = [None if g is None else g * factor[_REAL.get(p.dtype, torch.float32)] for p, g in zip(params, grads)]
        own = {id(p): (total * factor[torch.float32]).to(p.dtype) for p, total in zip(wide, sums) if total is not None}
        grads = [own.get(id(p), g) for p, g in zip(params, grads)]
    return grads


def _unscale(optimizer, wide):
    def function(factor, scale, inverse, sums, grads):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        with torch.no_grad():
            grads = _divided(params, wide, factor, sums, grads)
            kinds = by_kind([g for g in grads if g is not None]) if scale is not None else ()
            return grads, [unscale(g, scale, inverse) for g in kinds]

    function.__name__ = "TrainStep's unscaling"
    return function


def _boundary(model, optimizer, wide):
    def boundary(factor, clip_norm, overflow, sums, grads):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        with torch.no_grad():
            for p, g in zip(params, _divided(params, wide, factor, sums, grads)):
                p.grad = g
        mine, norm = [p for p in params if p.grad is not None], None
        if clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(mine, clip_norm).detach()
        if not overflow:
            optimizer.step()
        for p in [*params, *(model.parameters() if isinstance(model, torch.nn.Module) else ())]:
            p.grad = None
        return norm

    boundary.__name__ = "TrainStep's update"
    return boundary
