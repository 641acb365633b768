"""op_db in every dtype, and module_db in float64: a few samples of each (entry, dtype), "abs float64"."""

import torch

from . import check_modules, check_ops
from .check_ops import Plan

PLAN = Plan(samples=4, noncontiguous=1, variants=1, second=1)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


def entries():
    found = {}
    for name, op in check_ops.entries().items():
        supported = op.supported_dtypes("cpu")
        found.update({f"{name} {_short(d)}": (check_ops, op, d, PLAN) for d in DTYPES if d in supported})
    for name, info in check_modules.entries().items():
        found[f"{name} float64"] = (check_modules, info, torch.float64, PLAN.samples)
    return found


def check(entry, verbose=False):
    module, item, dtype, plan = entry
    return module.check_dtype(item, dtype, plan, verbose)


def _short(dtype):
    return str(dtype).removeprefix("torch.")
