"""Loss scaling: MindSpore's scalers on torch tensors, and MSAdapter's forms of `torch.amp.GradScaler`."""

import torch

from .optimizer import given_gradients
from .wrap import mapped


def all_finite(inputs):
    """`mindspore.amp.all_finite`: whether no tensor holds an inf or nan, as a bool tensor of shape ()."""
    found: list = []
    mapped(lambda x: found.append(torch.isfinite(x).all()) if isinstance(x, torch.Tensor) else None, inputs)
    return torch.stack([f.to(found[0].device) for f in found]).all()


def scale(self, inputs):
    """`scaler.scale(x)`: x times the scale, in x's dtype. Tensors, or a tuple or list of them; gradients pass."""
    factor = self.scale_value.asnumpy().item()
    return mapped(lambda x: x * factor if isinstance(x, torch.Tensor) else x, inputs)


def unscale(self, inputs):
    """`scaler.unscale(grads)`: divided by the scale, each in its dtype."""
    factor = 1.0 / self.scale_value.asnumpy().item()
    return mapped(lambda x: x * factor if isinstance(x, torch.Tensor) else x, inputs)


def adjust_dynamic(self, grads_finite):
    """`DynamicLossScaler.adjust(finite)`: the scale after an update, by MindSpore's own rule and state."""
    import mindspore

    return self.adjust(mindspore.Tensor(bool(grads_finite)))


def _original_first(function):
    function.takes_original = True
    return function


class GradScaler:
    """The methods that table.py puts on `torch.amp.GradScaler`. With plain torch arguments nothing changes."""

    @_original_first
    def init(original, self, device="cuda", *args, **kwargs):
        """A scaler for 'cuda' where there is none (which torch would disable) is one for the mindspore device."""
        if device == "cuda" and not torch.cuda.is_available():
            device = "mindspore"
        original(self, device, *args, **kwargs)

    @_original_first
    def unscale_(original, self, optimizer, grads=None):
        """`scaler.unscale_(optimizer, grads)`: divides the gradients by the scale, in place; notes an overflow."""
        if grads is None:
            return original(self, optimizer)
        with given_gradients(optimizer, grads):
            original(self, optimizer)
            _write_back(optimizer, grads)

    def unscale(self, optimizer, grads):
        """`grads = scaler.unscale(optimizer, grads)`: the same, into new tensors."""
        grads = tuple(g if g is None else g.clone() for g in grads)
        self.unscale_(optimizer, grads)
        return grads

    @_original_first
    def step(original, self, optimizer, *args, **kwargs):
        """`scaler.step(optimizer, grads)`: `optimizer(grads)`, unscaled, unless a gradient is inf or nan."""
        if len(args) == 1 and isinstance(args[0], (tuple, list)) and not kwargs:
            with given_gradients(optimizer, args[0]):
                return original(self, optimizer)
        return original(self, optimizer, *args, **kwargs)


def _write_back(optimizer, grads):
    """Gradients that had to be converted to their parameter's dtype or device are unscaled too."""
    params = optimizer.parameters
    if len(grads) != len(params):
        params = [p for p in params if p.requires_grad]
    for p, g in zip(params, grads):
        if g is not None and g.requires_grad:
            g = g.detach()
        if g is not None and p.grad is not g and p.grad is not None:
            g.copy_(p.grad)
