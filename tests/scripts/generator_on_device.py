"""Reproducible sampling with torch.Generator(device=...), randperm and multinomial on the device."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
g = torch.Generator(device=device)
g.manual_seed(2147483647)
x = torch.randn(5, 3, generator=g, device=device)
p = torch.rand(4, 27, generator=g, device=device)
p = p / p.sum(1, keepdim=True)
picks = torch.multinomial(p, num_samples=6, replacement=True, generator=g)
order = torch.randperm(10, generator=g, device=device)
ints = torch.randint(0, 100, (4,), generator=g, device=device)
print("result:", " ".join(f"{v:.6f}" for v in x.flatten().tolist()))
print("result:", *picks.flatten().tolist())
print("result:", *order.tolist(), *ints.tolist())

state = g.get_state()
a = torch.rand(3, generator=g, device=device)
g.set_state(state)
assert torch.equal(a, torch.rand(3, generator=g, device=device))
torch.manual_seed(5)
first = torch.rand(2, device=device)
torch.manual_seed(5)
assert torch.equal(first, torch.rand(2, device=device))
