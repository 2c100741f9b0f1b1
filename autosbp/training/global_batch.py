"""Global batch: places a rank's rows in a tensor of the whole batch, which the rank's programs index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from autosbp.errors import InputError
from autosbp.executor.pipeline import PipelineTrainer
from autosbp.executor.process_groups import process_group
from autosbp.executor.training import Trainer
from autosbp.training.batch_rows import input_rows, own_rows


class GlobalBatch:
    """Checks a rank's batch and places its rows where the trainer's programs read them.

    A rank loads the rows ``rows``. Inputs of which some rank reads more rows, such as labels that the loss counts, are
    gathered from all ranks of the stage. All ranks have to create it at the same time, because it makes a process group.
    """

    def __init__(self, trainer: Trainer | PipelineTrainer) -> None:
        strategy, mesh = trainer.strategy, trainer.runtime.mesh
        self._inputs = {leaf.name: leaf.meta.sizes[1:] for chunk in trainer.chunks for leaf in chunk.graph.inputs}
        self._known = sorted(leaf.name for leaf in trainer.graph.inputs)
        self._size, self._device = strategy.global_batch, trainer.runtime.device
        items = [item for chunk in trainer.chunks for item in chunk.flow.items]
        read = [input_rows(trainer.graph, strategy, items, strategy.mesh.coordinate(rank)) for rank in range(mesh.size)]
        loaded = [own_rows(each) for each in read]
        self.rows = loaded[trainer.runtime.rank]
        self._rows = [torch.tensor(each or [0], device=self._device) for each in loaded]
        self._own = self._rows[trainer.runtime.rank]
        self._gathered = {
            name
            for each, own in zip(read, loaded, strict=True)
            for name, rows in each.items()
            if not set(own).issuperset(rows)
        }
        self._group = _stage_group(trainer)

    def of(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The inputs that this rank reads, each of shape [global batch, ...]; rows that it does not read are zero.

        Raises:
            InputError: an input is missing or unknown, or has neither all samples nor exactly this rank's.
        """
        unknown = sorted(set(batch) - set(self._known))
        if unknown:
            raise InputError("batch", unknown[0], f"the model's inputs are {', '.join(self._known)}")
        return {name: self._placed(name, self._checked(name, batch)) for name in self._inputs}

    def _checked(self, name: str, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if name not in batch:
            raise InputError("batch", sorted(batch), f"the model needs the input {name!r}")
        value, inner = batch[name], self._inputs[name]
        if tuple(value.shape[1:]) != inner or not value.dim() or len(value) not in (len(self._own), self._size):
            samples = f"{self._size} samples, or the {len(self._own)} of this rank's batch_rows"
            raise InputError(f"batch.{name}", tuple(value.shape), f"{samples}, of shape {inner} each are needed")
        return value.to(self._device, non_blocking=True)

    def _placed(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if len(value) == self._size:
            return value
        whole = value.new_zeros((self._size, *value.shape[1:]))
        if name not in self._gathered:
            whole[self._own] = value
            return whole
        longest = max(map(len, self._rows))
        sent = torch.cat([value, value.new_zeros((longest - len(value), *value.shape[1:]))]).contiguous()
        received = [torch.empty_like(sent) for _ in self._rows]
        dist.all_gather(received, sent, group=self._group)
        for rows, part in zip(self._rows, received, strict=True):
            whole[rows] = part[: len(rows)]
        return whole


def _stage_group(trainer: Trainer | PipelineTrainer) -> Any:
    """The process group of all ranks of this rank's stage."""
    size, group = trainer.strategy.mesh.size, None
    for first in range(0, dist.get_world_size(), size):
        made = process_group(range(first, first + size))
        if first <= dist.get_rank() < first + size:
            group = made
    return group
