"""optim_db: some steps of one optimizer, in each of its implementations, its state, and a state_dict round trip."""

import copy

import torch

from .report import DEVICE, Report, Side, rules_of
from .samples import seed

STEPS = 3
SHAPES = ((3, 5), (4, 2), (6, 6))


def entries():
    from torch.testing._internal.common_optimizers import optim_db

    return {info.name: info for info in optim_db}


def check(info, verbose=False):
    report = Report(verbose)
    for i, given in enumerate(info.optim_inputs_func(device="cpu")):
        for flags in _flags(info, given.kwargs):
            where = f"{i} {given.desc} {' '.join(flags)}".strip()
            if verbose:
                print(f"  {where}: {given.kwargs} {flags}")
            _input(report, info, where, {**given.kwargs, **flags})
    return report.outcome()


def _flags(info, kwargs):
    """The default implementation, and each other that the optimizer has."""
    choices = [{}]
    if "foreach" in info.supported_impls:
        choices += [{"foreach": True}, {"foreach": False}]
    if "fused" in info.supported_impls and "cpu" in info.supports_fused_on:
        choices.append({"fused": True})
    return [c for c in choices if not any(k in kwargs for k in ("foreach", "fused", "differentiable")) or not c]


def _input(report, info, where, kwargs):
    cpu, device = Side("cpu"), Side(DEVICE)
    seed()
    start = [torch.randn(shape) for shape in SHAPES]
    gradients = [[torch.randn(shape) for shape in SHAPES] for _ in range(2 * STEPS)]
    if info.only_supports_sparse_grads:
        gradients = [[g.to_sparse(1) for g in step] for step in gradients]

    def train(side, first):
        for step in gradients[first : first + STEPS]:
            placed = side.placed(step)
            for p, g in zip(side.parameters, placed):
                p.grad = g
            side.optimizer.step(_closure(side) if info.step_requires_closure else None)
        if info.step_requires_closure:  # LBFGS: its history is made of differences of nearly equal gradients
            return side.parameters
        return side.parameters, [side.optimizer.state[p] for p in side.parameters]

    def steps(side):
        side.parameters = [p.requires_grad_() for p in side.placed(start)]
        side.optimizer = info.optim_cls(side.parameters, **copy.deepcopy(kwargs))
        return train(side, 0)

    def resumed(side):
        state = copy.deepcopy(side.optimizer.state_dict())
        side.optimizer = info.optim_cls(side.parameters, **copy.deepcopy(kwargs))
        side.optimizer.load_state_dict(state)
        return train(side, STEPS)

    # `step` counters and the like are host tensors on either side: only the parameters must be on the device
    rules = rules_of(info.name, device=None)
    if report.check(where, "steps", steps, cpu, device, rules):
        report.check(where, "resumed", resumed, cpu, device, rules)


def _closure(side):
    def closure():
        side.optimizer.zero_grad()
        loss = sum((p - 1).square().sum() for p in side.parameters)
        if side.optimizer.defaults.get("maximize"):
            loss = -loss
        loss.backward()
        return loss

    return closure
