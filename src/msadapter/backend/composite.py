"""Ops that torch can express by other ops: its decompositions, run on the device.

Registered last, only for ops that have no kernel of ours and no composite kernel of torch's own. The table comes from
torch, so that a newer torch brings newer decompositions.
"""

import threading

import torch
from torch._decomp import decomposition_table

from . import registry
from .storage import read_fresh


class _Running(threading.local):
    """The decompositions under way on this thread."""

    def __init__(self):
        self.names = set()


_running = _Running()

# Decompositions that are no use on an eager device, with the reason.
SKIP = {
    "empty_like",  # these two make memory: torch's composite kernels do it, with the right strides
    "new_empty_strided",
    "_scaled_dot_product_flash_attention_for_cpu",  # its second result is padded for a GPU
}


def register():
    """Register torch's decomposition of every op that would otherwise run on the host."""
    for op, fn in decomposition_table.items():
        if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten" and _wanted(op):
            pointwise = torch.Tag.pointwise in op.tags
            registry.kernel(registry._name(op), layout=pointwise)(_values(registry._name(op), fn))


def _wanted(op):
    name = registry._name(op)
    if name in registry.NATIVE or name in SKIP:
        return False
    if any(a.alias_info is not None for a in op._schema.arguments):
        return False  # views, in-place and out= forms: the functional form serves them
    if not all(str(r.type) in ("Tensor", "List[Tensor]") for r in op._schema.returns) or not op._schema.returns:
        return False
    key = f"aten::{name}"
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(key, "PrivateUse1"):
        return True
    # A structured op: torch's functional kernel allocates and calls the out= form, which nobody has.
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(key, "CompositeExplicitAutogradNonFunctional")


def _values(name, fn):
    """fn makes device tensors; a kernel returns their values.

    Some decompositions end in the op itself (by way of a prim): those are no decompositions to us.
    """

    def run(*args, **kwargs):
        if name in _running.names:
            raise registry.Decline("torch's decomposition comes back to this op")
        _running.names.add(name)
        try:
            result = fn(*args, **kwargs)
        finally:
            _running.names.discard(name)
        if isinstance(result, torch.Tensor):
            return read_fresh(result)
        return tuple(read_fresh(r) if r is not None else None for r in result)

    return run
