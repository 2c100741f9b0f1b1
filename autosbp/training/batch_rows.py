"""Batch rows: the samples of a global batch that each rank reads, and a sampler that loads only these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.program import Boxing, Item
from autosbp.sbp.layout import local_shape, shard_index
from autosbp.sbp.mesh import Mesh


def input_rows(
    graph: LogicalGraph, strategy: Strategy, items: Sequence[Item], coordinate: tuple[int, ...]
) -> dict[str, list[int]]:
    """Indices of the samples of a global batch that a rank reads, ascending, by input.

    Args:
        graph: the graph, bound at the strategy's microbatch size.
        items: items of the rank's programs.
        coordinate: the rank's coordinate in the strategy's mesh.
    """
    rows: dict[str, set[int]] = {}
    inputs = {Ref(leaf.name) for leaf in graph.inputs}
    for item in items:
        if isinstance(item, Boxing):
            if item.data:
                sizes = graph.meta(item.ref).sizes
                rows.setdefault(item.ref.name, set()).update(_microbatch_rows(sizes, item, strategy.mesh, coordinate))
            continue
        for read in item.reads:
            if isinstance(read, Ref) and read in inputs:  # an input that is read whole
                rows.setdefault(read.name, set()).update(range(strategy.micro_batch))
    return {
        name: [micro * strategy.micro_batch + row for micro in range(strategy.num_micro) for row in sorted(each)]
        for name, each in rows.items()
    }


def own_rows(rows: Mapping[str, list[int]]) -> list[int]:
    """Indices of the samples that a rank loads: those of the input of which it reads the fewest samples."""
    return min(rows.values(), key=len, default=[])


def _microbatch_rows(shape: tuple[int, ...], box: Boxing, mesh: Mesh, coordinate: tuple[int, ...]) -> range:
    size = local_shape(shape, box.dst, mesh)[0]
    start = size * shard_index(0, box.dst, mesh, coordinate)
    return range(start, start + size)


class GlobalBatchSampler:
    """Batch sampler for a ``DataLoader``: this rank's samples of each global batch.

    All ranks use the same random order of samples.

    Args:
        num_samples: number of samples of the dataset; an incomplete last global batch is dropped.
        global_batch: number of samples of a step, over all ranks.
        rows: this rank's rows of each global batch; a rank without rows loads one sample and ignores it.
        shuffle: whether to shuffle the samples in each epoch.
        seed: seed of the order; has to be the same on every rank.

    ``set_epoch`` starts an epoch. ``state_dict`` has the position in the current one, ``load_state_dict`` resumes there.
    """

    def __init__(
        self, num_samples: int, global_batch: int, rows: Sequence[int], *, shuffle: bool = True, seed: int = 0
    ) -> None:
        if num_samples < global_batch:
            raise InputError("dataset", num_samples, f"at least one global batch of {global_batch} samples is needed")
        self.num_samples, self.global_batch, self.rows = num_samples, global_batch, list(rows) or [0]
        self.shuffle, self.seed, self.epoch, self.batches_done = shuffle, seed, 0, 0

    def __len__(self) -> int:
        return self.num_samples // self.global_batch

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch at its first batch."""
        self.epoch, self.batches_done = epoch, 0

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for batch in range(self.batches_done, len(self)):
            self.batches_done = batch + 1
            first = batch * self.global_batch
            yield [int(order[first + row]) for row in self.rows]
        self.set_epoch(self.epoch + 1)

    def _order(self) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.num_samples)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.num_samples, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        """Position in the run, equal on all ranks."""
        return {"epoch": self.epoch, "batches_done": self.batches_done, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a position of a run with the same global batch size, on any number of ranks."""
        self.epoch, self.batches_done, self.seed = state["epoch"], state["batches_done"], state["seed"]
