"""torchvision's own operators: non-maximum suppression and the pooling of regions.

They are in torchvision's namespace, which exists once torchvision is imported; what is registered here waits for that.
"""

import numpy as np
import torch

from ...config import config
from .. import fallback, registry
from ..registry import Decline
from ..storage import LOCK, read, read_fresh, wrap

_LIB = torch.library.Library("torchvision", "IMPL")


def operator(name):
    """Register a function of the operator's arguments that returns an `ms.Tensor`."""

    def register(fn):
        def run(*args):
            with LOCK:
                try:
                    v = fn(*args)
                except Exception as error:
                    return fallback.run(getattr(torch.ops.torchvision, name).default, args, {}, error)
                return wrap(v)

        _LIB.impl(name, registry._timed(f"torchvision::{name}", run) if config.profile else run, "PrivateUse1")
        return fn

    return register


@operator("nms")
def nms(boxes, scores, threshold):
    """The device says which boxes overlap; the host, which of them stay: each choice depends on those before."""
    if boxes.dim() != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1] or boxes.dtype is not scores.dtype:
        raise Decline("not boxes and their scores")
    if boxes.dtype not in (torch.float32, torch.float64):
        raise Decline("half precision")
    order = scores.argsort(stable=True, descending=True)
    if not len(order):
        return read_fresh(order)
    x1, y1, x2, y2 = boxes.index_select(0, order).unbind(1)
    area = (x2 - x1) * (y2 - y1)
    width = torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)
    height = torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)
    shared = width.clamp(min=0) * height.clamp(min=0)
    ratio = shared / (area[:, None] + area - shared)
    overlaps = read(ratio > _at_most(threshold, ratio.dtype)).asnumpy()
    kept, gone = [], np.zeros(len(overlaps), bool)
    for i, row in enumerate(overlaps):
        if not gone[i]:
            kept.append(i)
            gone |= row
    return read_fresh(order.index_select(0, torch.tensor(kept).to(order.device)))


def _at_most(threshold, dtype):
    """The largest number of `dtype` up to the threshold: torchvision compares in double precision."""
    kind = np.float32 if dtype is torch.float32 else np.float64
    value = kind(threshold)
    return float(value if value <= threshold else np.nextafter(value, kind(-np.inf)))


def _weights(start, length, bins, samples, size):
    """(regions, bins, size): how much each of `size` rows is in a bin; the mean of bilinear samples along one side."""
    step = (length / bins)[:, None, None]
    counts = (length / bins).ceil() if samples <= 0 else torch.full_like(length, samples)
    most = int(counts.max().clamp(min=1).item()) if samples <= 0 else samples
    bin_, sample, row = (torch.arange(n, dtype=start.dtype, device=start.device) for n in (bins, most, size))
    counts = counts[:, None, None]
    shares = counts.clamp(min=1)  # a region turned inside out has no samples
    at = start[:, None, None] + bin_[:, None] * step + (sample + 0.5) * step / shares
    counted = ((at >= -1) & (at <= size) & (sample < counts)).to(at.dtype)
    near = (1 - (at.clamp(0, size - 1)[..., None] - row).abs()).clamp(min=0)
    return (near * counted[..., None]).sum(2) / shares


def _regions(rois, scale, height, width, images, size, samples, aligned):
    """The weights of rows and of columns, and for each image the regions that are on it."""
    if rois.dtype not in (torch.float32, torch.float64):
        raise Decline("half precision")
    on = read(rois).asnumpy()[:, 0].astype(np.int64)
    if on.min() < 0 or on.max() >= images:
        raise Decline("a region of an image that is not there")
    _, x1, y1, x2, y2 = (rois * scale).unbind(1)
    if aligned:
        x1, y1, x2, y2 = x1 - 0.5, y1 - 0.5, x2 - 0.5, y2 - 0.5
    least = None if aligned else 1.0
    sides = ((y1, y2, height, size[0]), (x1, x2, width, size[1]))
    rows, columns = (_weights(a, b - a if least is None else (b - a).clamp(min=least), n, samples, m) for a, b, n, m in sides)
    groups = [torch.from_numpy(np.flatnonzero(on == i)).to(rois.device) for i in range(images)]
    return rows, columns, groups


@operator("roi_align")
def roi_align(x, rois, scale, height, width, samples, aligned):
    """A bin is rows @ image @ columns: bilinear weights are products of those of the two sides."""
    if x.dtype is not rois.dtype or x.dim() != 4 or rois.dim() != 2 or rois.shape[1] != 5 or not x.numel():
        raise Decline("not images and regions of one dtype")
    n, channels, *size = x.shape
    if not len(rois):
        return read_fresh(x.new_zeros(0, channels, height, width))
    rows, columns, groups = _regions(rois, scale, height, width, n, size, samples, aligned)
    pooled = x.new_empty(len(rois), channels, height, width)
    for image, group in zip(x, groups):
        if k := len(group):
            flat = image.transpose(0, 1).reshape(size[0], -1)
            part = rows[group].flatten(0, 1) @ flat  # (k * height, channels * W)
            part = part.view(k, height * channels, size[1]) @ columns[group].transpose(1, 2)
            pooled[group] = part.view(k, height, channels, width).transpose(1, 2)
    return read_fresh(pooled)


@operator("_roi_align_backward")
def roi_align_backward(grad, rois, scale, height, width, n, channels, *options):
    *size, samples, aligned = options
    if grad.dtype is not rois.dtype:
        raise Decline("not gradients and regions of one dtype")
    out = grad.new_zeros(n, channels, *size)
    if not grad.numel():
        return read_fresh(out)
    rows, columns, groups = _regions(rois, scale, height, width, n, size, samples, aligned)
    for image, group in zip(out, groups):
        if k := len(group):
            part = grad[group].transpose(1, 2).reshape(k, height * channels, width) @ columns[group]
            flat = rows[group].flatten(0, 1).transpose(0, 1) @ part.view(k * height, channels * size[1])
            image.copy_(flat.view(size[0], channels, size[1]).transpose(0, 1))
    return read_fresh(out)
