"""One accumulation window: its gradient, its weight, and the one reduction over the data-parallel ranks.

Micro-batch i of rank r has the mean loss L and the weight w (1, or its number of valid targets). The window's
gradient is

    g = sum_r sum_i w_ri * grad(L_ri)  /  sum_r sum_i w_ri                    -> Window.close

which is the gradient of one batch that holds all the micro-batches. In between, `p.grad` holds the running sum

    scale * sum_i (w_i / unit) * grad(L_i)                                    -> Window.factor, TrainStep._backward

The unit is the first weight of the window that is not 0 (or a later one that is over 4 times larger). It keeps the loss
of each backward pass near the mean loss: with plain token counts the backward pass in float16 would overflow long
before the full batch does. It cancels in `close`; a window of one micro-batch multiplies and divides by nothing, and is
bitwise the plain loop.

Parameters in float16 or bfloat16 are summed in float32 aside from `p.grad` (which is None between calls): a sum of K
terms in bfloat16 loses log2(K) of its 8 bits.
"""

import contextlib
import math
from collections.abc import Callable

import torch

HALVES = (torch.float16, torch.bfloat16)
VERSION = 1


class Window:
    """The state of an open window. `count` micro-batches are in it, of total weight `weight`.

    Args:
        optimizer: its parameters are the ones whose gradients are summed.
        wide: sum the gradients of 16-bit parameters in float32 (False for windows of one micro-batch).
    """

    def __init__(self, optimizer: torch.optim.Optimizer, wide: bool = True) -> None:
        self.optimizer, self.wide = optimizer, wide
        self._clear()

    def _clear(self):
        self.count, self.weight = 0, 0.0
        self.unit: float | None = None
        self.scale: float | None = None  # the loss scale of the window's first backward pass
        self.sums: dict[torch.Tensor, torch.Tensor] = {}  # 16-bit parameter -> float32 sum
        self.seen: list = []

    @property
    def params(self) -> list[torch.nn.Parameter]:
        """The optimizer's parameters, in its order (that of `optimizer.state_dict()`)."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def begin(self) -> None:
        """Before the first micro-batch: no gradient may be there, or only zeros, which become None.

        Raises:
            RuntimeError: another backward pass left gradients that would leak into the window.
        """
        for i, p in enumerate(self.params):
            if p.grad is not None:
                if p.grad.layout != torch.strided or bool(p.grad.count_nonzero()):
                    raise RuntimeError(
                        f"Expected no gradients at the start of an accumulation window; received one on parameter {i} "
                        f"of the optimizer, of shape {tuple(p.shape)}, from a backward pass outside of the step. "
                        "Call optimizer.zero_grad() after that pass, before the step."
                    )
                p.grad = None

    def outgrown_by(self, weight: float) -> bool:
        """Whether `factor(weight)` would give the window another unit."""
        return self.unit is not None and weight > 4 * self.unit

    def factor(self, weight: float) -> float:
        """What multiplies the mean loss of a micro-batch of this weight (> 0): w_i / unit, at most 4."""
        if self.unit is None:
            self.unit = weight
        elif self.outgrown_by(weight):
            sums = [*self.sums.values(), *(p.grad for p in self.params if p.grad is not None)]
            if sums:
                torch._foreach_mul_(sums, self.unit / weight)
            self.unit = weight
        return weight / self.unit

    def collect(self) -> None:
        """After a backward pass: refuse sparse gradients, move 16-bit ones to float32, remember what is there."""
        params = self.params
        for i, p in enumerate(params):
            if p.grad is None:
                continue
            if p.grad.layout != torch.strided:
                raise TypeError(
                    f"Expected dense gradients; received a sparse one on parameter {i} of the optimizer, of shape "
                    f"{tuple(p.shape)}. Use nn.Embedding(..., sparse=False)."
                )
            if self.wide and p.dtype in HALVES:
                g = p.grad.detach().float()
                self.sums[p] = self.sums[p].add_(g) if p in self.sums else g
                p.grad = None
        self.seen = [(p.grad, None if p.grad is None else p.grad._version) for p in params]

    def check_untouched(self) -> None:
        """Before the next micro-batch and at the boundary: nobody changed the running sums.

        Raises:
            RuntimeError: zero_grad(), a clip, an unscale_() or another backward pass happened inside the window.
        """
        for p, (grad, version) in zip(self.params, self.seen):
            if p.grad is not grad or (grad is not None and grad._version != version):
                raise RuntimeError(
                    f"The gradients changed inside an accumulation window (micro-batch {self.count}): expected them as "
                    "the step left them; received other ones on a parameter of shape "
                    f"{tuple(p.shape)}. TrainStep calls zero_grad(), backward(), unscale_(), clip_grad_norm_() and "
                    "optimizer.step() itself, at the right time: remove these calls from the loop (clip_norm= and "
                    "scaler= ask for clipping and scaling)."
                )

    def close(self, group=None, scale: float = 1.0) -> float:
        """Make `p.grad` the window's gradient times `scale`; returns the total weight, 0.0 when there is none.

        Parameters that no loss reached, on any rank, keep `p.grad` None.

        Args:
            group: the process group of the data-parallel ranks: one all-reduce. None: this process alone.
            scale: the loss scale, the same on each rank.
        """
        sums = [self.sums.get(p, p.grad) for p in self.params]
        if group is not None:
            return self._reduce(sums, group, scale)
        if self.weight > 0:
            factor = self.unit / self.weight
            own = [p.grad for p in self.params if p.grad is not None]
            if factor != 1.0 and own:
                torch._foreach_mul_(own, factor)
            for p, total in self.sums.items():
                p.grad = (total * factor).to(p.dtype)
        return self.weight

    def _reduce(self, sums, group, scale):
        """One all-reduce of (all gradients, which of them exist, sum of weights, log2 of the scale)."""
        params, unit = self.params, self.unit or 1.0
        dtype = torch.float64 if any(p.dtype == torch.float64 for p in params) else torch.float32
        device = params[0].device
        flat = [
            p.detach().new_zeros(p.numel(), dtype=dtype, device=device)
            if s is None
            else s.detach().to(device, dtype).reshape(-1) * unit
            for p, s in zip(params, sums)
        ]
        log_scale = math.log2(scale) if scale > 0 else -1000.0  # torch's scale has no floor
        facts = [float(s is not None) for s in sums] + [self.weight, log_scale]
        flat = torch.cat([*flat, torch.tensor(facts, dtype=dtype, device=device)])
        flat = all_reduce(flat, group)
        *exists, total, scales = flat[flat.numel() - len(facts) :].tolist()
        ranks = torch.distributed.get_world_size(group)
        if abs(scales - ranks * log_scale) > 1e-3:
            raise RuntimeError(
                f"Expected the same loss scale on each of the {ranks} ranks; received {scale:g} here and another "
                "elsewhere. Make the scalers alike, and load the same scaler state on each rank."
            )
        if total > 0:
            parts = (flat[: flat.numel() - len(facts)] / total).split([p.numel() for p in params])
            for p, part, there in zip(params, parts, exists):
                p.grad = part.view(p.shape).to(p.device, p.dtype, copy=True) if there else None
        return total

    def clear(self, model: torch.nn.Module | None = None) -> None:
        """Forget the window: the optimizer's parameters and the model's have no gradient, the next window may begin."""
        for p in self.params:
            p.grad = None
        if isinstance(model, torch.nn.Module):
            for p in model.parameters():
                p.grad = None
        self._clear()

    def state_dict(self) -> dict:
        """Copies of the running sums (a tensor per parameter of the optimizer, or None), and the numbers."""
        return {
            "count": self.count,
            "weight": self.weight,
            "unit": self.unit,
            "scale": self.scale,
            "gradients": [None if g is None else g.detach().clone() for g in (self.sums.get(p, p.grad) for p in self.params)],
        }

    def load_state_dict(self, state: dict) -> None:
        """Take the window of `state_dict`; the tensors may come from another device.

        Raises:
            ValueError: another number of parameters, or another shape.
        """
        params, gradients = self.params, state["gradients"]
        shapes = [None if g is None else tuple(g.shape) for g in gradients]
        if len(gradients) != len(params) or any(s not in (None, tuple(p.shape)) for p, s in zip(params, shapes)):
            raise ValueError(
                f"Expected the gradients of {len(params)} parameters of shapes {[tuple(p.shape) for p in params]}; "
                f"received {shapes}. Load the state into a step over the same model and optimizer."
            )
        self.clear()
        for p, g in zip(params, gradients):
            if g is None:
                continue
            if self.wide and p.dtype in HALVES:
                self.sums[p] = g.detach().to(p.device, torch.float32, copy=True)
            else:
                p.grad = g.detach().to(p.device, p.dtype, copy=True)
        self.count, self.weight = int(state["count"]), float(state["weight"])
        self.unit, self.scale = state["unit"], state["scale"]
        self.seen = [(p.grad, None if p.grad is None else p.grad._version) for p in params]


def outside_autocast(device: str):
    """Outside of the user's `with torch.autocast` around the step: that is for the forward pass only."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


