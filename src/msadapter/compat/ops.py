"""MindSpore's `ops` that training scripts apply to gradients, on torch tensors. Formulas are MindSpore's.

Source: mindspore/ops/function/clip_func.py (MindSpore 2.10).
"""

import numbers

import torch


def _number(name, value, positive=True):
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return
    if not isinstance(value, numbers.Real) or (positive and not value > 0):
        raise ValueError(f"Expected {name} as a positive number; received {value!r}.")


def _listed(name, x):
    if isinstance(x, torch.Tensor) or not all(isinstance(v, torch.Tensor) for v in x):
        raise TypeError(f"{name}: expected a tuple or list of torch tensors; received {type(x).__name__}.")
    return tuple(x)


def _wide(x):
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def clip_by_global_norm(x, clip_norm=1.0, use_norm=None):
    """x * clip_norm / max(norm, clip_norm), with the 2-norm of all tensors together, as a tuple.

    Sums in float32 for 16-bit tensors. A norm that is nan or inf shows in the result.

    Raises:
        TypeError: x is not a tuple or list of tensors.
        ValueError: clip_norm is not positive; use_norm is not None.
    """
    x = _listed("clip_by_global_norm", x)
    _number("clip_norm", clip_norm)
    if use_norm is not None:
        raise ValueError(f"clip_by_global_norm: expected use_norm=None, as in MindSpore; received {use_norm!r}.")
    squares = [_wide(v).square().sum() for v in x]
    norm = torch.stack([s.to(squares[0]) for s in squares]).sum().sqrt()
    norm = torch.where(norm < clip_norm, torch.full_like(norm, float(clip_norm)), norm)
    return tuple((_wide(v) * clip_norm / norm.to(v.device)).to(v.dtype) for v in x)


def clip_by_norm(x, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """x * min(1, max_norm / (norm + 1e-6)), with the norm of all tensors together: a tensor, or a tuple of them.

    Raises:
        RuntimeError: error_if_nonfinite, and the norm is inf or nan.
    """
    tensors = (x,) if isinstance(x, torch.Tensor) else _listed("clip_by_norm", x)
    norms = [torch.linalg.vector_norm(_wide(v), norm_type) for v in tensors]
    norm = torch.linalg.vector_norm(torch.stack([n.to(norms[0]) for n in norms]), norm_type)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(f"clip_by_norm: expected a finite norm of order {norm_type}; received {norm.item()}.")
    factor = (max_norm / (norm + 1e-6)).clamp(max=1)
    clipped = tuple((_wide(v) * factor.to(v.device)).to(v.dtype) for v in tensors)
    return clipped[0] if isinstance(x, torch.Tensor) else clipped


def clip_by_value(x, clip_value_min=None, clip_value_max=None):
    """Each element held between the two bounds, numbers or tensors: a tensor, or a tuple of them.

    Raises:
        ValueError: both bounds are None.
    """
    if clip_value_min is None and clip_value_max is None:
        raise ValueError("clip_by_value: expected clip_value_min, clip_value_max or both; received neither.")

    def clipped(v):
        if clip_value_min is not None:
            v = torch.clamp(v, min=clip_value_min)
        return v if clip_value_max is None else torch.clamp(v, max=clip_value_max)

    return clipped(x) if isinstance(x, torch.Tensor) else tuple(map(clipped, _listed("clip_by_value", x)))


def _dtype(dtype):
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    from ..backend import device

    device.activate()
    from ..backend import storage

    return storage.TORCH_DTYPE[dtype]


def ones_like(input, *, dtype=None):
    """Ones of input's shape and, if `dtype` (torch's or MindSpore's) is None, its dtype."""
    return torch.ones_like(input, dtype=_dtype(dtype), requires_grad=False)


def zeros_like(input, *, dtype=None):
    """Zeros of input's shape and, if `dtype` (torch's or MindSpore's) is None, its dtype."""
    return torch.zeros_like(input, dtype=_dtype(dtype), requires_grad=False)


def stop_gradient(value):
    """value without its gradient: `value.detach()`."""
    return value.detach()


def assign(variable, value):
    """Overwrite a tensor, without autograd: `variable.copy_(value)`. Returns it."""
    with torch.no_grad():
        return variable.copy_(value)


def assign_add(variable, value):
    """Add to a tensor in place, without autograd. Returns it."""
    with torch.no_grad():
        return variable.add_(value)
