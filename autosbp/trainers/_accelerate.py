"""Hugging Face Accelerate: DDP, FSDP2 and HSDP."""

from __future__ import annotations

from autosbp.trainers._base import Constraints, ExpressedPlan, Trainer


class Accelerate(Trainer):
    """Accelerate with its FSDP2 plugin, which gathers parameters in every microbatch."""

    name = "accelerate"
    trains_float8 = True
    constraints = (
        Constraints("data_parallel", stages=1, has_whole_batch=True),
        Constraints("data_parallel", stages=1, storage="as_used"),
        Constraints("data_parallel", stages=1, storage="use"),
    )

    def check(self, plan: ExpressedPlan) -> None:
        grid, strategy = plan.parallelism, plan.strategy
        if grid.tensor > 1:
            self.refuse(f"has tensor parallelism for Hugging Face models only; the plan has {grid.tensor} ranks of it")
        if grid.sharded > 1 and strategy.gather == "step" and strategy.num_micro > 1:
            self.refuse(
                f"gathers parameters in every microbatch; the plan does it once for {strategy.num_micro} microbatches"
            )
        self.check_checkpointing(plan, [(plan.checkpointed.count, 1)])


ACCELERATE = Accelerate()
