"""Comparing the device with PyTorch CPU."""

import dataclasses
import re

import torch

from msadapter.config import set_config

DEVICE = "mindspore"


def to_device(x):
    """x with its tensors on the device: same values, same strides, leaves that require grad stay leaves."""
    if isinstance(x, torch.Tensor):
        y = x.detach().to(DEVICE)
        if y.stride() != x.stride():
            base = torch.as_strided(x.detach(), (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
            y = base.to(DEVICE).as_strided(x.shape, x.stride(), x.storage_offset())
        return y.requires_grad_(x.requires_grad)
    if isinstance(x, (list, tuple)):
        return type(x)(map(to_device, x))
    return x


def tensors(x):
    """The tensors in x, in order."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for item in x for t in tensors(item)] if isinstance(x, (list, tuple)) else []


def compare(actual, expected, rtol=None, atol=None, stride=True):
    for a, e in zip(tensors(actual), tensors(expected), strict=True):
        assert a.device.type == DEVICE
        if stride and e.numel():
            assert a.stride() == e.stride(), f"expected stride {e.stride()}, received {a.stride()}"
        torch.testing.assert_close(a.detach().cpu(), e.detach(), rtol=rtol, atol=atol, equal_nan=True)


def check(fn, *args, grad=True, rtol=None, atol=None, stride=True):
    """fn(*args) on the device, natively, equals fn(*args) on the CPU: value, dtype, shape, stride and gradients."""
    before = set_config(fallback="error")
    try:
        torch.manual_seed(0)
        host = _detached(args)
        leaves = [x for x in tensors(host) if x.is_floating_point()] if grad else []
        for x in leaves:
            x.requires_grad_()
        device = [to_device(x) for x in host]
        moved = [x for x in tensors(device) if x.is_floating_point()] if grad else []
        torch.manual_seed(0)
        expected = fn(*host)
        torch.manual_seed(0)
        actual = fn(*device)
        compare(actual, expected, rtol, atol, stride)
        if grad:
            outs = [(a, e) for a, e in zip(tensors(actual), tensors(expected)) if e.requires_grad]
            seeds = [torch.randn_like(e) for _, e in outs]
            if outs:
                expected_grads = torch.autograd.grad([e for _, e in outs], leaves, seeds, allow_unused=True)
                seeds = [to_device(s) for s in seeds]
                actual_grads = torch.autograd.grad([a for a, _ in outs], moved, seeds, allow_unused=True)
                for a, e in zip(actual_grads, expected_grads):
                    assert (a is None) == (e is None)
                    if e is not None:
                        compare(a, e, rtol, atol, stride=False)
    finally:
        set_config(**dataclasses.asdict(before))


def _detached(x):
    if isinstance(x, torch.Tensor):
        return x.detach()
    return type(x)(map(_detached, x)) if isinstance(x, (list, tuple)) else x


def name(case):
    """A test's name for its case, without memory addresses: parallel workers must agree on it."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(case))


__all__ = ["DEVICE", "check", "compare", "name", "set_config", "tensors", "to_device"]
