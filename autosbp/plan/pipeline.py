"""``Pipeline``: partition of a model's ops into stages, and the schedule of their microbatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autosbp.errors import InputError
from autosbp.plan.schedules import SCHEDULES, Schedule
from autosbp.utils.json_io import Fields

MAX_STAGES = 2**16


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages of equal size, chunks of the model, and a schedule.

    Args:
        num_stages: consecutive device sets; stage s has ranks ``s * mesh.size`` to ``(s + 1) * mesh.size - 1``.
        cuts: first op of each model chunk after the first one, in the program's order. Chunk c lies on stage ``c %
            num_stages``.
        schedule: one of ``autosbp.plan.schedules``.
        weights_lag: ``zero_bubble`` only: the most backward passes by which weight gradients are deferred, because the
            tensors that they need take memory; None is as many as fill a stage's waits.
    """

    num_stages: int
    cuts: tuple[str, ...]
    schedule: Schedule
    weights_lag: int | None = None

    @property
    def num_chunks(self) -> int:
        return len(self.cuts) + 1

    @property
    def num_virtual(self) -> int:
        """Chunks per stage (virtual stages)."""
        return self.num_chunks // self.num_stages

    def stage_of(self, chunk: int) -> int:
        return chunk % self.num_stages

    def chunks_of(self, stage: int) -> range:
        """The chunks of one stage, in the model's order."""
        return range(stage, self.num_chunks, self.num_stages)

    def check(self, num_micro: int, field: str = "strategy.pipeline") -> None:
        """Raise ``InputError`` unless chunks fill the stages and the schedule accepts the number of microbatches."""
        if self.num_chunks % self.num_stages:
            limit = f"the number of chunks (cuts + 1) must be a multiple of the {self.num_stages} stages"
            raise InputError(f"{field}.cuts", list(self.cuts), limit)
        if len(set(self.cuts)) < len(self.cuts):
            raise InputError(f"{field}.cuts", list(self.cuts), "expected different ops")
        schedule = self.schedule
        if not schedule.supports_chunks(self.num_virtual):
            shown = f"{schedule.name} with {self.num_virtual} chunks per stage"
            raise InputError(f"{field}.schedule", shown, schedule.chunks_text)
        if not schedule.supports_microbatches(num_micro, self.num_stages):
            shown = f"{schedule.name} with {num_micro} microbatches"
            raise InputError(f"{field}.schedule", shown, schedule.micro_text.format(stages=self.num_stages))
        if self.weights_lag is not None and not schedule.splits_backward:
            raise InputError(f"{field}.weights_lag", self.weights_lag, f"{schedule.name} takes none")

    def to_dict(self) -> dict[str, Any]:
        lag = {} if self.weights_lag is None else {"weights_lag": self.weights_lag}
        return {"num_stages": self.num_stages, "cuts": list(self.cuts), "schedule": self.schedule.name, **lag}

    @staticmethod
    def from_dict(data: object, path: str, num_micro: int) -> Pipeline:
        """Read and check; ``graph.pipeline_chunks`` checks that the graph has the cuts."""
        fields = Fields(data, path, ("num_stages", "cuts", "schedule", "weights_lag"))
        cuts = fields.sequence("cuts")
        for at, cut in enumerate(cuts):
            if not isinstance(cut, str) or not cut:
                raise InputError(f"{path}.cuts[{at}]", cut, "expected the name of an op")
        stages = fields.integer("num_stages", low=2, high=MAX_STAGES)
        lag = fields.integer("weights_lag", high=MAX_STAGES) if fields.has("weights_lag") else None
        schedule = SCHEDULES[fields.text("schedule", choices=tuple(SCHEDULES))]
        pipeline = Pipeline(stages, tuple(cuts), schedule, lag)
        pipeline.check(num_micro, path)
        return pipeline
