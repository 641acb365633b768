"""`mindspore.value_and_grad`, `mindspore.grad` and `ops.GradOperation` of functions over torch tensors and modules.

The gradients are those of torch.autograd, in the structure that MindSpore documents; no `p.grad` is read or written.

* one position (an int, or a tuple of one): a tensor. Several: a tuple.
* weights: a tuple in their order, or a tensor for a single Parameter. A weight that the outputs do not depend on, or
  that does not require grad, gets zeros, as in MindSpore.
* both: (of the inputs, of the weights).

Values come back detached, except inside another derivative: `grad(grad(f))` is the second one.

Source: mindspore/ops/function/grad/grad_func.py and ops/composite/base.py (MindSpore 2.10).
"""

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .convert import cast_to_adapter_tensor
from .wrap import has_torch

_running = threading.local()  # .depth: how many derivatives are being computed in this thread

ALL = "all"  # the positions of all inputs that are tensors


class _Wanted(NamedTuple):
    """What to differentiate, and what to return."""

    fn: Callable
    positions: Any  # tuple of ints, ALL, or None
    weights: Any  # a Parameter, a tuple of them, or None
    has_aux: bool = False
    with_value: bool = False
    return_ids: bool = False
    sens_param: bool = False
    tuple_of_one: bool = False  # a single input's gradient is a tuple too (GradOperation(get_all=True))


def value_and_grad(original, fn, grad_position=0, weights=None, has_aux=False, return_ids=False, sens_param=False):
    """`mindspore.value_and_grad`: a function that returns (outputs of fn, gradients)."""
    arguments = (fn, grad_position, weights, has_aux, return_ids, sens_param)
    return _choose(original, arguments, with_value=True)


def grad(original, fn, grad_position=0, weights=None, has_aux=False, return_ids=False, sens_param=False):
    """`mindspore.grad`: a function that returns the gradients, or (gradients, auxiliary outputs)."""
    arguments = (fn, grad_position, weights, has_aux, return_ids, sens_param)
    return _choose(original, arguments, with_value=False)


def _choose(original, arguments, with_value):
    fn, position, weights, has_aux, return_ids, sens_param = arguments
    weights = _listed(weights)
    kind = _kind(fn, weights)
    native = None if kind == "torch" else original(fn, position, weights, has_aux, return_ids, sens_param)
    if kind == "mindspore":
        return native
    if position is None and weights is None:
        raise ValueError(
            "Expected grad_position, weights or both; received None for both. Pass weights=optimizer.parameters."
        )
    wanted = _Wanted(fn, _positions(position), weights, has_aux, with_value, return_ids, sens_param)
    return _function(_checked(wanted), native)


def grad_operation(original, self, fn, weights=None):
    """`mindspore.ops.GradOperation(get_all, get_by_list, sens_param)(fn, weights)`."""
    weights = _listed(weights)
    kind = _kind(fn, weights)
    native = None if kind == "torch" else original(self, fn, weights)
    if kind == "mindspore":
        return native
    if self.get_by_list and weights is None:
        raise ValueError(
            "Expected weights for GradOperation(get_by_list=True); received none. "
            "Pass them: grad_op(fn, optimizer.parameters)."
        )
    positions = ALL if self.get_all else (None if self.get_by_list else (0,))
    wanted = _Wanted(
        fn, positions, weights if self.get_by_list else None, sens_param=self.sens_param, tuple_of_one=self.get_all
    )
    return _function(_checked(wanted), native)


# ----------------------------------------------------------------------------------------------------- which one it is


def _listed(weights):
    """Weights that can be looked at more than once: `model.parameters()` is a generator."""
    return tuple(weights) if hasattr(weights, "__next__") else weights


def _kind(fn, weights):
    """'torch' or 'mindspore', or None where the arguments of the call will tell."""
    owner = getattr(fn, "__self__", fn)  # net.forward is net's
    if has_torch(weights) or isinstance(owner, torch.nn.Module):
        return "torch"
    return "mindspore" if weights is not None or not _is_plain(owner) else None


def _is_plain(fn):
    """Whether fn may be a function over torch objects: everything but MindSpore's own."""
    return not type(fn).__module__.startswith("mindspore.") and not _is_cell(fn)


def _is_cell(fn):
    from mindspore import nn

    return isinstance(fn, nn.Cell)


def _function(wanted, native):
    """The gradient function; with `native`, MindSpore's own, for calls without torch objects."""
    if native is None:

        @functools.wraps(wanted.fn, updated=())
        def gradient_function(*args, **kwargs):
            return _differentiate(wanted, args, kwargs)

        del gradient_function.__wrapped__
    else:

        @functools.wraps(native)
        def gradient_function(*args, **kwargs):
            return _differentiate(wanted, args, kwargs) if has_torch(args, kwargs) else native(*args, **kwargs)

    return gradient_function


def _positions(position):
    if position is None:
        return None
    positions = position if isinstance(position, tuple) else (position,)
    if not all(isinstance(i, int) and i >= 0 for i in positions):
        raise TypeError(
            f"Expected grad_position as None, an int >= 0 or a tuple of them; received {position!r}. "
            "To differentiate weights only, pass None."
        )
    if len(set(positions)) < len(positions):
        raise ValueError(f"Expected different positions in grad_position; received {position!r}.")
    return positions


