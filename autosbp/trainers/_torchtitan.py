"""torchtitan 0.2 and 0.3: FSDP2, HSDP, tensor and sequence parallelism, pipelines; DDP only without the others."""

from __future__ import annotations

from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from autosbp.trainers._base import Constraints, ExpressedPlan, Trainer


class Torchtitan(Trainer):
    """torchtitan's Llama 3 decoders. Without pipelines, it gathers parameters and reduces gradients in every microbatch."""

    name = "torchtitan"
    constraints = (
        Constraints("megatron_sp", stages=1, has_whole_batch=True),
        Constraints("megatron_sp", stages=1, storage="use"),
        Constraints("megatron_sp", storage="step"),
    )
    schedules = (GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE)
    dtypes = ("float32", "bfloat16")
    optimizers = ("adamw",)
    trains_float8 = True

    def check(self, plan: ExpressedPlan) -> None:
        if plan.staged.shared:
            name = plan.staged.shared[0]
            self.refuse(f"cannot share parameters between stages; several stages of the plan read {name}")
        strategy, grid = plan.strategy, plan.parallelism
        if grid.data > 1 and grid.sharded == 1 and grid.data < plan.num_ranks:
            self.refuse("shards parameters over data parallel ranks next to other parallelism; the plan shards none")
        if grid.data > 1 and strategy.num_micro > 1 and plan.staged.num_stages == 1 and strategy.gather != "use":
            self.refuse(
                "synchronises gradients in every microbatch; the plan does it once for "
                f"{strategy.num_micro} microbatches"
            )
        self.check_checkpointing(plan, [(plan.checkpointed.count, 1)])


TORCHTITAN = Torchtitan()
