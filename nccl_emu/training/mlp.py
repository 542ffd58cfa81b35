"""The model: a multi-layer perceptron whose randomness comes from generators of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

FEATURES = 64
CLASSES = 10


class SeededDropout(nn.Module):
    """Inverted dropout that draws from a given generator.

    torch's own draws from the process-wide one: several ranks in one process would disturb each other.
    """

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        """Drop each element with `probability` (0 up to, not including, 1) while training."""
        super().__init__()
        self.probability = probability
        self.generator = generator

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return `inputs` with elements dropped and the others scaled by 1 / (1 - probability)."""
        if not self.training or self.probability == 0:
            return inputs
        kept = torch.empty_like(inputs).bernoulli_(1 - self.probability, generator=self.generator)
        return inputs * kept / (1 - self.probability)


def build_mlp(
    hidden: Sequence[int], dropout: float, seed: int, generator: torch.Generator, batch_norm: bool = False
) -> nn.Sequential:
    """Return an MLP from 64 features to 10 classes with ReLU and dropout after each hidden layer.

    Args:
        hidden: widths of the hidden layers.
        dropout: probability of dropping an element.
        seed: of the weights: equal seeds give equal weights.
        generator: draws the dropout masks.
        batch_norm: whether each hidden layer is followed by batch normalisation.
    """
    weights = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    width = FEATURES
    for size in hidden:
        normal = [nn.BatchNorm1d(size)] if batch_norm else []
        layers += [_linear(width, size, weights), *normal, nn.ReLU(), SeededDropout(dropout, generator)]
        width = size
    return nn.Sequential(*layers, _linear(width, CLASSES, weights))


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    # The same distribution as torch's own initialisation, which would draw from the process-wide generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(inputs)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
