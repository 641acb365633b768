"""Margin losses that torch's decompositions leave out or get wrong, written in the device's own tensor operations."""

import torch
from torch._decomp import decomposition_table

from ..registry import Decline, aten, kernel
from ..storage import read
from .index import values_of


def _reduced(loss, reduction):
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@kernel("multi_margin_loss")
def multi_margin_loss(x, target, p=1, margin=1, weight=None, reduction=1):
    loss = decomposition_table[aten.multi_margin_loss.default](x, target, p, margin, weight, reduction)
    return read(loss if x.dim() else loss.reshape(()))


@kernel("multi_margin_loss_backward")
def multi_margin_loss_backward(grad, x, target, p, margin, weight=None, reduction=1):
    rows, y = (x.reshape(1, -1), target.reshape(-1)) if x.dim() < 2 else (x, target)
    if rows.dim() != 2 or not rows.numel() or y.shape != rows.shape[:1]:
        raise Decline("input and target do not fit")
    y = y.unsqueeze(1)
    z = (margin - rows.gather(1, y) + rows).scatter(1, y, 0.0)
    h = (z > 0).to(x.dtype) if p == 1 else 2 * z.clamp(min=0)
    h = h if weight is None else h * weight[y]
    g = grad.reshape(-1, 1) / (rows.numel() if reduction == 1 else rows.size(1))
    h = h * g
    return read(h.scatter_add(1, y, -h.sum(1, keepdim=True)).reshape(x.shape))


def _labels(x, target):
    """(rows of input, class of each label, whether it counts): labels end at the first -1."""
    if target.dtype is not torch.int64 or x.dim() > 2 or x.shape != target.shape or not x.numel():
        raise Decline("input and target do not fit")
    a = values_of(target)
    if int(a.min()) < -1 or int(a.max()) >= (x.size(-1) if x.dim() else 1):
        raise Decline("target out of range")
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    labels = target.reshape(rows.shape)
    counts = (labels < 0).cumsum(1) == 0
    return rows, labels.clamp(min=0), counts.to(x.dtype)


def _label_margins(rows, labels, counts, is_target):
    """(1 - x[label] + x[class], whether the pair counts): (N, labels, classes)."""
    z = 1 - rows.gather(1, labels).unsqueeze(2) + rows.unsqueeze(1)
    return z, counts.unsqueeze(2) * (1 - is_target).unsqueeze(1)


@kernel("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(x, target, reduction):
    rows, labels, counts = _labels(x, target)
    is_target = torch.zeros_like(rows).scatter_add(1, labels, counts).clamp(max=1)
    z, pairs = _label_margins(rows, labels, counts, is_target)
    loss = (z.clamp(min=0) * pairs).sum((1, 2)) / rows.size(1)
    loss = _reduced(loss if x.dim() == 2 else loss.reshape(()), reduction)
    return read(loss), read(is_target.reshape(x.shape))


@kernel("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(grad, x, target, reduction, is_target):
    rows, labels, counts = _labels(x, target)
    z, pairs = _label_margins(rows, labels, counts, is_target.reshape(rows.shape))
    g = grad.reshape(-1, 1, 1) / (rows.numel() if reduction == 1 else rows.size(1))
    pairs = (z > 0).to(x.dtype) * pairs * g
    return read(pairs.sum(1).scatter_add(1, labels, -pairs.sum(2)).reshape(x.shape))
