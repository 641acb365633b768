"""The data and the loss that the image classifiers share."""

import torch
import torch.nn.functional as F


def image_batch(n, channels, size, classes=10):
    """A function that makes images (N, C, H, W) in [0, 1) and labels (N,)."""

    def batch(generator):
        images = torch.rand(n, channels, size, size, generator=generator)
        labels = torch.randint(classes, (n,), generator=generator)
        return images, labels

    return batch


def loss(module, batch):
    images, labels = batch
    return F.cross_entropy(module(images), labels)
