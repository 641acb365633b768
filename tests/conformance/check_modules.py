"""module_db: construction, state_dict, moves, forward, gradients of inputs and parameters, and buffers of one module."""

import io

import torch

from .check_ops import _tensors
from .report import DEVICE, Report, Side, rules_of
from .samples import cotangents, seed, spread

SAMPLES = 8


def entries():
    from torch.testing._internal.common_modules import module_db

    found = {}
    for info in module_db:
        found[info.name if info.name not in found else f"{info.name} ({info.module_inputs_func.__name__})"] = info
    return found


def check(info, verbose=False):
    return check_dtype(info, torch.float32, SAMPLES, verbose)


def check_dtype(info, dtype, count, verbose=False):
    report = Report(verbose)
    for training in (True, False):
        seed()
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for i, given in enumerate(spread(inputs, count if training or info.train_and_eval_differ else count // 4)):
            where = f"{i}{'' if training else ' eval'}"
            if verbose:
                print(f"  {where}: {given.desc} {given.constructor_input.args} {given.constructor_input.kwargs}")
            _input(report, info, dtype, where, given, training)
    return report.outcome()


def _input(report, info, dtype, where, given, training):
    cpu, device = Side("cpu"), Side(DEVICE)
    rules = rules_of(info.name, dtype)

    def build(side):
        args, kwargs = side.placed((given.constructor_input.args, given.constructor_input.kwargs))
        seed()
        side.module = info.module_cls(*args, **kwargs)
        if info.is_lazy:
            with torch.no_grad():
                side.module.to(dtype)(*given.forward_input.args, **given.forward_input.kwargs)
        side.module.to(side.place.device, side.place.wide.get(dtype, dtype)).train(training)
        return side.module.state_dict()

    def load(side):
        """Other weights than the first ones, from a state_dict on the CPU."""
        if not hasattr(cpu, "state"):
            cpu.state = {k: v * 1.5 if v.is_floating_point() else v for k, v in cpu.module.state_dict().items()}
        side.module.load_state_dict(cpu.state)
        return side.module.state_dict()

    def moved(side):
        """To the host, where its state is saved, and back; then the state is loaded into it once more."""
        side.module.cpu()
        file = io.BytesIO()
        torch.save(side.module.state_dict(), file)
        there = [x.device.type for x in side.module.state_dict().values() if isinstance(x, torch.Tensor)]
        side.module.to(side.place.device)
        file.seek(0)
        side.module.load_state_dict(torch.load(file, map_location=side.place.device))
        return there, side.module.state_dict()

    def forward(side):
        side.inputs = side.placed((given.forward_input.args, given.forward_input.kwargs))
        side.result = side.module(*side.inputs[0], **side.inputs[1])
        return side.result, dict(side.module.named_buffers())

    def gradient(side):
        outputs = [x for x in _tensors(side.result) if x.requires_grad]
        parameters = [p for p in side.module.parameters() if p.requires_grad]
        leaves = [*side.place.leaves(side.inputs), *parameters]
        return torch.autograd.grad(outputs, leaves, cotangents(outputs, side.place), allow_unused=True)

    if not report.check(where, "build", build, cpu, device, rules, counts=False):
        return
    if not report.check(where, "state", load, cpu, device, rules, counts=False):
        return
    if not report.check(where, "moved", moved, cpu, device, rules, counts=False):
        return
    if not report.check(where, "forward", forward, cpu, device, rules):
        return
    if any(x.requires_grad for x in _tensors(cpu.result)):
        report.check(where, "grad", gradient, cpu, device, rules)
