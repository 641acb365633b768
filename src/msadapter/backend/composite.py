"""Ops that torch can express by other ops: its decompositions, run on the device.

Registered last, only for ops that have no kernel of ours and none of torch's own composite ones.
"""

import torch
from torch._decomp import decomposition_table

from . import registry

# Decompositions that are wrong or useless for an eager device, with the reason.
SKIP = {
    "empty_like",  # makes memory; torch's own composite kernel does it
}


def register():
    """Register torch's decomposition for every op that would otherwise fall back to the host."""
    for op, fn in decomposition_table.items():
        if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
            continue
        name = registry._name(op)
        if name in registry.NATIVE or name in SKIP or any(a.is_out for a in op._schema.arguments):
            continue
        if any(a.alias_info is not None for a in op._schema.arguments):
            continue
        if torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1"):
            continue
        registry.raw(name)(fn)
