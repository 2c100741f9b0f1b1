"""Pairs of a model and an emulated cluster on which strategies are tuned, and the effort of each trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosbp.api import LogicalGraph, PlanOptions
from autosbp.testing.emulated import Shape
from autosbp.tuning.trial_pool import TrialEffort
from benchmarks.prediction._models import CASES

CLUSTERS: Mapping[str, Shape] = {
    "2x2": Shape(2, 2, 200.0),
    "4x1": Shape(4, 1, 200.0),
    "2x2-slow": Shape(2, 2, 50.0),
}
"""Emulated clusters: nodes x ranks, with links of 200 or 50 Mbit/s."""
PAIRS = ("mlp@2x2", "vgg-head@4x1", "gpt2@2x2")
PROPOSERS = ("ranked", "random", "tpe")
BASELINES = ("data_parallel", "zero1", "zero2", "zero3", "fsdp2", "megatron", "megatron_sp", "megatron_lm")
"""Baselines to measure, in addition to the synchronization builders."""
EFFORT = TrialEffort(steps=3, warmup=1, max_s=1.0, timeout_s=30.0)
CALIBRATION_S, OP_S = 60.0, 0.02
"""Time budgets in seconds: of a calibration, and of the forward or backward pass of one op."""


@dataclass(frozen=True)
class Pair:
    """A model, its global batch, and the cluster's shape."""

    name: str
    graph: LogicalGraph
    batch: int
    shape: Shape

    @property
    def options(self) -> PlanOptions:
        return PlanOptions(global_batch=self.batch, baselines=BASELINES)


def pair_named(name: str) -> Pair:
    """The pair ``MODEL@CLUSTER``; raises ``ValueError`` for unknown names."""
    model, _, cluster = name.partition("@")
    if model not in CASES or cluster not in CLUSTERS:
        known = f"MODEL one of {', '.join(CASES)}, CLUSTER one of {', '.join(CLUSTERS)}"
        raise ValueError(f"expected {name}: MODEL@CLUSTER, {known}")
    return Pair(name, CASES[model].graph(), CASES[model].batch, CLUSTERS[cluster])
