"""The data: scikit-learn's scanned digits, and which of them a rank sees at which step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from checkmate_common.stream.ring import split
from nccl_emu.errors import TrainerError


def derived_seed(seed: int, *names: object) -> int:
    """Return a 63-bit seed for one purpose: streams with different names are independent of each other."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Digits:
    """The whole data set."""

    features: torch.Tensor
    """float32 (1797, 64): 8 x 8 grey values, each pixel standardised over the set."""
    labels: torch.Tensor
    """int64 (1797,): 0..9."""

    @classmethod
    def load(cls) -> Digits:
        """Read the data set that scikit-learn carries (no network) and standardise it.

        Raises:
            TrainerError: scikit-learn, or the file in it, is not there.
        """
        table = np.loadtxt(_digits_file(), delimiter=",")
        raw, labels = table[:, :-1], table[:, -1]
        scale = raw.std(axis=0)
        scale[scale == 0] = 1.0  # pixels that are blank in every scan
        features = (raw - raw.mean(axis=0)) / scale
        return cls(torch.from_numpy(features).float(), torch.from_numpy(labels).long())


def _digits_file() -> Path:
    # What sklearn.datasets.load_digits reads; importing scikit-learn for it would take longer than training.
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise TrainerError("workload.kind", "digits-mlp needs the package scikit-learn: install it")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise TrainerError("workload.kind", f"this scikit-learn has no file {path}: install another version")
    return path


class ShardedSampler:
    """Shares out seeded global batches among ranks.

    Each pass over the data (a data epoch) has its own permutation. A rest smaller than a batch is left out.
    (epoch, position) after a step is all that a restart needs.
    """

    def __init__(self, samples: int, batch: int, ranks: int, rank: int, seed: int) -> None:
        """Begin at the first data epoch.

        Args:
            samples: size of the data set.
            batch: global batch.
            ranks: number of ranks N.
            rank: whose share to return.
            seed: of the permutations; the same on all ranks.

        Raises:
            TrainerError: the batch is larger than the set or does not give every rank a sample.
        """
        if not ranks <= batch <= samples:
            message = f"{batch}, expected {ranks} (a sample for each rank) to {samples} (the data set)"
            raise TrainerError("workload.batch_size", message)
        self.epoch = 0
        """Data epoch, from 0."""
        self.position = 0
        """Samples of the data epoch that were consumed, by all ranks together."""
        self.seed = seed
        self._samples, self._batch = samples, batch
        self._share = split(0, batch, ranks, rank)
        self._permutation = self._permute()

    def next(self) -> torch.Tensor:
        """Return the rank's sample numbers (int64) of the next global batch, and advance."""
        if self.position + self._batch > self._samples:
            self.move_to(self.epoch + 1, 0)
        first, last = self._share
        indices = self._permutation[self.position + first : self.position + last]
        self.position += self._batch
        return indices

    def move_to(self, epoch: int, position: int) -> None:
        """Continue from a place that was read earlier.

        Raises:
            TrainerError: there is no such place.
        """
        if epoch < 0 or not 0 <= position <= self._samples:
            message = f"epoch {epoch}, position {position}: expected positions 0..{self._samples}"
            raise TrainerError("data", message)
        self.epoch, self.position = epoch, position
        self._permutation = self._permute()

    def _permute(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "permutation", self.epoch))
        return torch.randperm(self._samples, generator=generator)
