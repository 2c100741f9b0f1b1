"""Contract of a trainer: constraints that contain its strategies, and a check of a single strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from autosbp.errors import UnsupportedError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import FP8_MIXED
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import Schedule
from autosbp.program.parallelism import DATA, SEQUENCE, TENSOR, Parallelism, parallelism_of
from autosbp.trainers.checkpointed_layers import CheckpointedLayers, checkpointed_layers
from autosbp.trainers.float8_shapes import uneven_product
from autosbp.trainers.layer_stages import LayerStages, layer_stages


@dataclass(frozen=True, slots=True)
class Constraints:
    """A part of a trainer's search space, in terms of ``search.plan_options.PlanOptions``.

    Args:
        grid: baseline whose layouts are allowed: ``data_parallel``, ``megatron`` or ``megatron_sp``.
        stages: number of pipeline stages, where 1 forbids pipelines; None for any number.
        storage: parameter sharding; None for any.
        has_whole_batch: whether the whole batch is one microbatch.
    """

    grid: str
    stages: int | None = None
    storage: str | None = None
    has_whole_batch: bool = False


@dataclass(frozen=True, slots=True)
class ExpressedPlan:
    """A strategy in the terms of other trainers.

    Args:
        strategy: the strategy.
        parallelism: its data and tensor parallel degrees, and how parameters are sharded.
        staged: its pipeline stages in whole layers.
        checkpointed: its checkpointed layers.
        dtype: dtype of all parameters.
        precision: precision of the plan (``graph.precision``); None for the dtypes of the captured graph.
    """

    strategy: Strategy
    parallelism: Parallelism
    staged: LayerStages
    checkpointed: CheckpointedLayers
    dtype: str
    precision: str | None

    @property
    def replica_batch(self) -> int:
        """Samples of one microbatch on one data parallel replica."""
        return self.strategy.micro_batch // self.parallelism.data

    @property
    def has_float32_master_weights(self) -> bool:
        """Whether gradients of half-precision parameters are accumulated and reduced in float32."""
        return self.precision in ("bf16-mixed", "fp16-mixed", FP8_MIXED)

    @property
    def is_float8(self) -> bool:
        """Whether linear layers multiply in float8."""
        return self.precision == FP8_MIXED

    @property
    def num_ranks(self) -> int:
        return self.strategy.num_devices


class Trainer(ABC):
    """A training framework and the strategies that it can run. Instances have no state."""

    name: ClassVar[str]
    """Name in commands."""
    constraints: ClassVar[tuple[Constraints, ...]]
    """Subspaces whose union contains every strategy that the trainer can run, and others, which ``express`` rejects."""
    schedules: ClassVar[tuple[Schedule, ...]] = ()
    """Supported pipeline schedules; empty if the trainer has no pipelines."""
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    """Supported dtypes of parameters in forward and backward passes."""
    optimizers: ClassVar[tuple[str, ...]] = ("adamw", "sgd")
    trains_pure_bfloat16: ClassVar[bool] = True
    """Whether bfloat16 parameters can be trained without float32 master weights."""
    trains_float8: ClassVar[bool] = False
    """Whether linear layers of bfloat16 parameters can multiply in float8 with dynamic scales of whole tensors."""
    cuts_anywhere: ClassVar[bool] = True
    """Whether stages can have unequal numbers of layers."""
    offloads_optimizer: ClassVar[bool] = False
    """Whether sharded optimizer state can be on the host while parameters stay on the device."""

    def express(self, graph: LogicalGraph, strategy: Strategy, precision: str | None) -> ExpressedPlan:
        """The strategy in the trainer's terms, if the trainer can run it.

        Args:
            graph: the graph in the plan's precision, with a symbolic batch.
            strategy: the strategy to express.
            precision: precision of the plan; None for the dtypes of the captured graph.

        Raises:
            UnsupportedError: the trainer cannot run the strategy; names the first op, parameter or choice that differs.
        """
        dtype = self._checked_dtype(graph, strategy, precision)
        found = parallelism_of(graph, strategy)
        self._check_grid(strategy, found)
        if strategy.micro_batch % found.data:
            self.refuse(f"cannot split a microbatch of {strategy.micro_batch} evenly over {found.data} replicas")
        plan = ExpressedPlan(
            strategy,
            found,
            layer_stages(graph, strategy, self.name),
            checkpointed_layers(graph, strategy, self.name),
            dtype,
            precision,
        )
        self._check_stages(plan)
        if plan.is_float8 and (uneven := uneven_product(graph, strategy)):
            self.refuse(f"multiplies in float8 where each rank's rows and columns are multiples of 16; {uneven}")
        if strategy.offload and not (self.offloads_optimizer and found.sharded > 1):
            what = "only sharded optimizer state" if self.offloads_optimizer else "no optimizer state alone"
            self.refuse(f"can offload {what}; the plan shards it over {found.sharded} ranks")
        self.check(plan)
        return plan

    @abstractmethod
    def check(self, plan: ExpressedPlan) -> None:
        """Raise ``UnsupportedError`` for limits of the trainer that the class variables do not express."""

    def refuse(self, why: str) -> NoReturn:
        """Raise ``UnsupportedError``; ``why`` continues the trainer's name with its limit and the plan's value."""
        raise UnsupportedError(f"{self.name} {why}")

    def _check_grid(self, strategy: Strategy, found: Parallelism) -> None:
        advice = "use --to dtensor for this plan"
        if found.deviations:
            self.refuse(f"supports only data x tensor parallel grids: {found.deviations[0]}; {advice}")
        shown = ", ".join(f"{axis.name}: {role}" for axis, role in zip(strategy.mesh.axes, found.roles, strict=True))
        if set(found.roles) - {DATA, TENSOR}:
            what = "has context parallelism" if SEQUENCE in found.roles else "repeats all its work on an axis"
            self.refuse(f"supports only data x tensor parallel grids; the plan {what}: {shown}; {advice}")
        if not found.has_tensor_ranks_innermost:
            self.refuse(f"requires the tensor parallel axis innermost; the plan's mesh axes are {shown}")
        if not found.has_sharded_ranks_innermost:
            self.refuse(f"shards parameters over the innermost data parallel axes; the plan's mesh axes are {shown}")

    def _check_stages(self, plan: ExpressedPlan) -> None:
        staged = plan.staged
        if staged.num_stages == 1:
            return
        names = [schedule.name for schedule in self.schedules]
        if not names:
            self.refuse(f"has no pipelines; the plan has {staged.num_stages} stages")
        if staged.schedule.name not in names:
            self.refuse(f"supports the schedules {', '.join(names)}; the plan uses {staged.schedule.name}")
        if staged.weights_lag is not None:
            lag = f"the plan delays them by {staged.weights_lag} passes"
            self.refuse(f"delays weight gradients by the number of stages; {lag}")
        if not staged.is_even and not self.cuts_anywhere:
            shown = ", ".join(map(str, staged.layers))
            self.refuse(f"requires equal numbers of layers per stage; the plan's stages have {shown}")

    def _checked_dtype(self, graph: LogicalGraph, strategy: Strategy, precision: str | None) -> str:
        """The dtype of all parameters; refuses several dtypes, or one that the trainer cannot train."""
        dtypes = sorted({leaf.meta.dtype for leaf in graph.parameters})
        if len(dtypes) > 1:
            self.refuse(f"stores all parameters in one dtype; the model has {', '.join(dtypes)}")
        if strategy.optimizer not in self.optimizers or dtypes[0] not in self.dtypes:
            self.refuse(f"cannot train {dtypes[0]} parameters with {strategy.optimizer}")
        if precision == "bf16" and not self.trains_pure_bfloat16:
            self.refuse("keeps float32 master weights; the plan's precision bf16 has none")
        if precision == FP8_MIXED and not self.trains_float8:
            self.refuse(f"does not scale products in float8 dynamically by tensor; the plan's precision is {FP8_MIXED}")
        return dtypes[0]

    def check_checkpointing(self, plan: ExpressedPlan, allowed: Iterable[tuple[int, int]]) -> None:
        """Refuse checkpointing unless its (number of layers, layers per segment) is among ``allowed``."""
        again = plan.checkpointed
        if again.layers and (again.layers, again.interval) not in allowed:
            shown = f"the first {again.layers} of {again.count} in segments of {again.interval}"
            self.refuse(f"can recompute only every layer, one by one; the plan recomputes {shown}")
