"""Randomized leaky ReLU. Its slopes are drawn from torch's CPU generator, one for each number that is not positive."""

import torch

from .. import fallback
from ..registry import Decline, aten, raw
from ..storage import from_host, host, ms, read, resize_output, wrap, write

_MUL = ms.ops.Mul()


def _applied(x, noise, lower, upper, training, generator):
    """The result as a device tensor; in training, noise becomes the slopes."""
    if not x.is_floating_point() or noise.dtype is not x.dtype or noise.shape != x.shape or lower > upper:
        raise Decline("no rrelu of this")
    if not training:
        return torch.nn.functional.leaky_relu(x.contiguous(), (lower + upper) / 2)
    chosen = host(x) <= 0
    drawn = torch.empty(int(chosen.sum()), dtype=torch.float64, device="cpu").uniform_(lower, upper, generator=generator)
    slopes = torch.ones(x.shape, dtype=x.dtype, device="cpu")
    slopes[chosen] = drawn.to(x.dtype)
    v = from_host(slopes)
    write(noise, v)
    return wrap(_MUL(read(x), v)) if x.numel() else x.clone()


@raw("rrelu_with_noise")
def rrelu_with_noise(x, noise, lower=0.125, upper=1 / 3, training=False, generator=None):
    try:
        return _applied(x, noise, lower, upper, training, generator)
    except Exception as error:
        return fallback.run(aten.rrelu_with_noise.default, (x, noise, lower, upper, training, generator), {}, error)


@raw("rrelu_with_noise_")
def rrelu_with_noise_(x, noise, lower=0.125, upper=1 / 3, training=False, generator=None):
    try:
        out = _applied(x, noise, lower, upper, training, generator)
    except Exception as error:
        return fallback.run(aten.rrelu_with_noise_.default, (x, noise, lower, upper, training, generator), {}, error)
    write(x, read(out))
    return x


@raw("rrelu_with_noise.out")
def rrelu_with_noise_out(x, noise, lower=0.125, upper=1 / 3, training=False, generator=None, *, out):
    try:
        v = _applied(x, noise, lower, upper, training, generator)
        if out.dtype is not x.dtype or out.device != x.device:
            raise Decline("out does not fit")
    except Exception as error:
        args = x, noise, lower, upper, training, generator
        return fallback.run(aten.rrelu_with_noise.out, args, {"out": out}, error)
    resize_output(out, v.shape)
    write(out, read(v))
    return out
