"""Between MindSpore's tensors and torch's: `cast_to_adapter_tensor`, `cast_to_ms_tensor`, `Tensor.asnumpy`."""

import sys
from typing import Any

import torch

from .wrap import mapped


def cast_to_adapter_tensor(x: Any, *, copy: bool = True) -> Any:
    """x with each `mindspore.Tensor` in it (also in tuples, lists, dicts) as a torch tensor on the device.

    The gradient does not pass. Torch tensors and everything else stay what they are.

    Args:
        copy: False shares the memory: later in-place changes of the MindSpore tensor (`t[0] = 1`, an optimizer's update
            of a Parameter) may then show in the torch tensor, and in whatever was made from it. Changes of the torch
            tensor never show in the MindSpore tensor.
    """
    if "mindspore" not in sys.modules:
        return x
    return mapped(lambda v: _to_torch(v, copy), x)


def _to_torch(v, copy):
    import mindspore

    if not isinstance(v, mindspore.Tensor):
        return v
    from ..backend import device

    device.activate()
    from ..backend import storage

    if copy or not v.is_contiguous():
        v = storage.from_host(storage._host_flat(v).clone().view(v.shape))
    return storage.wrap(v)


def cast_to_ms_tensor(x: Any, *, copy: bool = True) -> Any:
    """x with each torch tensor in it (also in tuples, lists, dicts) as a `mindspore.Tensor`.

    The gradient does not pass. Everything else stays what it is.

    Args:
        copy: False shares the memory of contiguous tensors on the device, for MindSpore operators that only read it.
            An in-place change of the result (`t[0] = 1`) would change the torch tensor, its clones and saved
            activations.
    """
    return mapped(lambda v: _to_mindspore(v, copy), x)


def _to_mindspore(x, copy):
    if not isinstance(x, torch.Tensor):
        return x
    from ..backend import device

    device.activate()
    from ..backend import storage

    x = x.detach()
    if x.device.type == "mindspore":
        if not copy:
            return storage.read_fresh(x)
        x = x.cpu()
    return storage.from_host(x.clone(memory_format=torch.contiguous_format))


def asnumpy(self: torch.Tensor):
    """The values as a `numpy.ndarray` of the same shape, a copy; bfloat16, which NumPy lacks, as float32."""
    x = self.detach()
    x = x.float() if x.dtype is torch.bfloat16 else x
    return x.cpu().resolve_conj().resolve_neg().numpy().copy()
