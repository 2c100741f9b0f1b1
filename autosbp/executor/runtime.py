"""Runtime of a rank's program: its place in the mesh, process groups, and record of issued collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from autosbp.executor.process_groups import process_group
from autosbp.launch.heartbeats import position
from autosbp.sbp.mesh import Mesh

_thread = threading.local()


@dataclass(frozen=True, slots=True)
class IssuedCollective:
    """One collective that this rank took part in: message n in bytes and the ranks of the group, in order."""

    kind: str
    num_bytes: int
    ranks: tuple[int, ...]


StepState = tuple[int, Any, list[Callable[[], None]]]
"""``micro``, ``gathers`` and ``deferred`` of a ``Runtime``."""


@dataclass
class Runtime:
    """One rank. Groups are made collectively: every rank must make the same ones in the same order (``make_groups``).

    ``seed``, ``step`` and ``micro`` (the microbatch within the step) seed random ops; they are the same on every rank.
    ``gathers`` (``executor.parameter_gathers``) provides the parameters that the program does not box itself.
    ``pending`` is communication that nothing in the program waits for; ``deferred`` holds weight gradients left by a
    backward pass (``executor.deferred_wgrad``). ``denominators`` are batch-wide divisors by name of division
    (``executor.loss_denominators``). ``loss_scale`` is the factor of every gradient (``executor.loss_scaling``),
    ``running_statistics`` are those of batch norms by node (``executor.running_statistics``).
    """

    mesh: Mesh
    rank: int
    device: torch.device
    issued: list[IssuedCollective] = field(default_factory=list)
    seed: int = 0
    step: int = 0
    micro: int = 0
    gathers: Any = None
    pending: list[Any] = field(default_factory=list)
    deferred_wgrads: list[Callable[[], None]] = field(default_factory=list)
    denominators: dict[str, torch.Tensor] = field(default_factory=dict)
    loss_scale: float = 1.0
    running_statistics: Mapping[str, Any] = field(default_factory=dict)
    _groups: dict[tuple[int, ...], tuple[Any, list[int]]] = field(default_factory=dict)

    @property
    def coordinate(self) -> tuple[int, ...]:
        return self.mesh.coordinate(self.rank)

    def make_groups(self, axes_sets: list[tuple[int, ...]]) -> None:
        """Create the process groups over these sets of axes; call with the same list on every rank."""
        for axes in sorted(set(axes_sets)):
            if axes in self._groups:
                continue
            for ranks in self.mesh.all_groups(axes):
                group = process_group(ranks)
                if self.rank in ranks:
                    self._groups[axes] = (group, ranks)

    def group(self, axes: tuple[int, ...]) -> tuple[Any, list[int]]:
        """This rank's group over ``axes`` and its ranks in order."""
        return self._groups[axes]

    def position(self, axes: tuple[int, ...]) -> int:
        """This rank's place in its group over ``axes``."""
        place = 0
        for axis in axes:
            place = place * self.mesh.axes[axis].size + self.coordinate[axis]
        return place

    def record(self, kind: str, tensor: torch.Tensor, ranks: list[int]) -> None:
        """Record a collective whose message n is ``tensor``."""
        self.issued.append(IssuedCollective(kind, tensor.numel() * tensor.element_size(), tuple(ranks)))

    def finish(self) -> None:
        """Wait for pending communication."""
        for work in self.pending:
            work.wait()
        self.pending.clear()

    @property
    def moment(self) -> StepState:
        """State of this rank within its step."""
        return self.micro, self.gathers, self.deferred_wgrads

    @contextmanager
    def with_state(self, moment: StepState) -> Iterator[None]:
        """Context in which programs run with the state of ``moment``."""
        now = self.moment
        self.micro, self.gathers, self.deferred_wgrads = moment
        try:
            yield
        finally:
            self.micro, self.gathers, self.deferred_wgrads = now

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context in which programs of this thread run on this runtime; errors say where in the training run they were."""
        previous = getattr(_thread, "runtime", None)
        _thread.runtime = self
        try:
            yield
        except Exception as error:
            last = self.issued[-1] if self.issued else IssuedCollective("", 0, ())
            error.add_note(f"rank {self.rank} failed {position(self.step, last.kind, last.num_bytes, last.ranks)}")
            raise
        finally:
            _thread.runtime = previous


def current() -> Runtime:
    """The runtime that is active in this thread."""
    runtime: Runtime | None = getattr(_thread, "runtime", None)
    if runtime is None:
        raise RuntimeError("run a lowered program inside `with runtime.active():`")
    return runtime
