"""A script for Ascend: torch_npu, torch.npu, 'npu:0'."""

import torch
import torch.nn as nn

try:
    import torch_npu  # noqa: F401
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    torch.npu.set_device("npu:0")
    device = torch.device("npu:0")
except ImportError:
    device = torch.device("cpu")

torch.manual_seed(0)
model = nn.Linear(4, 2).to(device)
x = torch.ones(3, 4, device=device) * torch.arange(4.0, device=device)
if device.type != "cpu":
    assert torch.npu.is_available() and torch.npu.device_count() == 1
    assert model.weight.device.type == torch.zeros(1, device="npu").device.type
    x = x.npu()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"result: {loss.item():.7f}")