# -- data parallel ------------------------------------------------------------------------------------------------


def process_group(data_parallel, wrappers):
    """The process group that `data_parallel` names: None, True (the default group), a ProcessGroup, a 1-D DeviceMesh.

    A model that is, or holds, DistributedDataParallel brings its own group.

    Raises:
        RuntimeError: torch.distributed is not initialised.
        ValueError: the wrappers have different groups, or another one than `data_parallel`.
        TypeError: none of these.
    """
    groups = [w.process_group for w in wrappers]
    if any(g is not groups[0] for g in groups):
        raise ValueError("Expected one process group for all DistributedDataParallel modules; received several.")
    if data_parallel is None or data_parallel is False:
        return groups[0] if groups else None
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "data_parallel: expected torch.distributed to be initialised; it is not. Call "
            "torch.distributed.init_process_group(...) first, in a program that torchrun or msrun starts."
        )
    group = dist.group.WORLD if data_parallel is True else data_parallel
    group = group.get_group() if hasattr(group, "get_group") else group
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"data_parallel: expected True, a ProcessGroup, a 1-D DeviceMesh; received {data_parallel!r}.")
    if groups and groups[0] is not group:
        raise ValueError("data_parallel names another process group than DistributedDataParallel: leave it out.")
    return group


def _on_group(tensor, group, collective):
    """Run an in-place collective; through host memory when the group (gloo) has no backend for the tensor's device."""
    try:
        group._get_backend(tensor.device)
    except RuntimeError:
        host = tensor.detach().cpu()
        collective(host)
        return host.to(tensor.device)
    collective(tensor)
    return tensor


