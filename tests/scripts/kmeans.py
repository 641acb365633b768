"""k-means in plain tensor code: cdist, argmin, boolean masks, index_add, in-place updates."""

import numpy as np
import torch

rng = np.random.RandomState(0)
points = torch.from_numpy(np.concatenate([rng.randn(40, 2) + c for c in ([0, 0], [5, 5], [0, 6])])).float()
torch.manual_seed(1)
centers = points[torch.randperm(len(points))[:3]].clone()
for _ in range(10):
    distance = torch.cdist(points, centers)
    assign = distance.argmin(dim=1)
    previous = centers.clone()
    for k in range(3):
        mask = assign == k
        if mask.any():
            centers[k] = points[mask].mean(dim=0)
    if torch.allclose(previous, centers):
        break
counts = torch.bincount(assign, minlength=3)
sums = torch.zeros(3, 2).index_add_(0, assign, points)
order = torch.argsort(centers[:, 0] + 10 * centers[:, 1])
print("result:", " ".join(f"{v:.6f}" for v in centers[order].flatten().tolist()))
print("result:", *counts[order].tolist())
assert torch.allclose(sums / counts.unsqueeze(1), centers, atol=1e-5)
print(f"result: {distance.min(dim=1).values.sum().item():.5f}")
