"""A GAN on points of a circle: two optimizers, labels made with torch.ones, a NumPy data source."""

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
for step in range(10):
    angle = rng.uniform(0, 2 * np.pi, 32)
    real = torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], 1)).float()
    valid, fake = torch.ones(real.size(0), 1), torch.zeros(real.size(0), 1)

    opt_d.zero_grad()
    generated = generator(torch.randn(32, 4))
    d_loss = (criterion(discriminator(real), valid) + criterion(discriminator(generated.detach()), fake)) / 2
    d_loss.backward()
    opt_d.step()

    opt_g.zero_grad()
    g_loss = criterion(discriminator(generated), valid)
    g_loss.backward()
    opt_g.step()
    print(f"result: {d_loss.item():.7f} {g_loss.item():.7f}")

# gradient penalty on interpolates of real (from NumPy) and generated points
alpha = torch.rand(32, 1)
between = (alpha * real + (1 - alpha) * generated.detach()).requires_grad_(True)
grad = torch.autograd.grad(discriminator(between).sum(), between, create_graph=True)[0]
penalty = ((grad.norm(2, dim=1) - 1) ** 2).mean()
penalty.backward()
print(f"result: {penalty.item():.7f}")
