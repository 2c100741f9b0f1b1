"""Options of a plan, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autosbp.cluster.spec import MAX_DEVICES, Cluster
from autosbp.costmodel.memory.optimizer_state import optimizer_bytes_per_element, state_bytes_per_element
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import AUTO, PRECISIONS
from autosbp.plan.pipeline import MAX_STAGES
from autosbp.plan.schedules import RUNNABLE, SCHEDULES
from autosbp.program.determinism import nondeterminism_reason
from autosbp.search import SEARCHERS
from autosbp.search.problem.baselines import BASELINES as BASELINES
from autosbp.search.problem.baselines import DEFAULT_BASELINES as DEFAULT_BASELINES
from autosbp.search.problem.cost_weights import GATHER_PER_STEP, GATHER_PER_USE, UNSHARDED
from autosbp.utils.json_io import Fields, check_integer

MAX_BATCH = 2**30
UNCHECKED_IN_WARM_START = ("pins", "data_parallel", "tensor_parallel", "stage_of", "storage", "recompute", "grid")
"""Options not checked against a warm-start strategy."""
GAP_TOLERANCE = 2e-3
GRIDS = ("data_parallel", "megatron", "megatron_sp")
"""Baselines whose device grids ``grid`` may name."""
STORAGES = (UNSHARDED, GATHER_PER_STEP, GATHER_PER_USE)
BOUNDING_SEARCHERS = ("auto", "exact", "anytime")
"""Searchers that prove a bound, and so can stop at a gap."""
_OMITTED_IF_DEFAULT = (
    "pins",
    "baselines",
    "stages",
    "schedules",
    "storage",
    "data_parallel",
    "tensor_parallel",
    "stage_of",
    "recompute",
    "offload",
    "bucket_bytes",
    "deterministic",
    "precision",
    "grid",
)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of a plan. Batches are in samples over all devices; None lets the planner choose.

    Args:
        global_batch: samples of one step.
        micro_batch: samples of one microbatch; divides the global batch.
        searcher: a key of ``search.SEARCHERS``.
        time_limit_s: soft limit in seconds.
        memory_limit_bytes: per device.
        gap_tolerance: relative gap between step time and lower bound at which the search stops.
        pins: given layouts by name, in the syntax of ``search.problem.pins``, for the devices of one pipeline stage.
            With pins, the plan has one stage unless ``stages`` says otherwise.
        stages: number of pipeline stages; 1 forbids pipelines.
        data_parallel, tensor_parallel: degrees inside a stage, see ``search.problem.parallel_degrees``; 1 forbids
            splitting the batch, or parameters.
        schedules: allowed pipeline schedules; by default those that the executor can run.
        baselines: names of baselines to compare with, see ``search.problem.baselines``.
        stage_of: stages, from 0, of ops, given by op name, by a parameter that the op reads, or by a pattern of either.
        storage: parameter sharding. ``as_used``: none beyond the ops' layouts. ``step`` (ZeRO-2): parameters are split
            over the ranks that would hold replicas, with one all-gather per step. ``use`` (ZeRO-3): one all-gather per
            use.
        recompute: activation checkpointing. 0: none. k: every repeated block, k blocks together. None: as many blocks
            as memory requires.
        bucket_bytes: maximum size of a gradient bucket and of a parameter gather; by default 25 MiB, or less if memory
            is short. Large buckets mean fewer messages, small ones an earlier first message.
        deterministic: allow only ops with the same bits in every run (``program.determinism``); trials enforce it.
        offload: allow the optimizer state on the host, if the cluster file describes one: all of it or none.
        precision: training precision, a key of ``graph.precision.PRECISIONS``; ``auto``: bf16-mixed on devices with
            tensor cores for bfloat16, else fp32. None: the dtypes of the graph.
        grid: a baseline, one of ``GRIDS``, whose device grids alone are searched: every layer is data x tensor parallel
            over the same axes.
    """

    global_batch: int | None = None
    micro_batch: int | None = None
    searcher: str = "auto"
    seed: int = 0
    time_limit_s: float = 20.0
    optimizer: str = "adamw"
    memory_limit_bytes: int | None = None
    gap_tolerance: float = GAP_TOLERANCE
    pins: Mapping[str, str] = field(default_factory=dict)
    baselines: tuple[str, ...] = DEFAULT_BASELINES
    stages: int | None = None
    schedules: tuple[str, ...] = RUNNABLE
    storage: str | None = None
    data_parallel: int | None = None
    tensor_parallel: int | None = None
    stage_of: Mapping[str, int] = field(default_factory=dict)
    recompute: int | None = None
    offload: bool = False
    bucket_bytes: int | None = None
    deterministic: bool = False
    precision: str | None = None
    grid: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.searcher, str) or self.searcher not in SEARCHERS:
            raise InputError("searcher", self.searcher, f"expected one of {', '.join(SEARCHERS)}")
        if self.optimizer not in ("adamw", "sgd"):
            raise InputError("optimizer", self.optimizer, "expected adamw or sgd")
        check_integer("seed", self.seed, 0, 2**63 - 1)
        if not _is_number(self.gap_tolerance) or not 0 <= self.gap_tolerance < 1:
            raise InputError("gap_tolerance", self.gap_tolerance, "expected at least 0 and below 1")
        if self.time_limit_s == 0:
            raise InfeasibleError("time_limit_s", 0, None, "expected more than 0 and at most 86400 seconds")
        if not _is_number(self.time_limit_s) or not 0 < self.time_limit_s <= 86_400:
            raise InputError("time_limit_s", self.time_limit_s, "expected more than 0 and at most 86400 seconds")
        if not isinstance(self.pins, Mapping):
            raise InputError("pins", self.pins, "expected a mapping from names to layouts")
        for name, layout in self.pins.items():
            if not isinstance(name, str) or not isinstance(layout, str):
                raise InputError(f"pins.{name}", layout, "expected a layout such as 'S0'")
        if not isinstance(self.stage_of, Mapping):
            raise InputError("stage_of", self.stage_of, "expected a mapping from names to stages")
        for name, stage in self.stage_of.items():
            if not isinstance(name, str):
                raise InputError("stage_of", name, "expected names of ops or parameters")
            check_integer(f"stage_of.{name}", stage, 0, MAX_STAGES - 1)
        if not isinstance(self.baselines, tuple) or len(set(self.baselines)) != len(self.baselines):
            raise InputError("baselines", self.baselines, "expected distinct names of baselines")
        for name in self.baselines:
            if name not in BASELINES:
                raise InputError("baselines", name, f"expected some of {', '.join(BASELINES)}")
        if self.stages is not None:
            check_integer("stages", self.stages, 1, MAX_STAGES)
        if not isinstance(self.schedules, tuple) or not self.schedules or set(self.schedules) - set(SCHEDULES):
            raise InputError("schedules", self.schedules, f"expected one or more of {', '.join(SCHEDULES)}")
        if self.storage is not None and self.storage not in STORAGES:
            raise InputError("storage", self.storage, f"expected one of {', '.join(STORAGES)}")
        for name in ("data_parallel", "tensor_parallel"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_DEVICES)
        if self.recompute is not None:
            check_integer("recompute", self.recompute, 0, MAX_STAGES)
        for name in ("offload", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(name, getattr(self, name), "expected true or false")
        if self.precision not in (None, AUTO, *PRECISIONS):
            raise InputError("precision", self.precision, f"expected one of {', '.join((AUTO, *PRECISIONS))}")
        if self.grid is not None and self.grid not in GRIDS:
            raise InputError("grid", self.grid, f"expected one of {', '.join(GRIDS)}")
        if self.bucket_bytes is not None:
            check_integer("bucket_bytes", self.bucket_bytes, 1, 2**40)
        for name in ("global_batch", "micro_batch"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_BATCH)
        if self.memory_limit_bytes is not None:
            check_integer("memory_limit_bytes", self.memory_limit_bytes, 1, 2**53)
        if self.global_batch is not None and self.micro_batch is not None and self.global_batch % self.micro_batch:
            raise InputError(
                "micro_batch", self.micro_batch, f"expected a divisor of the global batch {self.global_batch}"
            )
        self._refuse_unused()

    def on(self, cluster: Cluster) -> PlanOptions:
        """The options with ``auto`` replaced by the precision that suits the cluster's devices.

        Raises:
            InputError: ``precision``, for one that needs a rate which a device lacks.
        """
        if self.precision != AUTO:
            cluster.in_precision(self.precision)
            return self
        return replace(self, precision="bf16-mixed" if cluster.has_fast_bf16 else "fp32")

    def check_warm_start(self) -> None:
        """Reject options that rule out a warm start.

        Raises:
            InputError: names the first such option.
        """
        for name in UNCHECKED_IN_WARM_START:
            if getattr(self, name):
                raise InputError(name, getattr(self, name), "not allowed with start, which has its own")

    def _refuse_unused(self) -> None:
        """Reject options that other options make ineffective, instead of ignoring them."""
        if self.schedules != RUNNABLE and self.stages == 1:
            raise InputError(
                "schedules", self.schedules, "stages = 1 forbids pipelines; set more stages, or leave stages unset"
            )
        if self.schedules != RUNNABLE and self.pins and self.stages is None:
            raise InputError("schedules", self.schedules, "plans with pins have one stage unless stages is set")
        if self.grid is not None and self.pins:
            raise InputError("grid", self.grid, "not allowed with pins, which set layouts by themselves")
        if self.storage is not None and self.pins:
            raise InputError("storage", self.storage, "not allowed with pins, which set how parameters are stored")
        if self.gap_tolerance != GAP_TOLERANCE and self.searcher not in BOUNDING_SEARCHERS:
            raise InputError("gap_tolerance", self.gap_tolerance, f"searcher {self.searcher} proves no gap")

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in _OMITTED_IF_DEFAULT}
        # Absent if default, so that new options do not change the bytes of documents without them.
        seldom = {
            "pins": dict(self.pins) or None,
            "baselines": None if self.baselines == DEFAULT_BASELINES else list(self.baselines),
            "stages": self.stages,
            "schedules": None if self.schedules == RUNNABLE else list(self.schedules),
            "storage": self.storage,
            "data_parallel": self.data_parallel,
            "tensor_parallel": self.tensor_parallel,
            "stage_of": dict(self.stage_of) or None,
            "recompute": self.recompute,
            "offload": self.offload or None,
            "bucket_bytes": self.bucket_bytes,
            "deterministic": self.deterministic or None,
            "precision": self.precision,
            "grid": self.grid,
        }
        return plain | {name: value for name, value in seldom.items() if value is not None}

    @staticmethod
    def from_dict(data: object) -> PlanOptions:
        fields = Fields(data, "options", PlanOptions.__slots__)
        given = dict(fields.data)
        for name in ("baselines", "schedules"):
            if fields.has(name):
                given[name] = tuple(fields.sequence(name))
        return PlanOptions(**given)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_memory(num_parameters: int, parameter_bytes: int, cluster: Cluster, options: PlanOptions) -> None:
    """Reject a model that no layout can fit: parameters, gradients and optimizer state, split over every device.

    Raises:
        InfeasibleError: ``memory_limit_bytes``, with these bytes per device as ``needed``.
    """
    limit = min(options.memory_limit_bytes or cluster.mean_memory_bytes, cluster.mean_memory_bytes)
    precision = options.on(cluster).precision
    if precision is None:
        state_bytes = 0 if options.offload else {"adamw": 8, "sgd": 0}[options.optimizer] * num_parameters
        total_bytes = 2 * parameter_bytes + state_bytes
    else:
        meta = PRECISIONS[precision].parameter_meta(())
        total_bytes = num_parameters * state_bytes_per_element(meta, options.optimizer, offload=options.offload)
    least = -(-total_bytes // cluster.num_devices)
    if least > limit:
        held = "parameters and gradients" if options.offload else "parameters, gradients and optimizer state"
        detail = f"{held} alone do not fit, even if split over {cluster.num_devices} devices"
        raise InfeasibleError("memory_limit_bytes", limit, least, detail)


def check_offload(graph: LogicalGraph, options: PlanOptions) -> None:
    """Reject offloading if no parameter has optimizer state.

    Raises:
        InputError: ``offload``.
    """
    if not any(optimizer_bytes_per_element(leaf.meta, options.optimizer) for leaf in graph.trained):
        raise InputError("offload", True, f"{options.optimizer} has no optimizer state for {graph.name} to offload")


def check_determinism(graph: LogicalGraph, kind: str) -> None:
    """Reject a model with an op that may give different bits in another run, whatever its layout, on a kind of device.

    Raises:
        InfeasibleError: ``deterministic``, with the first such op.
    """
    for node in graph.nodes:
        why = nondeterminism_reason(graph, node, kind)
        if why:
            raise InfeasibleError("deterministic", "true", None, f"{node.name} ({node.op}) {why}")
