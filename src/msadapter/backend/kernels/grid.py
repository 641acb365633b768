"""Sampling an image at the points of a grid (`F.grid_sample`).

MindSpore's primitives do it in float32 and without bicubic interpolation. What they lack is written in the device's own
tensor operations, over the taps (places that are read) of each point.
"""

import functools
import itertools

import torch
from mindspore.ops.operations import _grad_ops

from ..registry import Decline, kernel
from ..storage import cast, ms, read
from ..tracing import finite
from .pad import computed

P = ms.ops
_MODES, _PADDINGS = ("bilinear", "nearest"), ("zeros", "border", "reflection")
_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_A = -0.75  # of the cubic


@functools.lru_cache(512)
def _primitive(make, *options):
    return make(*options)


def _check(x, grid, mode, padding):
    if x.dtype not in _FLOATS or grid.dtype is not x.dtype or 0 in x.shape[1:] or 0 in grid.shape or not x.numel():
        raise Decline("no grid sampling of this")
    rank = x.dim() - 2
    if grid.shape[0] != x.shape[0] or grid.dim() != x.dim() or grid.shape[-1] != rank or not 0 <= padding <= 2:
        raise Decline("mismatched grid")
    if not 0 <= mode <= 2 or mode == _BICUBIC and rank != 2:
        raise Decline("no such interpolation")


def _finite(grid):
    return finite(cast(read(grid), torch.float32), lambda v: P.ReduceSum()(P.Reshape()(v, (v.shape[0], -1)), 1))


def _has_primitive(x, mode):
    """Not for "nearest": the primitives round half away from zero, torch to even."""
    return mode == _BILINEAR and x.dtype is not torch.float64


def _sampler(rank, make, make_grad):
    name = f"grid_sampler_{rank}d"

    @kernel(name)
    def forward(x, grid, interpolation_mode, padding_mode, align_corners):
        _check(x, grid, interpolation_mode, padding_mode)
        if not _finite(grid):
            raise Decline("a grid with NaN or infinite places")
        if _has_primitive(x, interpolation_mode):
            options = _MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners
            return cast(_primitive(make, *options)(computed(x), computed(grid)), x.dtype)
        x, grid, dtype = *_widened(x, grid), x.dtype
        return read(_sample(x, grid, interpolation_mode, padding_mode, align_corners).to(dtype))

    @kernel(f"{name}_backward")
    def backward(grad, x, grid, interpolation_mode, padding_mode, align_corners, output_mask):
        _check(x, grid, interpolation_mode, padding_mode)
        finite = _finite(grid)
        if not finite:  # the CPU's kernel ends the process; PyTorch's documentation says that NaN is taken for -1
            grid = torch.where(grid.isnan(), -1.0, grid)
        if finite and _has_primitive(x, interpolation_mode):
            options = _MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners
            grads = _primitive(make_grad, *options)(computed(grad), computed(x), computed(grid))
            return tuple(cast(g, x.dtype) if need else None for g, need in zip(grads, output_mask))
        (x, grid, grad), dtype = _widened(x, grid, grad), x.dtype
        grads = _gradients(grad, x, grid, interpolation_mode, padding_mode, align_corners)
        return tuple(read(g.to(dtype)) if need else None for g, need in zip(grads, output_mask))


def _widened(*xs):
    return [x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in xs]


_sampler(2, P.GridSampler2D, _grad_ops.GridSampler2DGrad)
_sampler(3, P.GridSampler3D, _grad_ops.GridSampler3DGrad)


# -------------------------------------------------------------------------------------------------------- by operations
# A coordinate comes with its derivative: (place in the image, d place / d grid).


def _unnormalized(g, n, align_corners):
    scale = (n - 1) / 2 if align_corners else n / 2
    return (g + 1) * scale - (0 if align_corners else 0.5), scale


def _clipped(c, slope, n):
    inside = ((c > 0) & (c < n - 1)).to(c.dtype)
    return c.clamp(0, n - 1), slope * inside


def _reflected(c, slope, n, align_corners):
    low, span = (0.0, n - 1.0) if align_corners else (-0.5, float(n))
    if not span:
        return torch.zeros_like(c), torch.zeros_like(c)
    shifted = c - low
    away, size = shifted.abs(), torch.where(shifted < 0, -1.0, 1.0).to(c.dtype)
    flips, extra = (away / span).floor(), away.fmod(span)
    odd = flips.remainder(2) == 1
    return torch.where(odd, span - extra, extra) + low, slope * torch.where(odd, -size, size)


