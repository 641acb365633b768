"""A Module with a method `bprop` is differentiated by it, as a MindSpore Cell is.

    class Double(nn.Module):
        def forward(self, x):
            return x * 2

        def bprop(self, x, out, grad_output):       # or bprop(self, *inputs, out, grad_output)
            return (grad_output * 2,)               # one result for each input; None: no gradient

`out` is what forward returned (several outputs: a tuple), `grad_output` its gradient. The module's own parameters and its
keyword-only inputs get no gradient. It applies to classes that are made after `import msadapter.pytorch`.
"""

import functools
import inspect
import weakref

import torch

_wrapped: weakref.WeakSet = weakref.WeakSet()  # the functions that _with_bprop made


def init_subclass(cls, **kwargs):
    super(torch.nn.Module, cls).__init_subclass__(**kwargs)
    if ("bprop" in cls.__dict__ or "forward" in cls.__dict__) and callable(getattr(cls, "bprop", None)):
        if cls.forward not in _wrapped:
            cls.forward = _with_bprop(cls.forward)


init_subclass = classmethod(init_subclass)


def _with_bprop(forward):
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def function(self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs)
        inputs = bound.args[1:]
        return _Bprop.apply(self, forward, bound.kwargs, *inputs)

    _wrapped.add(function)
    return function


class _Bprop(torch.autograd.Function):
    """apply(module, forward, keyword arguments, *inputs): forward's outputs, with module.bprop as the gradient."""

    @staticmethod
    def forward(ctx, module, forward, kwargs, *inputs):
        out = forward(module, *inputs, **kwargs)
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        ctx.module, ctx.kwargs, ctx.single = module, kwargs, not isinstance(out, (tuple, list))
        ctx.inputs = [None if isinstance(x, torch.Tensor) else x for x in inputs]
        ctx.outputs = [None if isinstance(y, torch.Tensor) else y for y in outputs]
        ctx.tensors_at = [i for i, x in enumerate((*inputs, *outputs)) if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*(x for x in (*inputs, *outputs) if isinstance(x, torch.Tensor)))
        ctx.mark_non_differentiable(
            *(y for y in outputs if isinstance(y, torch.Tensor) and not (y.is_floating_point() or y.is_complex()))
        )
        return out if ctx.single else tuple(outputs)

    @staticmethod
    def backward(ctx, *grad_outputs):
        values = [*ctx.inputs, *ctx.outputs]
        for i, x in zip(ctx.tensors_at, ctx.saved_tensors):
            values[i] = x
        count = len(ctx.inputs)
        inputs, out = values[:count], values[count] if ctx.single else tuple(values[count:])
        grad_output = grad_outputs[0] if ctx.single else grad_outputs
        grads = _call(ctx.module, inputs, ctx.kwargs, out, grad_output)
        grads = tuple(grads) if isinstance(grads, (tuple, list)) else (grads,)
        if grads != (None,) and len(grads) != count:
            raise RuntimeError(
                f"{type(ctx.module).__name__}.bprop: expected one result for each of the {count} inputs of forward; "
                f"received {len(grads)}. Return None for an input without gradient."
            )
        grads = [None] * count if len(grads) != count else grads
        checked = [_checked(ctx.module, i, x, g) for i, (x, g) in enumerate(zip(inputs, grads))]
        return (None, None, None, *checked)


def _call(module, inputs, kwargs, out, grad_output):
    """bprop(*inputs, out, grad_output); by name where `out`, and with it the last parameter, is keyword-only."""
    named = [p.name for p in inspect.signature(module.bprop).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if "out" in named:
        return module.bprop(*inputs, **kwargs, **{"out": out, named[-1]: grad_output})
    return module.bprop(*inputs, out, grad_output, **kwargs)


def _checked(module, i, x, g):
    if g is None or not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
        return None
    if not isinstance(g, torch.Tensor):
        raise TypeError(
            f"{type(module).__name__}.bprop: expected a tensor or None for input {i}; received a {type(g).__name__}."
        )
    return g