def _checked(wanted):
    weights = wanted.weights
    for w in weights if isinstance(weights, (tuple, list)) else () if weights is None else (weights,):
        if not isinstance(w, torch.Tensor):
            raise TypeError(
                f"Expected weights as torch Parameters; received a {type(w).__name__} among them. "
                "Pass optimizer.parameters or model.trainable_params()."
            )
    if wanted.return_ids and weights is not None:
        raise ValueError(
            "Expected return_ids=False with torch weights, which have no names; received True. "
            "The gradients are in the order of the weights: zip(weights, grads)."
        )
    return wanted


# ----------------------------------------------------------------------------------------------------- differentiating


def _differentiate(wanted, args, kwargs):
    args, kwargs = cast_to_adapter_tensor((list(args), dict(kwargs)))  # batches of mindspore.dataset
    sens = _take_sens(args, kwargs) if wanted.sens_param else None
    nested = getattr(_running, "depth", 0) > 0
    positions = wanted.positions
    if positions == ALL:
        positions = tuple(i for i, x in enumerate(args) if isinstance(x, torch.Tensor))
    inputs = []
    for i in positions or ():
        args[i] = _as_input(args, i, nested, wanted.positions == ALL)
        inputs.append(args[i])
    weights = wanted.weights
    all_weights = [] if weights is None else list(weights) if isinstance(weights, (tuple, list)) else [weights]

    _running.depth = getattr(_running, "depth", 0) + 1
    try:
        with torch.enable_grad():
            outputs = wanted.fn(*args, **kwargs)
            differentiated = _first(outputs) if wanted.has_aux else outputs
            grads = _gradients(differentiated, inputs + all_weights, sens, nested)
    finally:
        _running.depth -= 1
    if not nested:
        outputs = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) and x.requires_grad else x, outputs)
    result = _arranged(wanted, positions, grads[: len(inputs)], grads[len(inputs) :])
    if wanted.with_value:
        return outputs, result
    return (result, tuple(outputs[1:])) if wanted.has_aux else result


def _take_sens(args, kwargs):
    if "sens" in kwargs:
        return kwargs.pop("sens")
    if not args:
        raise ValueError("Expected the sensitivity as last argument (sens_param=True); received no arguments.")
    return args.pop()


def _as_input(args, i, nested, lenient):
    """Input i as a tensor whose gradient can be asked for: an alias, in an outer derivative's graph if there is one."""
    if i >= len(args):
        raise ValueError(
            f"Expected an input at grad_position {i}; received {len(args)} positional arguments. "
            "Arguments given by name cannot be differentiated."
        )
    x = args[i]
    if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
        if lenient:
            return x
        what = f"a tensor of {x.dtype}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        raise TypeError(f"Expected a floating-point tensor at grad_position {i}; received {what}.")
    return x.view_as(x) if nested and x.requires_grad else x.detach().requires_grad_()


def _first(outputs):
    if not isinstance(outputs, (tuple, list)) or len(outputs) < 2:
        raise ValueError(
            f"Expected the function to return (loss, other outputs...) with has_aux=True; received "
            f"{type(outputs).__name__ if not isinstance(outputs, (tuple, list)) else f'{len(outputs)} outputs'}."
        )
    return outputs[0]


def _gradients(outputs, targets, sens, create_graph):
    """d(sum of sens * outputs) / d(each target); zeros where nothing depends on it. sens: default ones."""
    outputs = [y for y in tree_leaves(outputs)]
    seeds = [torch.ones_like(y) if isinstance(y, torch.Tensor) else None for y in outputs]
    if sens is not None:
        given = tree_leaves(sens)
        if len(given) != len(outputs):
            raise ValueError(f"Expected one sensitivity for each of {len(outputs)} outputs; received {len(given)}.")
        seeds = [torch.as_tensor(s, dtype=y.dtype, device=y.device).expand_as(y) for s, y in zip(given, outputs)]
    pairs = [(y, s) for y, s in zip(outputs, seeds) if isinstance(y, torch.Tensor) and y.requires_grad]
    wanted = [t for t in targets if t.requires_grad]
    if not pairs and not create_graph:
        warnings.warn(
            "None of the outputs depends on an input or weight that is differentiated: all gradients are zero. Was the "
            "loss detached, or computed by NumPy?",
            RuntimeWarning,
            stacklevel=5,
        )
    found = iter(())
    if pairs and wanted:
        found = iter(
            torch.autograd.grad(
                [y for y, _ in pairs], wanted, [s for _, s in pairs], create_graph=create_graph, allow_unused=True,
                materialize_grads=True,
            )
        )  # fmt: skip
    elif wanted:
        found = map(torch.zeros_like, wanted)
    return [next(found) if t.requires_grad else torch.zeros_like(t) for t in targets]


def _arranged(wanted, positions, of_inputs, of_weights):
    if wanted.return_ids:
        of_inputs = [(i, g) for i, g in zip(positions, of_inputs)]
    inputs = of_inputs[0] if len(of_inputs) == 1 and not wanted.tuple_of_one else tuple(of_inputs)
    if wanted.weights is None:
        return inputs
    weights = tuple(of_weights) if isinstance(wanted.weights, (tuple, list)) else of_weights[0]
    return weights if positions is None else (inputs, weights)
