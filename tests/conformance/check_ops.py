"""op_db: function, gradient, in-place variant and out= of one op."""

import contextlib
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import exceptions
from .report import DEVICE, Report, Side, rules_of
from .samples import cotangents, seed, spread
from .status import Outcome


class Plan(NamedTuple):
    """How much of an entry is run."""

    samples: int  # evenly spaced among those that PyTorch generates ...
    noncontiguous: int  # ... and so many of them once more with non-contiguous inputs
    variants: int  # samples whose in-place and out= forms are run
    second: int = 0  # samples whose gradient is differentiated once more


FULL = Plan(samples=8, noncontiguous=2, variants=3)
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)  # the first that the op has is the one of FULL
DIFFERENTIATED = (torch.float32, torch.float64, torch.complex64)


def entries():
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.full_name: op for op in op_db}


def check(op, verbose=False):
    dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None:
        return Outcome("skip", "", "PyTorch's CPU has it in none of float32, int64, bool, complex64")
    return check_dtype(op, dtype, FULL, verbose)


def check_dtype(op, dtype, plan, verbose=False):
    name = op.full_name
    if name in exceptions.SKIP:
        return Outcome("skip", "", exceptions.SKIP[name])
    report = Report(verbose)
    twice = op.supports_gradgrad and (op.full_name not in exceptions.NOT_TWICE or dtype is torch.float64)
    second = plan.second if twice else 0
    for where, sample in samples(op, dtype, plan):
        if verbose:
            print(f"  {where}: {sample.summary()}")
        variants = where in map(str, range(plan.variants))
        second -= _sample(report, op, dtype, where, sample, variants, second > 0)
    return report.outcome()


def samples(op, dtype, plan):
    """(label, SampleInput): "0", "1", ... and "0nc" for the non-contiguous form of "0"."""
    differentiable = op.supports_autograd and dtype in DIFFERENTIATED and dtype in op.supported_backward_dtypes("cpu")
    seed()
    chosen = spread(op.sample_inputs("cpu", dtype, requires_grad=differentiable), plan.samples)
    found = [(str(i), s) for i, s in enumerate(chosen)]
    for i, s in enumerate(chosen[: plan.noncontiguous]):
        try:
            found.append((f"{i}nc", s.noncontiguous()))
        except Exception:  # an input that has no such form (sparse, no tensor at all)
            continue
    return found


def _sample(report, op, dtype, where, sample, variants, second):
    """Run one sample; whether its gradient was differentiated."""
    cpu, device = Side("cpu"), Side(DEVICE)
    rules = rules_of(op.full_name, dtype)
    process = sample.output_process_fn_grad

    def comparable(side, result):
        if op.full_name in exceptions.WHICH_OF_EQUALS and not side.kwargs.get("stable"):
            return _values_at(side, result, exceptions.WHICH_OF_EQUALS[op.full_name][0])
        return process(result) if op.full_name in exceptions.UP_TO_PHASE else result

    def given(side):
        if op.full_name in exceptions.ON_HOST:
            return side.placed(sample.input), sample.args, sample.kwargs
        return side.placed((sample.input, sample.args, sample.kwargs))

    def forward(side):
        side.input, side.args, side.kwargs = given(side)
        with torch.device(side.place.device) if _makes_tensors(sample) else contextlib.nullcontext():
            side.result = op(side.input, *side.args, **side.kwargs)
        return comparable(side, side.result)

    def gradient(side):
        return _gradient(side, process(side.result), (side.input, side.args, side.kwargs))

    def gradgrad(side):
        forward(side)
        inputs = (side.input, side.args, side.kwargs)
        first = _gradient(side, process(side.result), inputs, create_graph=True)
        return _gradient(side, first, inputs) if any(x.requires_grad for x in _tensors(first)) else []

    def inplace(side):
        x, args, kwargs = given(side)
        target = x.clone()
        result = op.inplace_variant(target, *args, **kwargs)
        grads = _gradient(side, process(result), (x, args, kwargs)) if result.requires_grad else []
        return result, result is target, target._version, grads

    if not report.check(where, "forward", forward, cpu, device, rules) or not rules.values:
        return False
    leaves = cpu.place.leaves((cpu.input, cpu.args, cpu.kwargs))
    differentiated = False
    if leaves and any(x.requires_grad for x in _tensors(cpu.result)):
        report.check(where, "grad", gradient, cpu, device, rules)
        differentiated = second and report.check(where, "gradgrad", gradgrad, Side("cpu"), Side(DEVICE), rules)
    if not variants:
        return differentiated
    if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        report.check(where, "inplace", inplace, Side("cpu"), Side(DEVICE), rules, counts=False)
    if op.supports_out and _can_be_out(cpu.result):
        for kind in ("empty",) if op.full_name in exceptions.NO_STRIDED_OUT else ("empty", "strided"):
            step = _out_step(op, given, cpu.result, kind, comparable)
            report.check(where, "out", step, Side("cpu"), Side(DEVICE), rules, counts=False)
    return differentiated


def _values_at(side, result, position):
    """(values, indices) with the input's values there in the place of the indices, which are left their shape."""
    values, index = (None, result) if isinstance(result, torch.Tensor) else result
    dim = side.args[position] if len(side.args) > position else side.kwargs.get("dim", -1)
    whole = index if index.dim() == side.input.dim() else index.unsqueeze(dim)
    return values, side.input.detach().gather(dim, whole) if side.input.dim() else side.input.detach(), index.shape


def _makes_tensors(sample):
    """A factory that is not told a device: it follows the default device."""
    inputs = (sample.input, sample.args, sample.kwargs)
    return not _tensors(inputs) and sample.kwargs.get("device") is None


def _tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _gradient(side, outputs, inputs, **options):
    outputs = [x for x in _tensors(outputs) if x.requires_grad]
    given = cotangents(outputs, side.place)
    return torch.autograd.grad(outputs, side.place.leaves(inputs), given, allow_unused=True, **options)


def _can_be_out(result):
    values = [result] if isinstance(result, torch.Tensor) else result
    return isinstance(values, (list, tuple)) and len(values) > 0 and all(type(x) is torch.Tensor for x in values)


def _out_step(op, given, result, kind, comparable):
    """A call with out=: empty tensors, which are resized, or old values in memory that is not contiguous."""

    def target(x):
        if kind == "empty":
            return torch.empty(0, dtype=x.dtype)
        return torch.full((*x.shape, 2), 7).to(x.dtype)[..., 0]

    def step(side):
        like = tree_map(target, result if isinstance(result, torch.Tensor) else tuple(result))
        side.input, side.args, side.kwargs = given(side)
        out = side.placed(like)
        with torch.no_grad():
            answer = op(side.input, *side.args, **side.kwargs, out=out)
        same = [a is b for a, b in zip(_tensors(answer), _tensors(out))]
        return comparable(side, out), same

    return step
