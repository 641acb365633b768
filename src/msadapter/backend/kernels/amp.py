"""Mixed precision: what torch.amp.GradScaler asks of a device."""

import torch

from ..registry import raw
from ..storage import constant, item, ms, read, write

_MUL, _FINITE, _ALL = ms.ops.Mul(), ms.ops.IsFinite(), ms.ops.ReduceAll()
_CAST = ms.ops.Cast()


@raw("_amp_foreach_non_finite_check_and_unscale_")
def non_finite_check_and_unscale_(grads, found_inf, inv_scale):
    """Multiply every gradient by inv_scale; found_inf becomes 1 if one of them is not finite."""
    scale = item(inv_scale)
    finite = True
    for g in grads:
        v = read(g)
        wide = v if g.dtype in (torch.float32, torch.float64) else _CAST(v, ms.float32)
        finite = finite and bool(_ALL(_FINITE(wide)).asnumpy())
        if scale != 1:
            write(g, _MUL(wide, constant(scale, torch.float64 if g.dtype is torch.float64 else torch.float32)))
    if not finite:
        write(found_inf, constant(1, found_inf.dtype, tuple(found_inf.shape)))


@raw("_amp_update_scale_")
def update_scale_(scale, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    """Back off after an overflow, grow after `growth_interval` steps without one."""
    current, successes = item(scale), 0
    if item(found_inf):
        current *= scale_backoff_factor
    else:
        successes = item(growth_tracker) + 1
        if successes == growth_interval:
            grown = torch.tensor(current, dtype=scale.dtype, device="cpu") * scale_growth_factor
            current, successes = grown.item() if grown.isfinite() else current, 0
    write(scale, constant(current, scale.dtype, tuple(scale.shape)))
    write(growth_tracker, constant(successes, growth_tracker.dtype, tuple(growth_tracker.shape)))
    return scale
