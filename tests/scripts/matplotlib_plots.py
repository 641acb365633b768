"""Fit a curve and draw it: tensors go straight into matplotlib."""

import os
import tempfile

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

torch.manual_seed(0)
x = torch.linspace(-3, 3, 50)
y = torch.sin(x) + 0.1 * torch.randn(50)
coefficients = torch.zeros(4, requires_grad=True)
powers = torch.stack([x**k for k in range(4)])
losses = []
for _ in range(100):
    loss = ((coefficients @ powers - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        coefficients -= 5e-3 * coefficients.grad
        coefficients.grad = None
    losses.append(loss.detach())

figure, axes = plt.subplots(2, 2)
axes[0, 0].plot(x, y, "o", label="data")
axes[0, 0].plot(x.numpy(), (coefficients @ powers).detach().numpy(), label="fit")
axes[0, 1].plot(losses)
axes[1, 0].imshow(torch.rand(8, 8), cmap="gray")
axes[1, 1].hist(y, bins=10)
axes[1, 1].scatter(x[:5], y[:5], c=torch.arange(5))
axes[1, 1].set_title(f"loss {losses[-1]:.3f}")
path = os.path.join(tempfile.mkdtemp(), "fit.png")
figure.savefig(path)
assert os.path.getsize(path) > 5000
line = axes[0, 0].lines[1].get_ydata()
print("result:", " ".join(f"{v:.6f}" for v in coefficients.tolist()))
print(f"result: {line.sum():.5f} {losses[-1]:.7f}")
