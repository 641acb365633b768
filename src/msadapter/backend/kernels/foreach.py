"""Fused optimizers (`fused=True`): one call for all parameters, with torch's CPU formula for each.

The `_foreach_*` ops need nothing here: torch composes them of the ops of single tensors.
"""

import torch

from ..registry import raw
from ..storage import constant, item, ms, read, write

_ADD, _SUB, _MUL, _DIV, _NEG = ms.ops.Add(), ms.ops.Sub(), ms.ops.Mul(), ms.ops.RealDiv(), ms.ops.Neg()
_SQUARE, _SQRT, _MAX, _LERP = ms.ops.Square(), ms.ops.Sqrt(), ms.ops.Maximum(), ms.ops.Lerp()


def _number(x):
    return x.item() if isinstance(x, torch.Tensor) else x


def _lerp(a, b, weight, dtype):
    """a + weight * (b - a)"""
    if dtype is torch.float32:
        return _LERP(a, b, constant(weight, dtype, a.shape)) if a.ndim == 0 else _LERP(a, b, weight)
    return _ADD(a, _MUL(_SUB(b, a), constant(weight, dtype)))


def _times(v, number, dtype):
    return v if number == 1 else _MUL(v, constant(number, dtype))


def _gradient(g, value, maximize, weight_decay, grad_scale):
    """The gradient to step along; an unscaled gradient is stored, as torch's fused kernels do."""
    v = read(g)
    if grad_scale is not None:
        v = _DIV(v, constant(item(grad_scale), g.dtype))
        write(g, v)
    if maximize:
        v = _NEG(v)
    return v if weight_decay == 0 else _ADD(v, _times(value, weight_decay, g.dtype))


def _skip(found_inf):
    return found_inf is not None and item(found_inf) == 1


def _adam(decoupled):
    def step(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, lr, beta1, beta2, weight_decay, eps,
             amsgrad, maximize, grad_scale=None, found_inf=None):  # fmt: skip
        if _skip(found_inf):
            return
        lr = _number(lr)
        for i, (p, g, m, v) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs)):
            t, value = item(state_steps[i]), read(p)
            grad = _gradient(g, value, maximize, 0 if decoupled else weight_decay, grad_scale)
            if decoupled and weight_decay:
                value = _times(value, 1 - lr * weight_decay, p.dtype)
            first = _lerp(read(m), grad, 1 - beta1, p.dtype)
            second = largest = _ADD(_times(read(v), beta2, p.dtype), _times(_SQUARE(grad), 1 - beta2, p.dtype))
            if amsgrad:
                largest = _MAX(read(max_exp_avg_sqs[i]), second)
                write(max_exp_avg_sqs[i], largest)
            # lr / c1 * first / (sqrt(largest) / root + eps), its numerator and denominator multiplied by root
            root = (1 - beta2**t) ** 0.5
            denominator = _ADD(_SQRT(largest), constant(eps * root, p.dtype))
            change = _times(_DIV(first, denominator), lr * root / (1 - beta1**t), p.dtype)
            write(p, _SUB(value, change))
            write(m, first)
            write(v, second)

    return step


raw("_fused_adam_", "_fused_adam_.tensor_lr")(_adam(decoupled=False))
raw("_fused_adamw_", "_fused_adamw_.tensor_lr")(_adam(decoupled=True))


@raw("_fused_sgd_", "_fused_sgd_.tensor_lr")
def sgd(params, grads, momentum_buffer_list, *, weight_decay, momentum, lr, dampening, nesterov, maximize,
        is_first_step, grad_scale=None, found_inf=None):  # fmt: skip
    if _skip(found_inf):
        return
    lr = _number(lr)
    for i, (p, g) in enumerate(zip(params, grads)):
        value = read(p)
        grad = _gradient(g, value, maximize, weight_decay, grad_scale)
        if momentum:
            buffer = momentum_buffer_list[i]
            velocity = grad
            if not is_first_step:
                velocity = _ADD(_times(read(buffer), momentum, p.dtype), _times(grad, 1 - dampening, p.dtype))
            write(buffer, velocity)
            grad = _ADD(grad, _times(velocity, momentum, p.dtype)) if nesterov else velocity
        write(p, _SUB(value, _times(grad, lr, p.dtype)))


def adagrad(params, grads, state_sums, state_steps, *, lr, lr_decay, weight_decay, eps, maximize, grad_scale=None,
            found_inf=None):  # fmt: skip
    if _skip(found_inf):
        return
    lr = _number(lr)
    for p, g, s, t in zip(params, grads, state_sums, state_steps):
        value = read(p)
        grad = _gradient(g, value, maximize, weight_decay, grad_scale)
        total = _ADD(read(s), _SQUARE(grad))
        rate = lr / (1 + (item(t) - 1) * lr_decay)
        write(s, total)
        write(p, _SUB(value, _DIV(_times(grad, rate, p.dtype), _ADD(_SQRT(total), constant(eps, p.dtype)))))


raw(*(f"_fused_adagrad_{'.' * (name != 'default')}{name.replace('default', '')}"
      for name in torch.ops.aten._fused_adagrad_.overloads() if not name.endswith("out")))(adagrad)  # fmt: skip
