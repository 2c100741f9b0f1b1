"""``Pipeline``: how a model's ops are dealt out to stages, and in which order stages work on microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.errors import InputError, UnsupportedError
from autosbp.jsonio import Fields

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = "gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"
MESSAGE_DRIVEN = "message_driven"
LEAN = (ONE_F_ONE_B, MESSAGE_DRIVEN)
"""Schedules that keep no more microbatches in flight than there are stages."""
MAX_STAGES = 2**16


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages of equal size, chunks of the model, and a schedule.

    Args:
        num_stages: device sets, one behind the other; stage s has ranks ``s * mesh.size`` to ``(s + 1) * mesh.size - 1``.
        cuts: the ops with which each model chunk after the first begins, in the program's order. Chunk c lies on stage
            ``c % num_stages``.
        schedule: ``gpipe``: all forward, then all backward (Huang et al. 2019). ``1f1b`` and ``interleaved_1f1b``:
            Narayanan et al. 2021, section 2.2. ``zero_bubble``: the gradients of weights apart from those of inputs, and
            later, where a stage would wait (ZB-H1; Qi et al. 2023, section 2.1), with any number of chunks a stage.
            ``message_driven``: no fixed order (``costmodel.message_driven``).
        weights_lag: of ``zero_bubble``: how many backward passes the gradients of weights wait at the most, for what they
            need takes memory; None is as many as fill a stage's waits.
    """

    num_stages: int
    cuts: tuple[str, ...]
    schedule: str
    weights_lag: int | None = None

    @property
    def num_chunks(self) -> int:
        return len(self.cuts) + 1

    @property
    def num_virtual(self) -> int:
        """Chunks of one stage."""
        return self.num_chunks // self.num_stages

    def stage_of(self, chunk: int) -> int:
        return chunk % self.num_stages

    def chunks_of(self, stage: int) -> range:
        """The chunks of one stage, in the model's order."""
        return range(stage, self.num_chunks, self.num_stages)

    def check(self, num_micro: int, field: str = "strategy.pipeline") -> None:
        """``InputError`` unless chunks fill the stages and there are microbatches for the schedule."""
        if self.num_chunks % self.num_stages:
            limit = f"chunks, one more than cuts, are a multiple of the {self.num_stages} stages"
            raise InputError(f"{field}.cuts", list(self.cuts), limit)
        if len(set(self.cuts)) < len(self.cuts):
            raise InputError(f"{field}.cuts", list(self.cuts), "different ops are expected")
        if self.schedule not in SCHEDULES:
            raise InputError(f"{field}.schedule", self.schedule, f"one of {', '.join(SCHEDULES)} is expected")
        limits = SCHEDULES[self.schedule]
        if not limits.chunks(self.num_virtual):
            shown = f"{self.schedule} with {self.num_virtual} chunks a stage"
            raise InputError(f"{field}.schedule", shown, limits.chunks_text)
        if not limits.micro(num_micro, self.num_stages):
            shown = f"{self.schedule} with {num_micro} microbatches"
            raise InputError(f"{field}.schedule", shown, limits.micro_text.format(stages=self.num_stages))
        if self.weights_lag is not None and self.schedule != ZERO_BUBBLE:
            raise InputError(f"{field}.weights_lag", self.weights_lag, f"none is expected of {self.schedule}")

    def to_dict(self) -> dict[str, Any]:
        lag = {} if self.weights_lag is None else {"weights_lag": self.weights_lag}
        return {"num_stages": self.num_stages, "cuts": list(self.cuts), "schedule": self.schedule, **lag}

    @staticmethod
    def from_dict(data: object, path: str, num_micro: int) -> Pipeline:
        """Read and check, all but that the graph has the cuts: ``graph.chunks`` knows."""
        fields = Fields(data, path, ("num_stages", "cuts", "schedule", "weights_lag"))
        cuts = fields.sequence("cuts")
        for at, cut in enumerate(cuts):
            if not isinstance(cut, str) or not cut:
                raise InputError(f"{path}.cuts[{at}]", cut, "the name of an op is expected")
        stages = fields.integer("num_stages", low=2, high=MAX_STAGES)
        lag = fields.integer("weights_lag", high=MAX_STAGES) if fields.has("weights_lag") else None
        pipeline = Pipeline(stages, tuple(cuts), fields.text("schedule", choices=tuple(SCHEDULES)), lag)
        pipeline.check(num_micro, path)
        return pipeline


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a schedule takes: chunks a stage, and microbatches for so many stages; and whether a runtime here runs it."""

    chunks: Callable[[int], bool]
    chunks_text: str
    micro: Callable[[int, int], bool]
    micro_text: str
    runs: bool = True


_ONE = (lambda chunks: chunks == 1, "one chunk a stage is expected")
_MULTIPLE = (lambda micro, stages: micro % stages == 0, "a multiple of the {stages} stages is expected")
SCHEDULES: Mapping[str, _Limits] = {
    GPIPE: _Limits(*_ONE, lambda micro, _: micro >= 1, "at least one is expected"),
    ONE_F_ONE_B: _Limits(*_ONE, lambda micro, stages: micro >= stages, "at least the {stages} stages are expected"),
    INTERLEAVED: _Limits(lambda chunks: chunks > 1, "at least two chunks a stage are expected", *_MULTIPLE),
    ZERO_BUBBLE: _Limits(lambda chunks: chunks >= 1, "at least one chunk a stage is expected", *_MULTIPLE),
    MESSAGE_DRIVEN: _Limits(*_ONE, lambda micro, _: micro >= 1, "at least one is expected", runs=False),
}
RUNNABLE = tuple(name for name, limits in SCHEDULES.items() if limits.runs)
"""Schedules that are searched unless others are asked for."""


def require_runtime(schedule: str) -> None:
    """``UnsupportedError`` where nothing here runs a schedule."""
    if schedule not in RUNNABLE:
        raise UnsupportedError(
            f"no runtime here runs the schedule {schedule} yet; those that run: {', '.join(RUNNABLE)}"
        )
