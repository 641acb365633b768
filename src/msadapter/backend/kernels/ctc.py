"""Connectionist temporal classification, by CTCLossV2: bit for bit what torch's CPU kernel gives in float32."""

import math

import numpy as np
import torch

from ..registry import Decline, kernel
from ..storage import cast, constant, ms, read
from .index import values_of

from mindspore.ops.operations import nn_ops  # isort: skip

_GATHER, _FILL = ms.ops.Gather(), ms.ops.MaskedFill()
_CACHE = {}  # (primitive, attributes) -> instance


def _with(primitive, *attributes):
    key = primitive, attributes
    if key not in _CACHE:
        _CACHE[key] = primitive(*attributes)
    return _CACHE[key]


def _lengths(lengths):
    return [int(n) for n in (values_of(lengths) if isinstance(lengths, torch.Tensor) else lengths)]


def _ctc_arguments(log_probs, targets, input_lengths, target_lengths, blank):
    """(what CTCLossV2 takes, infeasible samples): one padded row of targets for each sample, and lengths as tensors.

    It fails when a sample has more labels than time steps: such a sample takes part without labels.
    """
    if log_probs.dim() != 3 or log_probs.dtype is not torch.float32 or targets.dtype not in (torch.int64, torch.int32):
        raise Decline("log_probs must be (T, N, C) in float32: CTCLossV2 adds up in float32")
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    steps, batch, classes = log_probs.shape
    longest = max(lengths, default=0)
    if not 0 <= blank < classes or len(inputs) != batch or len(lengths) != batch or min(lengths, default=0) < 0:
        raise Decline("blank or lengths do not fit")
    if max(inputs, default=0) > steps or min(inputs, default=0) < 1 or not batch:
        raise Decline("lengths do not fit")
    if targets.dim() == 1:
        if targets.numel() != sum(lengths):
            raise Decline("the targets do not add up to their lengths")
        start = np.cumsum([0, *lengths[:-1]])[:, None]
        at = np.minimum(start + np.arange(longest), targets.numel() - 1)
        rows = _GATHER(read(targets), ms.Tensor.from_numpy(at.astype(np.int64)), 0) if longest else None
    elif targets.size(0) == batch and targets.size(1) >= longest:
        rows = read(targets[:, :longest]) if longest else None
    else:
        raise Decline("the targets do not fit their lengths")
    a = values_of(targets)
    if a.size and (int(a.min()) < 0 or int(a.max()) >= classes):
        raise Decline("target out of range")
    rows = constant((blank + 1) % classes, torch.int64, (batch, 1)) if rows is None else cast(rows, torch.int64)
    inputs, lengths = np.array(inputs, np.int64), np.array(lengths, np.int64)
    infeasible = lengths > inputs
    lengths[infeasible] = 0
    return (read(log_probs), rows, ms.Tensor.from_numpy(inputs), ms.Tensor.from_numpy(lengths)), infeasible


@kernel("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    arguments, infeasible = _ctc_arguments(log_probs, targets, input_lengths, target_lengths, blank)
    loss, log_alpha = _with(nn_ops.CTCLossV2, blank, "none", False)(*arguments)
    if infeasible.any():
        loss = _FILL(loss, ms.Tensor.from_numpy(infeasible), constant(math.inf, torch.float32))
    return loss, log_alpha


@kernel("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    arguments, infeasible = _ctc_arguments(log_probs, targets, input_lengths, target_lengths, blank)
    primitive = _with(nn_ops.CTCLossV2Grad, blank, "none", bool(zero_infinity))
    loss = read(neg_log_likelihood)
    out = primitive(read(grad), *arguments, loss, read(log_alpha))
    if infeasible.any():
        padding = np.arange(log_probs.size(0))[:, None] >= arguments[2].asnumpy()
        for where, value in ((infeasible[None], 0 if zero_infinity else math.nan), (infeasible & padding, 0)):
            mask = np.ascontiguousarray(np.broadcast_to(where[..., None], out.shape))
            out = _FILL(out, ms.Tensor.from_numpy(mask), constant(value, torch.float32))
    return out
