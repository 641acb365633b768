"""What MSAdapter gives torch's optimizers and modules: `optimizer.parameters`, `optimizer(grads)`, ..."""

import contextlib
from collections.abc import Iterable, Iterator

import torch


class ParameterTuple(tuple):
    """The parameters of an optimizer, in the order of its groups."""

    def clone(self, prefix: str = "", init: str | float = "same") -> "ParameterTuple":
        """New tensors of the same shapes and dtypes, without grad: to sum gradients in.

        Args:
            prefix: MindSpore's names; torch's tensors have none.
            init: "same", "zeros", "ones" or a number.
        """
        value = {"zeros": 0, "ones": 1}.get(init, init) if isinstance(init, str) else init
        if isinstance(value, str) and value != "same":
            raise ValueError(f"clone: expected init as 'same', 'zeros', 'ones' or a number; received {init!r}.")
        if value == "same":
            return ParameterTuple(p.detach().clone() for p in self)
        return ParameterTuple(torch.full_like(p, value, requires_grad=False) for p in self)


class Parameters:
    """`optimizer.parameters`: a ParameterTuple. An attribute of that name that a subclass sets wins."""

    def __get__(self, optimizer, owner=None):
        if optimizer is None:
            return self
        return ParameterTuple(p for group in optimizer.param_groups for p in group["params"])


def apply(self: torch.optim.Optimizer, grads: Iterable[torch.Tensor]) -> bool:
    """`optimizer(grads)`: one step with exactly these gradients, in the order of `optimizer.parameters`. Returns True.

    Args:
        grads: a tensor, or None to leave that parameter alone, for each parameter (or for each that requires grad).
            A gradient of another floating-point dtype is converted. `p.grad` is the same before and after.

    Raises:
        ValueError: their number or a shape is another.
        TypeError: one is not a tensor.
    """
    with given_gradients(self, grads):
        self.step()
    return True


@contextlib.contextmanager
def given_gradients(optimizer: torch.optim.Optimizer, grads: Iterable) -> Iterator[None]:
    """Inside, each `p.grad` is the given gradient (the same tensor, where dtype and device fit)."""
    params = optimizer.parameters
    pairs = _pairs(params, grads)
    before = [p.grad for p in params]
    try:
        for p in params:
            p.grad = None
        for p, g in pairs:
            p.grad = g
        yield
    finally:
        for p, g in zip(params, before):
            p.grad = g


def _pairs(params, grads):
    from .convert import cast_to_adapter_tensor

    grads = cast_to_adapter_tensor(grads)
    grads = [grads] if isinstance(grads, torch.Tensor) else list(grads)
    trainable = [p for p in params if p.requires_grad]
    if len(grads) == len(params):
        pairs = list(zip(params, grads))
    elif len(grads) == len(trainable):
        pairs = list(zip(trainable, grads))
    else:
        raise ValueError(
            f"optimizer(grads): expected {len(params)} gradients, one for each of optimizer.parameters; received "
            f"{len(grads)}. Compute them with mindspore.value_and_grad(forward, None, optimizer.parameters)."
        )
    return [(p, _fitting(i, p, g)) for i, (p, g) in enumerate(pairs)]


def _fitting(i, p, g):
    if g is None:
        return None
    if not isinstance(g, torch.Tensor):
        raise TypeError(f"optimizer(grads): expected tensors; received a {type(g).__name__} as gradient {i}.")
    if g.shape != p.shape:
        raise ValueError(
            f"optimizer(grads): expected gradient {i} in its parameter's shape {tuple(p.shape)}; received "
            f"{tuple(g.shape)}. Pass the gradients in the order of optimizer.parameters."
        )
    g = g.detach() if g.requires_grad else g
    return g if g.dtype is p.dtype and g.device == p.device else g.to(p.device, p.dtype)


def trainable_params(self: torch.nn.Module, recurse: bool = True) -> list[torch.nn.Parameter]:
    """`model.trainable_params()`: the parameters that require grad, as a list."""
    return [p for p in self.parameters(recurse) if p.requires_grad]


def set_train(self: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
    """`model.set_train(mode)`: the same as `model.train(mode)`."""
    return self.train(mode)
