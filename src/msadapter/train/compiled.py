"""The two halves of a `TrainStep` as graphs: a micro-batch's forward and backward pass, and the end of a window.

They are cut where the window's rules look at numbers on the host (weights, the unit, counts). What such a number does to
tensors is handed over as a tensor, so that a new count of tokens is no new graph. `msadapter.compile` decides what can be a
graph; a half that cannot runs as it is written here, op by op, and does the same as the eager step:

    micro      loss, times w_i / unit, times the loss scale; backward; 16-bit gradients into their float32 sums
    boundary   divide by the weights, unscale, clip, update unless there was an overflow, clear

Whether there was an overflow is read back inside `boundary`: the graph is the one without (or with) an update, and a window
that turns out otherwise runs eagerly (graph/replay.py).
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
        self.boundary = compile(_boundary(step.model, step.optimizer, step.scaler, self._wide))

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
        window, scaler = self._window, self._scaler
        factor = window.unit / window.weight if divide and (window.wide or window.unit != window.weight) else None
        sums = [window.sums.get(p) for p in self._wide] if divide else [None] * len(self._wide)
        numbers = [self._number(factor)]
        numbers += [self._number(scale), self._number(1.0 / scale)] if _ours(scaler) else [None, None]
        with eagerly():
            norm, overflow = self.boundary(*numbers, clip_norm, sums, [p.grad for p in window.params])
        if _ours(scaler) and scaler.is_enabled():
            scaler._found, scaler._unscaled = [overflow], True
            scaler.update()
        elif scaler is not None and not _ours(scaler):
            overflow = float(scaler.get_scale()) < scale
        return norm, not overflow

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


def _boundary(model, optimizer, scaler, wide):
    def boundary(factor, scale, inverse, clip_norm, sums, grads):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for p, g in zip(params, grads):  # each is p.grad, and an argument too: it is another tensor in each window
            if g is not None and factor is not None:
                p.grad = g * factor[_REAL.get(p.dtype, torch.float32)]
        for p, total in zip(wide, sums):
            if total is not None:
                p.grad = (total * factor[torch.float32]).to(p.dtype)
        mine = [p for p in params if p.grad is not None]
        norm, overflow, ours = None, False, scale is not None and scaler.is_enabled()
        if ours:
            with torch.no_grad():
                found = [unscale(g, scale, inverse) for g in by_kind([p.grad for p in mine])]
        elif scaler is not None and scale is None:
            scaler.unscale_(optimizer)
        if clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(mine, clip_norm).detach()
        if ours:
            overflow = any(bool(f) for f in found)
        if scaler is None or scale is not None:
            if not overflow:
                optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        for p in [*params, *(model.parameters() if isinstance(model, torch.nn.Module) else ())]:
            p.grad = None
        return norm, overflow

    boundary.__name__ = "TrainStep's update"
    return boundary