def _padded(c, slope, n, padding, align_corners):
    """The coordinate that the padding makes of c."""
    if padding == _REFLECTION:
        c, slope = _reflected(c, slope, n, align_corners)
    return _clipped(c, slope, n) if padding != _ZEROS else (c, slope)


def _cubic(t):
    """The weights of the four taps around a point t behind the second one, and their derivatives."""
    near = lambda x: ((_A + 2) * x - (_A + 3)) * x * x + 1  # noqa: E731
    far = lambda x: ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A  # noqa: E731
    near_slope = lambda x: (3 * (_A + 2) * x - 2 * (_A + 3)) * x  # noqa: E731
    far_slope = lambda x: (3 * _A * x - 10 * _A) * x + 8 * _A  # noqa: E731
    weights = far(t + 1), near(t), near(1 - t), far(2 - t)
    return weights, (far_slope(t + 1), near_slope(t), -near_slope(1 - t), -far_slope(2 - t))


def _taps(g, n, mode, padding, align_corners):
    """[(place, whether it is in the image, weight, d weight / d grid)] along one dimension."""
    c, slope = _unnormalized(g, n, align_corners)
    if mode != _BICUBIC:
        c, slope = _padded(c, slope, n, padding, align_corners)
    if mode == _NEAREST:
        places, weights, slopes = [c.round()], [torch.ones_like(c)], [torch.zeros_like(c)]
    elif mode == _BILINEAR:
        first = c.floor()
        places, weights, slopes = [first, first + 1], [first + 1 - c, c - first], [-slope, slope]
    else:
        first = c.floor()
        weights, slopes = _cubic(c - first)
        places, slopes = [first + k for k in (-1, 0, 1, 2)], [s * slope for s in slopes]
        places = [_padded(p, 0.0, n, padding, align_corners)[0] for p in places]
        if padding == _REFLECTION:
            places = [p.round() for p in places]
    found = []
    for p, w, s in zip(places, weights, slopes):
        inside = (p >= 0) & (p <= n - 1)  # false for NaN
        found.append((torch.where(inside, p, 0.0).long(), inside, w, s))
    return found


def _all_taps(x, grid, mode, padding, align_corners):
    """[(flat place (N, 1, points), inside, taps of each dimension)] over the combinations of the dimensions' taps."""
    size = x.shape[2:]
    axes = [
        _taps(grid[..., len(size) - 1 - d].reshape(x.size(0), 1, -1), n, mode, padding, align_corners)
        for d, n in enumerate(size)
    ]
    for taps in itertools.product(*axes):
        place, inside = 0, True
        for (p, ok, _, _), n in zip(taps, size):
            place, inside = place * n + p, ok & inside
        yield place, inside.to(x.dtype), taps


def _product(factors):
    return functools.reduce(torch.mul, factors)


def _sample(x, grid, mode, padding, align_corners):
    flat, out = x.reshape(*x.shape[:2], -1), 0
    for place, inside, taps in _all_taps(x, grid, mode, padding, align_corners):
        values = flat.gather(2, place.expand(-1, x.size(1), -1))
        out = out + values * _product([inside, *(w for _, _, w, _ in taps)])
    return out.reshape(*x.shape[:2], *grid.shape[1:-1])


def _gradients(grad, x, grid, mode, padding, align_corners):
    flat, g, rank = x.reshape(*x.shape[:2], -1), grad.reshape(*x.shape[:2], -1), x.dim() - 2
    dx, places = torch.zeros_like(flat), [0] * rank
    for place, inside, taps in _all_taps(x, grid, mode, padding, align_corners):
        place = place.expand(-1, x.size(1), -1)
        dx = dx.scatter_add(2, place, g * _product([inside, *(w for _, _, w, _ in taps)]))
        along = (flat.gather(2, place) * g).sum(1, keepdim=True) * inside
        for d in range(rank):
            places[d] = places[d] + along * _product([s if k == d else w for k, (_, _, w, s) in enumerate(taps)])
    return dx.reshape(x.shape), torch.stack([p.reshape(grid.shape[:-1]) for p in reversed(places)], -1)
