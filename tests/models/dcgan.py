"""DCGAN: a generator and a discriminator trained against each other."""

import torch
import torch.nn.functional as F
from torch import nn


class Generator(nn.Module):
    """(N, latent, 1, 1) -> (N, channels, 16, 16) in (-1, 1)."""

    def __init__(self, latent, channels, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(latent, width * 2, 4, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width * 2, width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.layers(z)


class Discriminator(nn.Module):
    """(N, channels, 16, 16) -> logits (N,)."""

    def __init__(self, channels, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 4, stride=2, padding=1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, width * 2, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width * 2, 1, 4, bias=False),
        )

    def forward(self, x):
        return self.layers(x).flatten()


class DCGAN(nn.Module):
    def __init__(self, latent=100, channels=3, width=64):
        super().__init__()
        self.generator = Generator(latent, channels, width)
        self.discriminator = Discriminator(channels, width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 4:
                nn.init.normal_(parameter, 0.0, 0.02)
            elif name.endswith("weight"):
                nn.init.normal_(parameter, 1.0, 0.02)


def batch(generator):
    images = torch.rand(4, 3, 16, 16, generator=generator) * 2 - 1
    noise = torch.randn(4, 16, 1, 1, generator=generator)
    return images, noise


def loss(module, batch):
    """The losses of the discriminator and of the generator, each of its own parameters only."""
    images, noise = batch
    discriminate = module.discriminator
    fake = module.generator(noise)

    real_logits = discriminate(images)
    fake_logits = discriminate(fake.detach())
    discriminator_loss = F.binary_cross_entropy_with_logits(
        real_logits, torch.ones_like(real_logits)
    ) + F.binary_cross_entropy_with_logits(fake_logits, torch.zeros_like(fake_logits))

    discriminate.requires_grad_(False)
    probabilities = torch.sigmoid(discriminate(fake))
    generator_loss = F.binary_cross_entropy(probabilities, torch.ones_like(probabilities))
    discriminate.requires_grad_(True)
    return [discriminator_loss, generator_loss]
