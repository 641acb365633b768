"""Connectionist temporal classification, by CTCLossV2: bit for bit what torch's CPU kernel gives in float32."""

import numpy as np
import torch

from ..registry import Decline, kernel
from ..storage import cast, ms, read
from .index import values_of

from mindspore.ops.operations import nn_ops  # isort: skip

_GATHER = ms.ops.Gather()
_CACHE = {}  # (primitive, attributes) -> instance


def _with(primitive, *attributes):
    key = primitive, attributes
    if key not in _CACHE:
        _CACHE[key] = primitive(*attributes)
    return _CACHE[key]


def _lengths(lengths):
    return [int(n) for n in (values_of(lengths) if isinstance(lengths, torch.Tensor) else lengths)]


def _ctc_arguments(log_probs, targets, input_lengths, target_lengths, blank):
    """What CTCLossV2 takes: one padded row of targets for each sample, and lengths as tensors."""
    if log_probs.dim() != 3 or log_probs.dtype is not torch.float32 or targets.dtype not in (torch.int64, torch.int32):
        raise Decline("log_probs must be (T, N, C) in float32: CTCLossV2 adds up in float32")
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    steps, batch, classes = log_probs.shape
    longest = max(lengths, default=0)
    if not 0 <= blank < classes or len(inputs) != batch or len(lengths) != batch or min(lengths, default=0) < 0:
        raise Decline("blank or lengths do not fit")
    if max(inputs, default=0) > steps or min(inputs, default=0) < 1 or not batch or not longest:
        raise Decline("lengths do not fit, or nothing to align")
    if targets.dim() == 1:
        if targets.numel() != sum(lengths):
            raise Decline("the targets do not add up to their lengths")
        start = np.cumsum([0, *lengths[:-1]])[:, None]
        at = np.minimum(start + np.arange(longest), targets.numel() - 1)
        rows = _GATHER(read(targets), ms.Tensor.from_numpy(at.astype(np.int64)), 0)
    elif targets.size(0) == batch and targets.size(1) >= longest:
        rows = read(targets[:, :longest])
    else:
        raise Decline("the targets do not fit their lengths")
    a = values_of(targets)
    if int(a.min()) < 0 or int(a.max()) >= classes:
        raise Decline("target out of range")
    lengths = (ms.Tensor.from_numpy(np.array(n, np.int64)) for n in (inputs, lengths))
    return read(log_probs), cast(rows, torch.int64), *lengths


@kernel("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    arguments = _ctc_arguments(log_probs, targets, input_lengths, target_lengths, blank)
    return _with(nn_ops.CTCLossV2, blank, "none", False)(*arguments)


@kernel("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    arguments = _ctc_arguments(log_probs, targets, input_lengths, target_lengths, blank)
    primitive = _with(nn_ops.CTCLossV2Grad, blank, "none", bool(zero_infinity))
    return primitive(read(grad), *arguments, read(neg_log_likelihood), read(log_alpha))
