"""Samples: which of an entry's inputs are run, and how they come to a device."""

import random
from itertools import islice

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

LIMIT = 400  # a database entry may generate thousands of samples; no more than so many are looked at
SEED = 1234  # of the committed results; `--seed` sets another


def seed():
    """The same random numbers for all three generators that samples and ops draw from."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


def spread(items, count):
    """At most `count` of `items`, evenly spaced, the first and the last among them."""
    items = list(islice(items, LIMIT))
    if len(items) <= count or count < 2:
        return items[:count]
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


# float32 is the last of those that become float64: it is what float64 becomes on the way back
WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


class Place:
    """Copies a sample to a device: new leaf tensors of the same geometry; those that share memory still share it.

    wide: the smaller floats become float64, and complex64 complex128.
    """

    def __init__(self, device, wide=False):
        self.device = torch.device(device)
        self.wide = WIDE if wide else {}
        self._tensors = {}  # id -> (original, copy); the original is held so that its id stays its own
        self._storages = {}

    def __call__(self, tree):
        return tree_map(self._leaf, tree)

    def leaves(self, tree):
        """The placed tensors of `tree` that require a gradient, each once."""
        found = {id(x): x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad}
        return list(found.values())

    def _leaf(self, x):
        if isinstance(x, torch.Tensor):
            if id(x) not in self._tensors:
                self._tensors[id(x)] = (x, self._tensor(x))
            return self._tensors[id(x)][1]
        if isinstance(x, torch.device) and x.type == "cpu" or isinstance(x, str) and x == "cpu":
            return self.device
        if isinstance(x, torch.dtype):
            return self.wide.get(x, x)
        return x

    def _tensor(self, x):
        if x.layout is not torch.strided:
            return x.detach().to(self.device, self.wide.get(x.dtype, x.dtype), copy=True).requires_grad_(x.requires_grad)
        y = x.detach()
        if y.is_conj():
            y = self._alias(y.conj()).conj()
        elif y.is_neg():
            y = torch._neg_view(self._alias(torch._neg_view(y)))
        else:
            y = self._alias(y)
        y = y.detach().requires_grad_(x.requires_grad)
        return torch.nn.Parameter(y, x.requires_grad) if isinstance(x, torch.nn.Parameter) else y

    def _alias(self, x):
        key = x.untyped_storage()._cdata, x.dtype
        if key not in self._storages:
            flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            self._storages[key] = flat.to(self.device, self.wide.get(x.dtype, x.dtype), copy=True)
        storage = self._storages[key].untyped_storage()
        empty = torch.empty(0, dtype=self._storages[key].dtype, device=self.device)
        return empty.set_(storage, x.storage_offset(), x.shape, x.stride())


def cotangents(outputs, place):
    """A fixed random gradient for each tensor of `outputs`, the same on every device."""
    generator = torch.Generator().manual_seed(SEED)
    narrow = {wide: dtype for dtype, wide in place.wide.items()}
    return [place(torch.randn(x.shape, generator=generator, dtype=narrow.get(x.dtype, x.dtype))) for x in outputs]
