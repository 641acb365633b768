"""U-Net: an encoder and a decoder joined by skip connections."""

import torch
import torch.nn.functional as F
from torch import nn


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """(N, channels, H, W) -> (N, classes, H, W); H and W are multiples of 2**depth."""

    def __init__(self, channels=3, classes=2, width=64, depth=4):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(double_conv(i, o) for i, o in zip([channels, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(double_conv(w * 2, w) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for block in self.down[:-1]:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def batch(generator):
    images = torch.rand(2, 3, 16, 16, generator=generator)
    labels = torch.randint(2, (2, 16, 16), generator=generator)
    return images, labels


def loss(module, batch):
    images, labels = batch
    return F.cross_entropy(module(images), labels)
