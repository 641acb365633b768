"""A variational autoencoder (Kingma and Welling, 2013)."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    """(N, 784) -> its reconstruction (N, 784), and the mean and log variance (N, latent)."""

    def __init__(self, hidden=400, latent=20):
        super().__init__()
        self.encode = nn.Linear(784, hidden)
        self.mean = nn.Linear(hidden, latent)
        self.log_var = nn.Linear(hidden, latent)
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 784), nn.Sigmoid())

    def forward(self, x):
        h = F.relu(self.encode(x))
        mean, log_var = self.mean(h), self.log_var(h)
        std = torch.exp(0.5 * log_var)
        z = mean + std * torch.randn_like(std)
        return self.decode(z), mean, log_var


def batch(generator):
    return (torch.rand(8, 784, generator=generator),)


def loss(module, batch):
    (x,) = batch
    reconstruction, mean, log_var = module(x)
    reconstruction_loss = F.binary_cross_entropy(reconstruction, x, reduction="sum")
    kl = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
    return (reconstruction_loss + kl) / len(x)
