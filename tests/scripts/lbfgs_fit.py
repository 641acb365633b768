"""Fit a function with LBFGS and a closure; parameters made with nn.Parameter(torch.Tensor(...))."""

import math

import torch
from torch import nn


class Cosines(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.amplitude = nn.Parameter(torch.Tensor(n, 1))
        self.frequency = nn.Parameter(torch.FloatTensor([[1.0], [2.0], [3.0]]))
        self.phase = nn.Parameter(torch.zeros(n, 1))
        self.register_buffer("scale", torch.FloatTensor([0.5]))
        nn.init.kaiming_uniform_(self.amplitude, a=math.sqrt(5))

    def forward(self, t):
        return self.scale * (self.amplitude * torch.cos(self.frequency * t + self.phase)).sum(0)


torch.manual_seed(0)
t = torch.linspace(0, 6, 80)
target = torch.cos(1.1 * t + 0.2) - 0.5 * torch.cos(2.05 * t)
model = Cosines()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(t), target)
    loss.backward()
    return loss


for _ in range(4):
    loss = optimizer.step(closure)
    print(f"result: {loss.item():.6f}")
assert len(list(model.parameters())) == 3 and "scale" in model.state_dict()
