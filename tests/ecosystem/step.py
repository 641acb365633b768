"""One training step of a model on the CPU and on the device, and the rule by which the two agree.

The rule, in float32, for every tensor: each value is off by at most `RELATIVE` of the tensor's largest value, or by
`NOISE` of the largest of its kind in the model, whichever is more. (A bias in front of a normalization has the gradient
zero; both sides compute rounding noise.) Of a parameter it is the step that is compared, and two units in the last place
of the parameter are granted. Where a tensor is off by more, the same step in float64 on the CPU decides: the device's
largest error must be at most `AS_NEAR` times that of the CPU's own float32.
"""

import copy
import dataclasses

import torch
from torch.utils._pytree import tree_map

import msadapter
from msadapter.config import set_config

SEED = 0
RELATIVE, NOISE, TWO_ULPS, AS_NEAR = 1e-4, 5e-6, 2.4e-7, 4

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
}


@dataclasses.dataclass(frozen=True)
class Case:
    build: object  # () -> the module
    batch: object  # () -> what `loss` takes
    loss: object  # (module, batch) -> a scalar
    optimizer: str = "sgd"
    fallback: tuple = ()  # the ops that the host computes; (): the whole step is native
    seed: int = SEED


@dataclasses.dataclass
class Step:
    """What a training step leaves behind: tensors by name."""

    loss: dict
    gradients: dict
    steps: dict  # what the optimizer added to each parameter
    buffers: dict
    parameters: dict


def to(x, device):
    return tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, x)


def double(x):
    return tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, x)


def build(case):
    torch.manual_seed(case.seed)
    return case.build().train(), case.batch()


def train(case, module, batch, gradients=None):
    """One step; with `gradients`, the optimizer takes those instead of the module's own."""
    optimizer = OPTIMIZERS[case.optimizer](module.parameters())
    before = {name: p.detach().cpu().clone() for name, p in module.named_parameters()}
    torch.manual_seed(case.seed)
    loss = case.loss(module, batch)
    loss.backward()
    own = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    for name, p in module.named_parameters():
        if gradients is not None and p.grad is not None:
            p.grad.copy_(gradients[name])
    optimizer.step()
    after = {name: p.detach() for name, p in module.named_parameters()}
    steps = {name: p.cpu() - before[name] for name, p in after.items()}
    return Step({"": loss.detach()}, own, steps, dict(module.named_buffers()), after)


def check(case, device):
    """The step on the device is the CPU's. Returns, in words, the tensors on which float64 had to decide."""
    module, batch = build(case)
    twin, moved = copy.deepcopy(module).to(device), to(batch, device)
    expected = train(case, module, batch)
    assert torch.isfinite(expected.loss[""])
    # AdamW's first step is the sign of the gradient, even of one that is noise: both sides get the same gradients.
    shared = expected.gradients if case.optimizer == "adamw" else None

    old = set_config(fallback="silent" if case.fallback else "error")
    msadapter.reset_fallbacks()
    try:
        actual = train(case, twin, moved, shared)
    finally:
        set_config(**dataclasses.asdict(old))
    assert set(msadapter.fallbacks()) == set(case.fallback)
    for p in (*twin.parameters(), *twin.buffers(), *actual.gradients.values()):
        assert p.device.type == device.type

    far = list(_far(expected, actual))
    if not far:
        return []
    module, batch = build(case)
    exact = train(case, module.double(), double(batch), shared)
    words, wrong = [], False
    for kind, name, off, allowed in far:
        e, a, x = (getattr(step, kind)[name].cpu().double() for step in (expected, actual, exact))
        ours, theirs = _largest(a - x), _largest(e - x)
        wrong |= not ours <= AS_NEAR * theirs
        words.append(f"{kind} {name}: off by {off:.1e}, allowed {allowed:.1e}; error {ours:.1e}, the CPU's {theirs:.1e}")
    assert not wrong, "\n".join(words)
    return words


def _far(expected, actual):
    """(kind, name, difference, what is allowed) where the rule does not hold."""
    for kind in ("loss", "gradients", "steps", "buffers"):
        e, a = getattr(expected, kind), {name: x.cpu() for name, x in getattr(actual, kind).items()}
        assert e.keys() == a.keys(), kind
        real = {name: _largest(x) for name, x in e.items() if x.is_floating_point() and x.numel()}
        top = max(real.values(), default=0)
        for name in e:
            assert a[name].shape == e[name].shape and a[name].dtype is e[name].dtype, f"{kind} {name}"
            if name not in real:
                assert torch.equal(a[name], e[name]), f"{kind} {name}"
                continue
            allowed = max(RELATIVE * real[name], NOISE * top)
            if kind == "steps":
                allowed += TWO_ULPS * _largest(expected.parameters[name])
            off = _largest(a[name] - e[name])
            if not off <= allowed:
                yield kind, name, off, allowed


def _largest(x):
    return x.abs().max().item()
