"""Random numbers: drawn from torch's CPU generator, so that a seed gives what it gives on PyTorch CPU.

The draw happens on the host because that generator is the specification; it is not a fallback.
"""

import numpy as np
import torch

from ..registry import aten, kernel, raw
from ..storage import MS_DTYPE, cast, constant, from_host, ms, read, resize_output, write
from ..tracing import drawn, known, traced

_MUL = ms.ops.Mul()


def _host_like(x):
    """An empty host tensor of x's geometry: torch's samplers visit elements in memory order, contiguous ones by blocks."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")


def _fill(name):
    """An in-place sampler: `normal_(x, mean, std, generator=None)` and its like."""
    packet, _, overload = name.partition(".")
    sample = getattr(getattr(aten, packet), overload or "default")

    @raw(name)
    def fill(x, *args, **kwargs):
        like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")  # a later run draws for the same
        write(x, drawn(lambda: from_host(sample(_host_like(like), *args, **kwargs).contiguous())))
        return x


for _name in ("normal_", "uniform_", "random_", "random_.from", "random_.to", "exponential_", "geometric_", "cauchy_",
              "log_normal_", "bernoulli_.float"):  # fmt: skip
    _fill(_name)


def _host(x):
    from ..storage import host

    return host(x) if isinstance(x, torch.Tensor) and x.device.type == "mindspore" else x


def _draw(name, *names):
    """A sampler whose parameters are tensors: it reads them on the host."""
    packet, _, overload = name.partition(".")
    sample = getattr(getattr(aten, packet), overload or "default")

    @kernel(name, *names)
    def draw(*args, **kwargs):
        if any(isinstance(a, torch.Tensor) and traced(read(a)) for a in args):
            return from_host(sample(*map(_host, args), **kwargs).contiguous())  # a recording ends here: it reads values
        given = tuple(map(_host, args))
        return drawn(lambda: from_host(sample(*given, **kwargs).contiguous()))


for _name in ("bernoulli", "bernoulli.p", "multinomial", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet",
              "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor"):  # fmt: skip
    _draw(_name)


def _draw_into(name):
    """`torch.normal(mean, std, out=out)`: drawn in the order of out's memory, as the host does."""
    packet, _, overload = name.partition(".")
    sample = getattr(getattr(aten, packet), overload)

    @raw(name)
    def draw(*args, out, **kwargs):
        values = sample(*map(_host, args), out=_host_like(out), **kwargs)
        resize_output(out, values.shape)
        write(out, from_host(values.contiguous()))
        return out


for _name in ("normal.Tensor_float_out", "normal.float_Tensor_out", "normal.Tensor_Tensor_out", "multinomial.out"):
    _draw_into(_name)


@raw("bernoulli_.Tensor")
def bernoulli_(x, p, generator=None):
    write(x, from_host(_host_like(x).bernoulli_(_host(p), generator=generator).contiguous()))
    return x


@raw("randperm.generator_out")
def randperm(n, generator=None, out=None):
    dtype = out.dtype
    out.resize_((n,))
    write(out, drawn(lambda: from_host(torch.randperm(n, generator=generator, dtype=dtype, device="cpu"))))
    return out


@raw("randperm.out")
def randperm_out(n, out=None):
    return randperm(n, None, out)


@kernel("native_dropout", variants=False, layout="input")
def native_dropout(x, p, train):
    """torch's CPU dropout multiplies by noise that is 0 or 1/(1-p); the mask is the same draw."""
    if not train or p == 0:
        return _MUL(read(x), constant(1, x.dtype)), constant(True, torch.bool, tuple(x.shape))
    if p == 1:
        return _MUL(read(x), constant(0, x.dtype)), constant(False, torch.bool, tuple(x.shape))
    like = _host_like(x)
    mask, noise = drawn(lambda: _dropout_mask(like, p))
    mask.noise = noise  # what backward multiplies by, without a cast of the mask
    return _MUL(read(x), noise), mask


def _dropout_mask(like, p):
    """(mask, noise): noise is 0 or 1/(1-p), laid out as `like`."""
    noise = torch.empty_like(like).bernoulli_(1 - p)
    if noise.dtype not in (torch.float32, torch.float64):
        return from_host(noise.bool().contiguous()), from_host(noise.div_(1 - p).contiguous())
    values = noise.numpy()  # torch's arithmetic and copies would leave a thread spinning beside MindSpore's
    mask = values != 0
    values *= values.dtype.type(1) / values.dtype.type(1 - p)
    whole = (np.ascontiguousarray(a).reshape(like.shape) for a in (mask, values))  # it makes a vector of a number
    return tuple(ms.Tensor.from_numpy(a) for a in whole)


@kernel("native_dropout_backward")
def native_dropout_backward(grad, mask, scale):
    m = read(mask)
    noise = getattr(m, "noise", None)
    dtype = torch.result_type(grad, 1.0)
    if noise is None or noise.dtype != MS_DTYPE[dtype] or scale == 0 or not known(noise):
        noise = _MUL(cast(m, dtype), constant(scale, dtype))
    return _MUL(cast(read(grad), dtype), noise)
