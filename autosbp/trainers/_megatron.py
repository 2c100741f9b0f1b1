"""Megatron-LM on Megatron-Core: tensor and sequence parallelism, pipelines, distributed optimizer."""

from __future__ import annotations

from autosbp.plan.schedules import INTERLEAVED, ONE_F_ONE_B
from autosbp.trainers._base import Constraints, ExpressedPlan, Trainer


class Megatron(Trainer):
    """Megatron-LM's ``pretrain_*.py``. Its distributed optimizer gathers parameters once a step (ZeRO-1)."""

    name = "megatron"
    constraints = (
        Constraints("megatron_sp", storage="step"),
        Constraints("megatron_sp", storage="as_used"),
    )
    schedules = (ONE_F_ONE_B, INTERLEAVED)
    trains_pure_bfloat16 = False
    trains_float8 = True
    offloads_optimizer = True

    def check(self, plan: ExpressedPlan) -> None:
        grid, again, staged = plan.parallelism, plan.checkpointed, plan.staged
        if grid.sharded > 1 and plan.strategy.gather == "use":
            self.refuse("gathers parameters once a step; the plan gathers them for each use (ZeRO-3)")
        if not again.layers or again.layers == again.count:
            return
        if not staged.is_even:
            self.refuse(
                "recomputes the same number of layers in each chunk; the plan's chunks have different numbers of layers"
            )
        if again.interval > 1:
            self.refuse(
                "can recompute a subset of the layers only one by one; the plan recomputes segments of "
                f"{again.interval} layers"
            )


MEGATRON = Megatron()
