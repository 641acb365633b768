"""FGSM: the gradient with respect to a batch that came from a DataLoader over NumPy images."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

rng = np.random.RandomState(0)
images = [(rng.rand(1, 6, 6).astype(np.float32), int(i % 3)) for i in range(12)]
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
model.eval()
for data, target in DataLoader(images, batch_size=6, num_workers=1):
    data.requires_grad = True
    loss = F.cross_entropy(model(data), target)
    model.zero_grad()
    loss.backward()
    assert data.grad is not None and data.grad.shape == data.shape
    perturbed = torch.clamp(data + 0.1 * data.grad.sign(), 0, 1)
    after = F.cross_entropy(model(perturbed), target)
    print(f"result: {loss.item():.7f} {after.item():.7f} {data.grad.abs().sum().item():.6f}")
