"""`mindspore.amp.auto_mixed_precision(model, level)` for torch modules.

| level | computed in float16 (or bfloat16)                                        |
|-------|--------------------------------------------------------------------------|
| O0    | nothing                                                                  |
| O1    | the white list: convolutions, Linear, matmul, RNN cells, prelu, relu     |
| O2    | everything but BatchNorm and LayerNorm, which stay in float32            |
| O3    | everything                                                               |
| auto  | torch.autocast                                                           |

The parameters stay float32; each forward pass uses them rounded, and their gradients are float32. From O1 to O3 the
outputs are float32. Where the CPU has no kernel of the narrow type the device computes in float32 and rounds.

Source: mindspore/train/amp.py (MindSpore 2.10): AMP_WHITE_LIST, AMP_BLACK_LIST.
"""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

LEVELS = ("O0", "O1", "O2", "O3", "auto")
WHITE_LIST = {
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear,
    torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell,
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.mm, torch.Tensor.mm,
    torch.bmm, torch.Tensor.bmm, torch.ger, torch.outer, torch.Tensor.outer, torch.Tensor.ger,
    F.prelu, torch.prelu, F.relu, torch.relu, torch.Tensor.relu,
}  # fmt: skip
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BLACK_LIST = (*BATCH_NORM, nn.LayerNorm)


def auto_mixed_precision(network, amp_level="O0", dtype=None):
    """Makes `network` compute in mixed precision, and returns it: the same Module, with the same parameters.

    Args:
        network: a torch Module.
        amp_level: "O0" to "O3", or "auto".
        dtype: float16 (default) or bfloat16, torch's or MindSpore's.

    Raises:
        TypeError: network is not a Module.
        ValueError: another level or dtype.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"auto_mixed_precision: expected a Module; received a {type(network).__name__}.")
    if amp_level not in LEVELS:
        raise ValueError(f"auto_mixed_precision: expected amp_level as one of {LEVELS}; received {amp_level!r}.")
    name = str(dtype or "float16").lower().replace("torch.", "")
    if name not in ("float16", "bfloat16"):
        raise ValueError(f"auto_mixed_precision: expected dtype as float16 or bfloat16; received {dtype}.")
    if amp_level == "O0":
        if hasattr(network, "_amp_level"):
            network.__dict__.pop("forward", None)
    else:
        network.forward = _Forward(network, amp_level, getattr(torch, name))
    network._amp_level = amp_level
    return network


class _Forward:
    """`network.forward` in mixed precision. An object, so that copying or pickling the network copies it rightly."""

    def __init__(self, module, level, dtype):
        self.module, self.level, self.dtype = module, level, dtype

    def __call__(self, *args, **kwargs):
        forward = type(self.module).forward
        if self.level == "auto":
            with torch.autocast(_device_type(self.module), self.dtype):
                return forward(self.module, *args, **kwargs)
        if self.level == "O1":
            with _WhiteList(self.dtype):
                return _floats(forward(self.module, *args, **kwargs), torch.float32)
        with _narrow(self.module, self.dtype, BLACK_LIST if self.level == "O2" else ()):
            out = forward(self.module, *_floats(args, self.dtype), **_floats(kwargs, self.dtype))
        return _floats(out, torch.float32)


class _WhiteList(TorchFunctionMode):
    """Functions of the white list compute in `dtype`, and their results are float32."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in WHITE_LIST:
            return func(*args, **kwargs)
        return _floats(func(*_floats(args, self.dtype), **_floats(kwargs, self.dtype)), torch.float32)


@contextlib.contextmanager
def _narrow(network, dtype, black_list):
    """Inside, the parameters and buffers of all modules are `dtype`, and so is what goes into and comes out of them.

    Modules of the black list keep float32, and so do batch norms' parameters and statistics at any level: torch's
    kernel takes narrow inputs with them.
    """
    undo = contextlib.ExitStack()
    with undo:
        casts = {}  # a tied parameter is cast once
        for module in network.modules():
            black = isinstance(module, black_list)
            if module is not network:
                inputs = _Inputs(torch.float32 if black else dtype)
                undo.callback(module.register_forward_pre_hook(inputs, with_kwargs=True).remove)
            if black:
                undo.callback(module.register_forward_hook(_Outputs(dtype)).remove)
            elif not isinstance(module, BATCH_NORM):
                _swap(module, dtype, casts, undo)
        yield


def _swap(module, dtype, casts, undo):
    """Narrow copies in the place of a module's parameters and buffers; `undo` puts these back, as forward left them."""
    for state in (module._parameters, module._buffers):
        before = dict(state)
        for name, p in before.items():
            if p is not None and p.is_floating_point() and p.dtype is not dtype:
                if id(p) not in casts:
                    narrow = p.to(dtype)
                    casts[id(p)] = (narrow, narrow._version)
                state[name] = casts[id(p)][0]
        undo.callback(_restore, state, before, casts)
    if isinstance(module, nn.RNNBase):  # which keeps a list of its weights
        flat = module._flat_weights
        undo.callback(module.__dict__.__setitem__, "_flat_weights", flat)
        module.__dict__["_flat_weights"] = [getattr(module, name) for name in module._flat_weights_names]


def _restore(state, before, casts):
    for name, p in before.items():
        now = state.get(name)
        narrow, version = casts.get(id(p), (None, None))
        if now is narrow and narrow is not None and narrow._version != version:
            with torch.no_grad():
                p.copy_(narrow)  # forward changed it in place
        if now is narrow or now is p:
            state[name] = p


class _Inputs:
    """A forward pre-hook: floating-point inputs in `dtype`."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, module, args, kwargs):
        return _floats(args, self.dtype), _floats(kwargs, self.dtype)


class _Outputs:
    """A forward hook: floating-point outputs in `dtype`."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, module, args, out):
        return _floats(out, self.dtype)


def _floats(value, dtype):
    """value with its floating-point tensors (but float64 ones) in `dtype`."""

    def one(x):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype is not torch.float64:
            return x.to(dtype)
        return x

    return tree_map(one, value)


def _device_type(module):
    return next((p.device.type for p in module.parameters()), "mindspore")
