"""A custom Dataset that returns NumPy arrays, random_split with a Generator, numpy masks, evaluation in NumPy."""

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split


class Waves(Dataset):
    def __init__(self, n):
        rng = np.random.RandomState(0)
        self.phase = rng.rand(n) * 6
        self.label = (self.phase > 3).astype(np.int64)

    def __len__(self):
        return len(self.phase)

    def __getitem__(self, i):
        wave = np.sin(np.linspace(0, 3, 20) + self.phase[i]).astype(np.float32)
        return wave, self.label[i]


torch.manual_seed(0)
train, test = random_split(Waves(80), [60, 20], generator=torch.Generator().manual_seed(42))
model = nn.Sequential(nn.Linear(20, 16), nn.Sigmoid(), nn.Linear(16, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
for epoch in range(4):
    for wave, label in DataLoader(train, batch_size=15, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(wave).squeeze(1), label.float())
        loss.backward()
        optimizer.step()
    print(f"result: {loss.item():.7f}")

predictions, targets = [], []
with torch.no_grad():
    for wave, label in DataLoader(test, batch_size=10):
        predictions.append(torch.sigmoid(model(wave)).numpy())
        targets.append(label.numpy())
predictions, targets = np.concatenate(predictions)[:, 0], np.concatenate(targets)
mask = predictions > 0.5
print(f"result: {np.mean(mask == targets):.4f} {predictions.mean():.6f}")
scores = torch.from_numpy(predictions)
weights = torch.ones(20) * 2
print(f"result: {weights[mask].sum().item():.4f} {(weights * scores).sum().item():.6f}")
