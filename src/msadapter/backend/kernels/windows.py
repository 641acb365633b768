"""Sliding windows as views, for what MindSpore's window primitives lack (float64, windows of different sizes).

Written in the device's own tensor operations. Sizes, strides and the like are given for every spatial dimension.
"""

import torch


def padded(x, low, high):
    """x with so many zeros before and after its last dimensions; negative numbers cut off."""
    pad = [n for pair in zip(reversed(low), reversed(high)) for n in pair]
    return torch.constant_pad_nd(x, pad) if any(pad) else x


def windows(x, size, stride, dilation, count):
    """The view (N, C, *count, *size) of the windows of x."""
    x, rank = x.contiguous(), len(size)
    step = x.stride()[2:]
    view = (*x.stride()[:2], *(a * b for a, b in zip(step, stride)), *(a * b for a, b in zip(step, dilation)))
    if len(step) != rank:
        raise ValueError("one size for each spatial dimension")
    return x.as_strided((*x.shape[:2], *count, *size), view, x.storage_offset())


def spread(x, stride, low, high):
    """x with stride - 1 zeros between its elements and so many before and after them."""
    if any(s > 1 for s in stride):
        zeros = x.new_zeros((*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride))))
        zeros[(..., *(slice(None, None, s) for s in stride))] = x
        x = zeros
    return padded(x, low, high)


# ---------------------------------------------------------------------------------------------------------- convolution


def _columns(x, groups, size, stride, padding, dilation, count):
    """The windows of x as the columns of a matrix per group."""
    rank, n = len(size), x.shape[0]
    v = windows(padded(x, padding, padding), size, stride, dilation, count)
    v = v.reshape(n, groups, -1, *count, *size)
    order = (1, 2, *range(3 + rank, 3 + 2 * rank), 0, *range(3, 3 + rank))
    v = v.permute(order)
    return v.reshape(groups, v.shape[1:2].numel() * torch.Size(size).numel(), -1)


def _grouped(x, groups):
    """(N, groups * C, ...) as (groups, C, N * ...)."""
    v = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    return v.permute(1, 2, 0, *range(3, v.dim())).reshape(groups, v.shape[2], -1)


def convolve(x, weight, stride, padding, dilation, groups, count):
    """The convolution of x, whose result has the spatial size `count`."""
    size = weight.shape[2:]
    y = torch.bmm(weight.reshape(groups, -1, weight[0].numel()), _columns(x, groups, size, stride, padding, dilation, count))
    y = y.reshape(groups, -1, x.shape[0], *count)
    return y.permute(2, 0, 1, *range(3, y.dim())).reshape(x.shape[0], -1, *count)


def convolve_weight(x, grad, weight, stride, padding, dilation, groups):
    """The gradient with respect to the weight."""
    columns = _columns(x, groups, weight.shape[2:], stride, padding, dilation, grad.shape[2:])
    return torch.bmm(_grouped(grad, groups), columns.transpose(1, 2)).reshape(weight.shape)


def convolve_input(grad, weight, stride, padding, dilation, groups, count):
    """The gradient with respect to an input of spatial size `count`: the transposed convolution of `grad`."""
    size, rank = weight.shape[2:], len(count)
    w = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flip(*range(3, 3 + rank))
    w = w.reshape(-1, *w.shape[2:])
    reach = [d * (k - 1) for d, k in zip(dilation, size)]
    low = [r - p for r, p in zip(reach, padding)]
    high = [n + r - a - (m - 1) * s - 1 for n, r, a, m, s in zip(count, reach, low, grad.shape[2:], stride)]
    one = (1,) * rank
    return convolve(spread(grad, stride, low, high), w, one, (0,) * rank, dilation, groups, count)


# -------------------------------------------------------------------------------------------------------------- average


def _divisors(n, size, stride, padding, count, include_padding):
    """How many elements each window has, per dimension."""
    lengths = []
    for m, k, s, p, c in zip(n, size, stride, padding, count):
        start = torch.arange(c, device="cpu") * s - p
        stop = (start + k).clamp(max=m + p)
        lengths.append(stop - start if include_padding else stop.clamp(max=m) - start.clamp(min=0))
    return lengths


def _divided(v, n, size, stride, padding, count, include_padding, divisor):
    """The sums v of windows divided by what torch divides by."""
    if divisor:
        return v / divisor
    for d, length in enumerate(_divisors(n, size, stride, padding, count, include_padding)):
        shape = [-1 if k == d else 1 for k in range(len(count))]
        v = v / length.to(v.dtype).to(v.device).reshape(shape)
    return v


def average(x, size, stride, padding, count, include_padding, divisor):
    n, one = x.shape[2:], (1,) * len(size)
    high = [max((c - 1) * s + k - m - p, 0) for c, s, k, m, p in zip(count, stride, size, n, padding)]
    v = windows(padded(x, padding, high), size, stride, one, count)
    v = v.sum(tuple(range(-len(size), 0)))
    return _divided(v, n, size, stride, padding, count, include_padding, divisor)


def average_input(grad, n, size, stride, padding, include_padding, divisor):
    """The gradient of `average` with respect to its input of spatial size n."""
    one = (1,) * len(size)
    g = _divided(grad, n, size, stride, padding, grad.shape[2:], include_padding, divisor)
    low = [k - 1 - p for k, p in zip(size, padding)]
    high = [m + k - 1 - a - (c - 1) * s - 1 for m, k, a, c, s in zip(n, size, low, grad.shape[2:], stride)]
    v = windows(spread(g, stride, low, high), size, one, one, n)
    return v.sum(tuple(range(-len(size), 0)))
