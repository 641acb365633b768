"""Save a checkpoint, lose everything, resume from it with map_location."""

import os
import tempfile

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    return model, optimizer, scheduler


def run(model, optimizer, scheduler, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
    return loss.item()


torch.manual_seed(0)
x, y = torch.randn(20, 6).to(device), torch.randint(0, 2, (20,)).to(device)
loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])).to(device)

model, optimizer, scheduler = build()
print(f"result: first {run(model, optimizer, scheduler, 5):.7f}")
path = os.path.join(tempfile.mkdtemp(), "checkpoint.pth.tar")
torch.save({"epoch": 5, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict()}, path)  # fmt: skip
straight = run(model, optimizer, scheduler, 5)
print(f"result: straight {straight:.7f}")

for location in (device, "cpu", lambda storage, loc: storage, {"cuda:0": str(device)}):
    model, optimizer, scheduler = build()
    checkpoint = torch.load(path, map_location=location)
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    assert checkpoint["epoch"] == 5
    resumed = run(model, optimizer, scheduler, 5)
    assert abs(resumed - straight) < 1e-6, (resumed, straight)
    print(f"result: resumed {resumed:.7f}")

cpu_state = torch.load(path, map_location=torch.device("cpu"))["state_dict"]
assert all(not v.is_cuda for v in cpu_state.values())
