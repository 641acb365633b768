"""torch.autocast(device_type=...) in the new spelling, with torch.amp.GradScaler."""

import torch
import torch.nn as nn

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler(device.type)
x = torch.randn(32, 8, device=device)
y = x.sum(dim=1, keepdim=True)
for _ in range(5):
    opt.zero_grad()
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
        out = net(x)
        assert out.dtype == torch.bfloat16
    loss = nn.functional.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(f"result: {loss.item():.7f}")
