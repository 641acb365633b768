"""What a model must provide to be trained by the tests and the benchmarks."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Generator, Tensor, nn


@dataclass(frozen=True)
class Case:
    """A model, the data it trains on and its loss.

    `build()` makes the module; the caller seeds torch first.
    `batch(generator)` makes a tuple of tensors on the CPU.
    `loss(module, batch)` is a scalar, or a list of scalars that are each differentiated.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[Generator], tuple[Tensor, ...]]
    loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor | list[Tensor]]
