"""`mindspore.nn.DistributedGradReducer(optimizer.parameters)` for torch parameters."""

import torch

from .optimizer import ParameterTuple


def new(cls, parameters, mean=None, degree=None, fusion_type=1, group=None):
    """What the class gives where the parameters are torch's."""
    return GradReducer(parameters, mean, degree, fusion_type, group)


class GradReducer:
    """reducer(grads): the gradients' mean over the ranks, as a tuple; in one process, the gradients as they are.

    All gradients travel in one all-reduce of MindSpore's communication library, as float32 (float64 is gathered).

    Args:
        parameters: the parameters, in the order of the gradients; their number is checked.
        mean: True or None: the mean; False: the sum. MindSpore takes None from its context's `gradients_mean`, whose
            default is the sum.
        degree: what the sum is divided by; default: the number of ranks.
        fusion_type: ignored: everything is fused.
        group: a communication group; default: all ranks.

    Raises:
        ValueError: degree is not a positive int; the number of gradients is wrong.
    """

    def __init__(self, parameters, mean=None, degree=None, fusion_type=1, group=None):
        if degree is not None and (not isinstance(degree, int) or degree <= 0):
            raise ValueError(f"DistributedGradReducer: expected degree as a positive int; received {degree!r}.")
        self.parameters = ParameterTuple(parameters)
        self.mean, self.degree = mean is not False, degree
        from mindspore.communication import GlobalComm, get_group_size

        self.group = group or GlobalComm.WORLD_COMM_GROUP
        self.ranks = get_group_size(self.group) if GlobalComm.INITED else 1

    def __call__(self, grads):
        grads = (grads,) if isinstance(grads, torch.Tensor) else tuple(grads)
        if len(grads) not in (len(self.parameters), sum(p.requires_grad for p in self.parameters)):
            raise ValueError(
                f"DistributedGradReducer: expected {len(self.parameters)} gradients, one for each parameter; received "
                f"{len(grads)}."
            )
        if self.ranks == 1:
            return grads
        wide = any(g.dtype is torch.float64 for g in grads)
        flat = torch.cat([g.detach().reshape(-1).to(torch.float64 if wide else torch.float32) for g in grads])
        total = self._sum(flat)
        if self.mean:
            total = total / (self.degree or self.ranks)
        parts = total.split([g.numel() for g in grads])
        return tuple(part.view(g.shape).to(g.device, g.dtype) for part, g in zip(parts, grads))

    construct = __call__

    def _sum(self, flat):
        """The sum over the ranks of a tensor of shape (n,)."""
        from mindspore import ops

        from .convert import cast_to_adapter_tensor, cast_to_ms_tensor

        value = cast_to_ms_tensor(flat, copy=False)
        if flat.dtype is torch.float64:  # MindSpore's AllReduce has no float64
            return cast_to_adapter_tensor(ops.AllGather(self.group)(value)).view(self.ranks, -1).sum(0)
        return cast_to_adapter_tensor(ops.AllReduce(ops.ReduceOp.SUM, self.group)(value))
