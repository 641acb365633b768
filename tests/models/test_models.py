"""Every model trains on the device as on the CPU: losses, gradients, parameters and buffers."""

from itertools import cycle

import pytest
import torch

from . import CASES, compare

PAIRS = [("mlp", optimizer) for optimizer in compare.OPTIMIZERS]
PAIRS += zip((name for name in CASES if name != "mlp"), cycle(compare.OPTIMIZERS))


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
def test_training_step(name, optimizer, device):
    case, make_optimizer = CASES[name], compare.OPTIMIZERS[optimizer]
    torch.manual_seed(compare.SEED)
    host, module = compare.copies(case.build(), device)
    host_optimizer = make_optimizer(host.parameters())
    module_optimizer = make_optimizer(module.parameters())
    batch = case.batch(torch.Generator().manual_seed(compare.SEED))
    before = {key: value.clone() for key, value in host.state_dict().items()}

    host_losses = compare.backward(case, host, batch)
    losses = compare.backward(case, module, tuple(part.to(device) for part in batch))
    compare.same_losses(losses, host_losses, device)
    compare.same_gradients(module, host, device)

    if optimizer in compare.ADAPTIVE:
        # These turn the rounding noise of a gradient that is zero into a whole step.
        share_gradients(host, module)
    for _ in range(2):  # momentum shows in the second step
        host_optimizer.step()
        module_optimizer.step()
    compare.same_state(module, host, device)
    compare.same_optimizer_state(module_optimizer, host_optimizer, device)
    for key, _ in host.named_parameters():
        assert not torch.equal(host.state_dict()[key], before[key]), f"{key} was not trained"


def share_gradients(source, target):
    for one, other in zip(source.parameters(), target.parameters(), strict=True):
        other.grad.copy_(one.grad)


@pytest.mark.parametrize("name", ["mlp_dropout", "lstm_lm", "gpt"])
def test_dropout_is_drawn_from_torch_generator(name, device):
    """Another seed gives another loss, so that equal losses mean equal masks."""
    case = CASES[name]
    torch.manual_seed(compare.SEED)
    module = case.build().to(device)
    batch = case.batch(torch.Generator().manual_seed(compare.SEED))
    batch = tuple(part.to(device) for part in batch)

    def loss(seed):
        torch.manual_seed(seed)
        return case.loss(module, batch).item()

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)


@pytest.mark.parametrize("name", ["mlp_dropout", "resnet18", "gru_lm", "transformer", "vit"])
def test_evaluation(name, device):
    """In eval mode, without gradients: the device's loss is the CPU's, and no buffer moves."""
    case = CASES[name]
    torch.manual_seed(compare.SEED)
    host, module = compare.copies(case.build().eval(), device)
    batch = case.batch(torch.Generator().manual_seed(compare.SEED))
    before = {key: value.cpu().clone() for key, value in module.state_dict().items()}
    with torch.no_grad():
        expected = case.loss(host, batch)
        actual = case.loss(module, tuple(part.to(device) for part in batch))
    compare.same_losses([actual], [expected], device)
    for key, value in module.state_dict().items():
        assert torch.equal(value.cpu(), before[key]), key
