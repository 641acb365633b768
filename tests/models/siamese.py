"""A Siamese network: one encoder, trained so that like images lie close together."""

import torch
import torch.nn.functional as F
from torch import nn


class Siamese(nn.Module):
    """(N, 1, 28, 28) -> unit vectors (N, embedding)."""

    def __init__(self, embedding=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.PReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.PReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, embedding),
        )

    def forward(self, images):
        return F.normalize(self.encoder(images), dim=1)


criterion = nn.TripletMarginLoss(margin=1.0)


def batch(generator):
    """Anchors, images like them and images unlike them, each (N, 1, 28, 28)."""
    anchor = torch.rand(4, 1, 28, 28, generator=generator)
    noise = torch.rand(4, 1, 28, 28, generator=generator)
    negative = torch.rand(4, 1, 28, 28, generator=generator)
    return anchor, 0.9 * anchor + 0.1 * noise, negative


def loss(module, batch):
    anchor, positive, negative = batch
    return criterion(module(anchor), module(positive), module(negative))
