"""Mixed precision: what torch.amp.GradScaler asks of a device. Nothing is read back: an overflow shows in `found_inf`."""

import torch

from ..registry import raw
from ..storage import cast, constant, ms, read, write

P = ms.ops
_MUL, _ADD, _FINITE, _ALL, _SELECT, _MAXIMUM = P.Mul(), P.Add(), P.IsFinite(), P.ReduceAll(), P.Select(), P.Maximum()
_GREATER, _EQUAL, _AND, _RESHAPE = P.Greater(), P.Equal(), P.LogicalAnd(), P.Reshape()


@raw("_amp_foreach_non_finite_check_and_unscale_")
def non_finite_check_and_unscale_(grads, found_inf, inv_scale):
    """Multiply every gradient by inv_scale; found_inf becomes 1 if one of them is not finite."""
    found, scale = read(found_inf), read(inv_scale)
    zero, one = constant(0, found_inf.dtype), constant(1, found_inf.dtype)
    for g in grads:
        wide = torch.float64 if g.dtype is torch.float64 else torch.float32
        v = cast(read(g), wide)
        found = _MAXIMUM(found, _RESHAPE(_SELECT(_ALL(_FINITE(v)), zero, one), tuple(found.shape)))
        write(g, _MUL(v, cast(scale, wide)))
    write(found_inf, found)


@raw("_amp_update_scale_")
def update_scale_(scale, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    """Back off after an overflow, grow after `growth_interval` steps without one."""
    old, successes = read(scale), _ADD(read(growth_tracker), constant(1, growth_tracker.dtype))
    overflow = _GREATER(read(found_inf), constant(0, found_inf.dtype))
    due = _EQUAL(successes, constant(growth_interval, growth_tracker.dtype))
    grown = _MUL(old, constant(scale_growth_factor, scale.dtype))
    kept = _SELECT(_AND(due, _FINITE(grown)), grown, old)
    write(scale, _SELECT(overflow, _MUL(old, constant(scale_backoff_factor, scale.dtype)), kept))
    zero = constant(0, growth_tracker.dtype, tuple(successes.shape))
    write(growth_tracker, _SELECT(overflow, zero, _SELECT(due, zero, successes)))
    return scale
