"""Comparison of what the device answered with what the CPU answered.

The tolerances are torch.testing's defaults. Where two correct results of a small float type may differ by more (sums in
another order, ill-conditioned inputs), the same computation in float64 on the CPU decides: the device is right if its
largest error in a tensor is at most `AS_NEAR` times that of the CPU's own result, which must itself be within `CREDIBLE`
of the largest value. A half type's result that is the float64 result is right whatever the CPU's kernel rounds between.
The harness reports where the float64 result was needed.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch.testing._comparison import default_tolerances

AS_NEAR = 4
CREDIBLE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}  # float32: 1e-3


@dataclasses.dataclass(frozen=True)
class Rules:
    tolerance: tuple[float, float] | None = None  # (rtol, atol) instead of torch.testing's for the dtype
    values: bool = True  # False: only structure, dtype, shape and strides
    device: str | None = "mindspore"  # where the device's tensors must be; None: anywhere


def difference(expected, actual, rules, exact=None):
    """In words, how `actual` differs from `expected` in structure, dtype, shape or value; None if it does not.

    exact: the same structure as `expected`, computed in float64; None if there is none.
    """
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, torch.Tensor):
            return f"expected a tensor, got {type(actual).__name__}"
        return _tensors(expected, actual, rules, exact)
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if list(expected) != list(actual):
            return f"keys {list(actual)}, expected {list(expected)}"
        return _first((k, difference(expected[k], actual[k], rules, _part(exact, k))) for k in expected)
    if isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        if not isinstance(actual, Sequence) or len(expected) != len(actual):
            return f"expected {len(expected)} values, got {actual!r:.60}"
        pairs = enumerate(zip(expected, actual))
        return _first((i, difference(e, a, rules, _part(exact, i))) for i, (e, a) in pairs)
    if type(expected) is not type(actual):
        return f"expected {type(expected).__name__}, got {type(actual).__name__}"
    if isinstance(expected, (float, complex)):
        return difference(torch.tensor(expected), torch.tensor(actual), dataclasses.replace(rules, device=None))
    if rules.values and isinstance(expected, (bool, int, str, torch.dtype, type(None))) and expected != actual:
        return f"{actual!r}, expected {expected!r}"
    return None


def _first(differences):
    return next((f"[{where}] {text}" for where, text in differences if text), None)


def _part(exact, key):
    try:
        return exact[key] if exact is not None else None
    except (LookupError, TypeError):
        return None


def _tensors(expected, actual, rules, exact):
    if rules.device is not None and actual.device.type != rules.device:
        return f"a tensor on {actual.device}, expected on {rules.device}"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype}, expected {expected.dtype}".replace("torch.", "")
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.layout != expected.layout:
        return f"layout {actual.layout}, expected {expected.layout}"
    if actual.requires_grad != expected.requires_grad:
        return f"requires_grad {actual.requires_grad}, expected {expected.requires_grad}"
    if not rules.values or expected.numel() == 0:
        return None
    return _values(on_host(expected), on_host(actual), rules.tolerance, exact)


def _values(expected, actual, tolerance, exact):
    if expected.is_quantized:
        expected, actual = expected.int_repr(), actual.int_repr()
    if not (expected.is_floating_point() or expected.is_complex()):
        wrong = int((expected != actual).sum())
        return f"{wrong} of {expected.numel()} values differ" if wrong else None
    close = _close(actual, expected, tolerance)
    if bool(close.all()):
        return None
    if isinstance(exact, torch.Tensor) and _as_near(expected, actual, on_host(exact)):
        return None
    error = (actual - expected).abs()[~close]
    largest = float(error.nan_to_num(torch.inf).max())
    return f"{len(error)} of {close.numel()} values differ, by up to {largest:.1g}"


def _close(actual, expected, tolerance=None):
    rtol, atol = tolerance or default_tolerances(expected)
    return torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def _as_near(expected, actual, exact):
    """Whether `actual` is about as near to `exact` as `expected` is, where all are finite, and equal elsewhere."""
    if exact.shape != expected.shape or not exact.dtype.is_floating_point and not exact.is_complex():
        return False
    if expected.dtype in CREDIBLE and bool(_close(actual, exact.to(actual.dtype)).all()):
        return True
    finite = torch.isfinite(exact) & torch.isfinite(expected)
    if not torch.equal(expected[~finite].nan_to_num(), actual[~finite].nan_to_num()):
        return False
    if not finite.any():
        return True
    cpu_error = (expected - exact)[finite].abs().max()
    if cpu_error > CREDIBLE.get(expected.dtype, 1e-3) * exact[finite].abs().max():
        return False
    return bool(((actual - exact)[finite].abs() <= AS_NEAR * cpu_error).all())


def on_host(x):
    """x's values as an ordinary dense CPU tensor."""
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    return x.cpu().resolve_conj().resolve_neg()


def stride_difference(expected, actual):
    """Where two structures of equal tensors are laid out differently in memory, in words; None if nowhere."""
    leaves = torch.utils._pytree.tree_leaves
    for e, a in zip(leaves(expected), leaves(actual)):
        if not isinstance(e, torch.Tensor) or e.layout is not torch.strided or e.numel() == 0:
            continue
        if any(n > 1 and s != t for n, s, t in zip(e.shape, e.stride(), a.stride())):
            return f"strides {tuple(a.stride())}, expected {tuple(e.stride())}"
    return None
