"""Training batches: this rank's part of each global batch, over epochs, resumable at any step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from autosbp.training.batch_rows import GlobalBatchSampler
from autosbp.training.parallel_module import ParallelModule

Batch = Mapping[str, torch.Tensor]


class TrainingBatches:
    """Endless iterator over batches, reshuffled in each epoch.

    ``state_dict`` counts the batches that were trained, not those that workers have already loaded. It is equal on all
    ranks and can be loaded on any number of ranks.

    Args:
        model: the parallel module, which gives the global batch size and this rank's rows.
        dataset: dataset whose samples are dicts with the model's inputs.
        seed: seed of the order of samples.
        workers: number of worker processes that load samples.
    """

    def __init__(self, model: ParallelModule, dataset: Dataset[Any], *, seed: int = 0, workers: int = 0) -> None:
        self._sampler = model.batch_sampler(dataset, seed=seed)
        self._loader = data_loader(dataset, self._sampler, model.device, workers)
        self._trained = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            epoch, done = divmod(self._trained, len(self._sampler))
            self._sampler.load_state_dict({**self._sampler.state_dict(), "epoch": epoch, "batches_done": done})
            for batch in self._loader:
                self._trained += 1
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Position in the run."""
        return {"samples": self._trained * self._sampler.global_batch, "seed": self._sampler.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position in a run."""
        self._trained = state["samples"] // self._sampler.global_batch
        self._sampler.seed = state["seed"]


def data_loader(dataset: Dataset[Any], sampler: GlobalBatchSampler, device: torch.device, workers: int) -> Any:
    """A ``DataLoader`` of a rank's rows."""
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        pin_memory=device.type == "cuda",
    )
