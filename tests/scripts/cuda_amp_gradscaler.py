"""Mixed precision as written for years: torch.cuda.amp, GradScaler, unscale and clip."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

torch.manual_seed(0)
use_cuda = torch.cuda.is_available()
device = "cuda" if use_cuda else "cpu"
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True

model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
model.to(device)
x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = GradScaler(enabled=use_cuda)
losses = []
for step in range(8):
    optimizer.zero_grad(set_to_none=True)
    with autocast(enabled=False):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
    print(f"result: {loss.item():.7f} {norm.item():.7f}")

with torch.no_grad(), autocast(enabled=use_cuda, dtype=torch.float16):
    half = model(x)
assert half.dtype == (torch.float16 if use_cuda else torch.float32)
assert losses[-1] < losses[0]
if use_cuda:
    assert scaler.get_scale() == 65536.0
    print(torch.cuda.get_device_name(0), torch.cuda.max_memory_allocated() > 0)
