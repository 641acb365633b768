"""One training step on two devices, and the comparison of what it leaves behind."""

import copy

import torch
from torch.testing import assert_close

SEED = 20240607

# The adaptive ones divide a gradient by its own size.
ADAPTIVE = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    **ADAPTIVE,
}


def copies(module, device):
    """The module on the CPU, and a copy of it on the device."""
    return module, copy.deepcopy(module).to(device)


def backward(case, module, batch):
    """The losses of one pass, differentiated; torch's generator is seeded alike every time."""
    torch.manual_seed(SEED)
    losses = case.loss(module, batch)
    losses = losses if isinstance(losses, list) else [losses]
    for loss in losses:
        loss.backward()
    return [loss.detach() for loss in losses]


def same(actual, expected, device, what, rtol, atol):
    """Assert that the device's tensor lives there and is close to the CPU's."""
    assert actual.device.type == device.type, what
    assert_close(actual.cpu(), expected, rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}")


def same_losses(actual, expected, device):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert torch.isfinite(other)
        same(one, other, device, "loss", rtol=1e-5, atol=1e-6)


def same_gradients(actual, expected, device):
    """Compare all gradients; where they are small, so is the error allowed."""
    names = dict(expected.named_parameters())
    assert names.keys() == dict(actual.named_parameters()).keys()
    for name, parameter in actual.named_parameters():
        gradient = names[name].grad
        assert gradient is not None and parameter.grad is not None, name
        same_gradient(parameter.grad, gradient, device, f"gradient of {name}")


def same_gradient(actual, expected, device, what):
    same(actual, expected, device, what, rtol=1e-4, atol=min(1e-5, 1e-5 * expected.abs().max().item() + 1e-7))


def same_state(actual, expected, device):
    """Compare parameters and buffers."""
    entries = expected.state_dict()
    assert entries.keys() == actual.state_dict().keys()
    for name, value in actual.state_dict().items():
        same(value, entries[name], device, name, rtol=1e-5, atol=1e-6)


def same_optimizer_state(actual, expected, device):
    """Compare momenta and the like, which after one step are gradients; step counts stay where the optimizer puts them."""
    for index, entries in expected.state_dict()["state"].items():
        others = actual.state_dict()["state"][index]
        assert entries.keys() == others.keys()
        for name, value in entries.items():
            if name == "step":
                assert float(others[name]) == float(value)
            elif value is not None:
                same_gradient(others[name], value, device, f"{name} of {index}")
