"""DeepSpeed: ZeRO-1 to 3 with offloading, automatic tensor parallelism (AutoTP), and pipelines with equal stages."""

from __future__ import annotations

from autosbp.plan.schedules import ONE_F_ONE_B
from autosbp.trainers._base import Constraints, ExpressedPlan, Trainer


class DeepSpeed(Trainer):
    """DeepSpeed's engine; AutoTP can be combined with ZeRO up to 2, pipelines with ZeRO up to 1."""

    name = "deepspeed"
    constraints = (
        Constraints("megatron", stages=1),
        Constraints("data_parallel"),
    )
    schedules = (ONE_F_ONE_B,)
    trains_pure_bfloat16 = False
    cuts_anywhere = False
    offloads_optimizer = True

    def check(self, plan: ExpressedPlan) -> None:
        grid, stages = plan.parallelism, plan.staged.num_stages
        if grid.sharded > 1 and grid.replicated > 1:
            self.refuse(f"shards over all data parallel ranks; the plan shards over {grid.sharded} of {grid.data}")
        is_zero3 = grid.sharded > 1 and plan.strategy.gather == "use"
        if is_zero3 and grid.tensor > 1:
            self.refuse("cannot combine automatic tensor parallelism with ZeRO-3")
        if grid.tensor > 1 and grid.is_sequence_parallel:
            self.refuse("repeats norms on tensor parallel ranks; the plan splits their sequence")
        if stages > 1 and is_zero3:
            self.refuse("cannot combine pipeline stages with ZeRO-3")
        if stages > 1 and grid.tensor > 1:
            self.refuse(
                "cannot combine automatic tensor parallelism with pipeline stages; the plan has "
                f"{grid.tensor} tensor parallel ranks per stage"
            )
        if plan.has_float32_master_weights and grid.sharded == 1 and plan.strategy.num_micro > 1:
            self.refuse(
                f"accumulates gradients in {plan.dtype} without ZeRO; the plan accumulates "
                f"{plan.strategy.num_micro} microbatches in float32"
            )
        again = plan.checkpointed
        if stages > 1 and again.layers not in (0, again.count):
            self.refuse(
                f"can recompute only all layers of a stage; the plan recomputes {again.layers} of {again.count}"
            )


DEEPSPEED = DeepSpeed()
