"""Checkpoints of a training run: saved asynchronously and atomically, loadable under another plan.

``torch.distributed.checkpoint`` writes each rank's shards. A complete checkpoint is a folder ``step-N``; until it is
complete, the folder is called ``step-N.part``, which is never read. Parameters, optimizer state and the settings of
parameter groups are stored by parameter name, so that a run can resume under another plan or number of ranks.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import load, save  # type: ignore[attr-defined]  # exist, but are not exported by name
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from autosbp.errors import InputError
from autosbp.training.parallel_module import ParallelModule

_NAME = re.compile(r"step-(\d+)")
_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


class Stateful(Protocol):
    """An object whose state is equal on all ranks, such as a learning rate scheduler or a sampler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class Checkpoints:
    """Checkpoints of one run. All ranks have to create it and call its methods.

    Args:
        folder: folder that all ranks can access; created if missing.
        model: the parallel module.
        optimizer: optimizer of the model's parameters.
        others: other objects to store, such as a scheduler or a sampler, by name.
        keep: number of newest checkpoints to keep; older ones are deleted once a newer one is complete.
    """

    def __init__(
        self,
        folder: str | Path,
        model: ParallelModule,
        optimizer: torch.optim.Optimizer,
        *,
        keep: int = 3,
        **others: Stateful,
    ) -> None:
        if keep < 1:
            raise InputError("keep", keep, "expected at least 1")
        self.folder, self.model, self.optimizer, self.others, self.keep = Path(folder), model, optimizer, others, keep
        self._group = dist.new_group(backend="gloo")  # its collectives run while training issues its own
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._steps_parameters = any(group["params"] for group in optimizer.param_groups)  # a stage may have none
        self._saving: tuple[int, Future[Any]] | None = None
        if dist.get_rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
        dist.barrier(self._group)

    def save(self, step: int, *, wait: bool = False) -> None:
        """Save the state after ``step`` training steps; returns once it is copied, or with ``wait`` once it is complete.

        If an earlier checkpoint is still being written, that is completed first.
        """
        self.wait()
        part = self.folder / f"step-{step}.part"
        if dist.get_rank() == 0:
            shutil.rmtree(part, ignore_errors=True)
        dist.barrier(self._group)
        found = self._writer.submit(save, _copied(self._state(step)), checkpoint_id=part, process_group=self._group)
        self._saving = step, found
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete; raises the error if writing it failed."""
        if self._saving is None:
            return
        (step, found), self._saving = self._saving, None
        found.result()
        dist.barrier(self._group)
        if dist.get_rank() == 0:
            final = self.folder / f"step-{step}"
            shutil.rmtree(final, ignore_errors=True)
            (self.folder / f"step-{step}.part").rename(final)
            for old in self.steps[: -self.keep]:
                shutil.rmtree(self.folder / f"step-{old}")
        dist.barrier(self._group)

    def load(self, step: int | None = None) -> int:
        """Load a complete checkpoint, by default the newest; returns its step, 0 if there is none.

        Raises:
            InputError: there is no such checkpoint.
        """
        steps = self.steps
        if step is None and not steps:
            return 0
        step = steps[-1] if step is None else step
        if step not in steps:
            limit = f"the complete checkpoints in {self.folder} are those of steps {steps}"
            raise InputError("step", step, limit)
        state = self._state(step)
        load(state, checkpoint_id=self.folder / f"step-{step}", process_group=self._group)
        self.model.load_state_dict(state["model"])
        if self._steps_parameters:
            set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"], options=_OPTIONS)
        run: Mapping[str, Any] = state["run"]
        self.model.rng_step = run["rng_step"]
        if self.model.grad_scaler.is_enabled():
            self.model.grad_scaler.load_state_dict(run["grad_scaler"])
        for name, each in self.others.items():
            each.load_state_dict(run["others"][name])
        return int(run["step"])

    def _state(self, step: int) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=_OPTIONS)
            if self._steps_parameters
            else {},
            "run": {
                "step": step,
                "rng_step": self.model.rng_step,
                "grad_scaler": self.model.grad_scaler.state_dict(),
                "others": {name: each.state_dict() for name, each in self.others.items()},
            },
        }

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)


def _copied(state: Any) -> Any:
    """A copy of the state on the host, so that training can continue while it is written."""
    if isinstance(state, Mapping):
        return {name: _copied(value) for name, value in state.items()}
    if isinstance(state, DTensor):
        return DTensor(_copied(state.to_local()), state._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return state.detach().to("cpu", copy=True) if isinstance(state, torch.Tensor) else state