def all_reduce(flat: torch.Tensor, group) -> torch.Tensor:
    """The sum of `flat`, (N,), over the ranks of the group."""
    return _on_group(flat, group, lambda t: torch.distributed.all_reduce(t, group=group))


def broadcast(tensors, group) -> None:
    """Give every rank the values of the group's first rank (as DistributedDataParallel does when it is made)."""
    source = torch.distributed.get_global_rank(group, 0)
    with torch.no_grad():
        for t in tensors:
            t.copy_(_on_group(t.detach().clone(), group, lambda x: torch.distributed.broadcast(x, source, group=group)))


# -- weights ------------------------------------------------------------------------------------------------------


def samples(*batch) -> int:
    """The weight for mean losses over the batch dimension when micro-batches differ in size: target.shape[0]."""
    return batch[-1].shape[0]


def valid_targets(ignore_index: int = -100, class_weights: torch.Tensor | None = None) -> Callable[..., float]:
    """The weight for `nn.CrossEntropyLoss` and `nn.NLLLoss`: what their mean divides by.

    That is the number of targets other than ignore_index, or the sum of the class weights of these targets. Label
    smoothing divides by the same number.

    Args:
        ignore_index: as in the loss.
        class_weights: (C,), the loss's `weight`.

    Returns:
        A function of (*inputs, target), for `TrainStep(weight=...)`; target holds class indices, of any shape.
    """

    def weight(*batch):
        target = batch[-1]
        valid = target != ignore_index
        if class_weights is None:
            return int(valid.sum())
        chosen = class_weights.detach().to(target.device)[torch.where(valid, target, torch.zeros_like(target))]
        return float((chosen.double() * valid).sum())

    return weight
