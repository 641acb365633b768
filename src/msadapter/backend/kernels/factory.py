"""Factories: tensors that the arguments alone decide.

There is nothing to compute on the device: torch's own CPU function writes them, bit for bit, and their memory is taken
over.
"""

import torch

from ..registry import aten, overload, raw
from ..storage import from_host, host, resize_output, wrap, write


def _host(x):
    return host(x) if isinstance(x, torch.Tensor) and x.device.type == "mindspore" else x


def _into(name):
    """An op that writes a constant into `out`."""
    make = overload(name)

    @raw(name)
    def factory(*args, out, **kwargs):
        t = make(*map(_host, args), out=torch.empty(0, dtype=out.dtype, device="cpu"), **kwargs)
        resize_output(out, t.shape)
        write(out, from_host(t))
        return out


for _name in (
    "arange.start_out", "range.out", "range.out_", "linspace.out", "linspace.Tensor_Tensor_out",
    "linspace.Tensor_Scalar_out",
    "linspace.Scalar_Tensor_out", "logspace.out", "logspace.Tensor_Tensor_out", "logspace.Tensor_Scalar_out",
    "logspace.Scalar_Tensor_out", "eye.out", "eye.m_out",
):  # fmt: skip
    _packet, _, _overload = _name.partition(".")
    if _overload in getattr(aten, _packet).overloads():
        _into(_name)


def _new(name):
    """An op that returns a constant."""
    make = overload(name)

    @raw(name)
    def factory(*args, dtype=None, layout=None, device=None, pin_memory=None, **kwargs):
        return wrap(from_host(make(*args, dtype=dtype, device="cpu", **kwargs)))


for _name in ("tril_indices", "triu_indices", "arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace",
              "logspace",
              "range", "range.step", "scalar_tensor",
              "kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"):  # fmt: skip
    _new(_name)
