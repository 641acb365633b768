"""op_db: function, gradient, in-place variant and out= of one op."""

import contextlib

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import exceptions
from .report import DEVICE, Report, Side, rules_of
from .samples import cotangents, seed, spread
from .status import Outcome

SAMPLES = 8  # evenly spaced among those that PyTorch generates ...
NONCONTIGUOUS = 2  # ... and so many of them once more with non-contiguous inputs
VARIANTS = 3  # samples whose in-place and out= forms are run
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def entries():
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.full_name: op for op in op_db}


def check(op, verbose=False):
    name = op.full_name
    if name in exceptions.SKIP:
        return Outcome("skip", "", exceptions.SKIP[name])
    dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None:
        return Outcome("skip", "", "PyTorch's CPU has it in none of float32, int64, bool, complex64")
    report = Report(verbose)
    for where, sample in samples(op, dtype):
        if verbose:
            print(f"  {where}: {sample.summary()}")
        _sample(report, op, where, sample, variants=where in map(str, range(VARIANTS)))
    return report.outcome()


def samples(op, dtype):
    """(label, SampleInput): "0", "1", ... and "0nc" for the non-contiguous form of "0"."""
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    seed()
    chosen = spread(op.sample_inputs("cpu", dtype, requires_grad=differentiable), SAMPLES)
    found = [(str(i), s) for i, s in enumerate(chosen)]
    for i, s in enumerate(chosen[:NONCONTIGUOUS]):
        try:
            found.append((f"{i}nc", s.noncontiguous()))
        except Exception:  # an input that has no such form (sparse, no tensor at all)
            continue
    return found


def _sample(report, op, where, sample, variants):
    cpu, device = Side("cpu"), Side(DEVICE)
    rules = rules_of(op.full_name)
    process = sample.output_process_fn_grad
    comparable = process if op.full_name in exceptions.UP_TO_PHASE else lambda x: x

    def given(side):
        if op.full_name in exceptions.ON_HOST:
            return side.placed(sample.input), sample.args, sample.kwargs
        return side.placed((sample.input, sample.args, sample.kwargs))

    def forward(side):
        side.input, side.args, side.kwargs = given(side)
        with torch.device(side.place.device) if _makes_tensors(sample) else contextlib.nullcontext():
            side.result = op(side.input, *side.args, **side.kwargs)
        return comparable(side.result)

    def gradient(side):
        return _gradient(side, process(side.result), (side.input, side.args, side.kwargs))

    def inplace(side):
        x, args, kwargs = given(side)
        target = x.clone()
        result = op.inplace_variant(target, *args, **kwargs)
        grads = _gradient(side, process(result), (x, args, kwargs)) if result.requires_grad else []
        return result, result is target, target._version, grads

    if not report.check(where, "forward", forward, cpu, device, rules) or not rules.values:
        return
    leaves = cpu.place.leaves((cpu.input, cpu.args, cpu.kwargs))
    if leaves and any(x.requires_grad for x in _tensors(cpu.result)):
        report.check(where, "grad", gradient, cpu, device, rules)
    if not variants:
        return
    if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        report.check(where, "inplace", inplace, Side("cpu"), Side(DEVICE), rules, counts=False)
    if op.supports_out and _can_be_out(cpu.result):
        for kind in ("empty",) if op.full_name in exceptions.NO_STRIDED_OUT else ("empty", "strided"):
            step = _out_step(op, sample, cpu.result, kind, comparable)
            report.check(where, "out", step, Side("cpu"), Side(DEVICE), rules, counts=False)


def _makes_tensors(sample):
    """A factory that is not told a device: it follows the default device."""
    inputs = (sample.input, sample.args, sample.kwargs)
    return not _tensors(inputs) and sample.kwargs.get("device") is None


def _tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _gradient(side, outputs, inputs):
    outputs = [x for x in _tensors(outputs) if x.requires_grad]
    given = cotangents(outputs, side.place)
    return torch.autograd.grad(outputs, side.place.leaves(inputs), given, allow_unused=True)


def _can_be_out(result):
    values = [result] if isinstance(result, torch.Tensor) else result
    return isinstance(values, (list, tuple)) and len(values) > 0 and all(type(x) is torch.Tensor for x in values)


def _out_step(op, sample, result, kind, comparable):
    """A call with out=: empty tensors, which are resized, or old values in memory that is not contiguous."""

    def target(x):
        if kind == "empty":
            return torch.empty(0, dtype=x.dtype)
        return torch.full((*x.shape, 2), 7).to(x.dtype)[..., 0]

    def step(side):
        like = tree_map(target, result if isinstance(result, torch.Tensor) else tuple(result))
        x, args, kwargs, out = side.placed((sample.input, sample.args, sample.kwargs, like))
        with torch.no_grad():
            answer = op(x, *args, **kwargs, out=out)
        same = [a is b for a, b in zip(_tensors(answer), _tensors(out))]
        return comparable(out), same

    return step
