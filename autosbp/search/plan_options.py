"""What a plan is asked for, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autosbp.cluster import MAX_DEVICES, Cluster
from autosbp.costmodel.memory.state import optimizer_bytes_per_element
from autosbp.errors import InfeasibleError, InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.jsonio import Fields, check_integer
from autosbp.pipeline import MAX_STAGES
from autosbp.sbp.reproducible import why_irreproducible
from autosbp.schedules import RUNNABLE, SCHEDULES
from autosbp.search import SEARCHERS
from autosbp.search.problem.baselines import BASELINES as BASELINES
from autosbp.search.problem.baselines import DEFAULT_BASELINES as DEFAULT_BASELINES
from autosbp.search.problem.weights import AS_USED, STEP, USE

MAX_BATCH = 2**30
UNSTARTED = ("pins", "data_parallel", "tensor_parallel", "stage_of", "storage", "recompute")
"""What a start is not looked at for, whether it is as asked."""
GAP_TOLERANCE = 2e-3
STORAGES = (AS_USED, STEP, USE)
BOUNDING = ("auto", "exact", "anytime")
"""Searchers that know how far they may be from the optimum, and so end at a gap."""
_SELDOM = (
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
)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan is asked for. Batches are samples over all devices; None lets the planner choose.

    Args:
        pins: layouts that are given, not searched: ``search.problem.pinned`` says what they look like. They are those of the
            devices of one stage; where no stages are asked for, there is one.
        stages: of a pipeline; 1 forbids pipelines.
        data_parallel, tensor_parallel: degrees inside a stage, see ``search.problem.degrees``; 1 forbids splitting the batch,
            or parameters.
        schedules: those that a pipeline may run; by default those that a runtime here runs.
        baselines: names of what the plan is compared with: ``search.problem.baselines`` says what each is.
        stage_of: stages, from 0, that ops are given: by their names, by parameters that they read, or by patterns of either.
        storage: how parameters are stored. ``as_used``; ``step`` (ZeRO-2): split over the ranks that would hold them
            alike, gathered once a step; ``use`` (ZeRO-3): gathered for each use.
        recompute: 0: no block; k: every repeated block, k together. None: as many blocks as memory asks for.
        bucket_bytes: parameters are gathered together, and gradients reduced together, in messages of up to so many bytes;
            by default 25 MiB, or less where that does not fit. More is fewer messages, less is an earlier first one.
        deterministic: only what gives the same bits in every run (``sbp.reproducible``); trials enforce it.
        offload: the optimizer's state may be on the host, where the cluster's file tells of one: all of it or none.
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

    def __post_init__(self) -> None:
        if not isinstance(self.searcher, str) or self.searcher not in SEARCHERS:
            raise InputError("searcher", self.searcher, f"one of {', '.join(SEARCHERS)} is expected")
        if self.optimizer not in ("adamw", "sgd"):
            raise InputError("optimizer", self.optimizer, "adamw or sgd is expected")
        check_integer("seed", self.seed, 0, 2**63 - 1)
        if not _is_number(self.gap_tolerance) or not 0 <= self.gap_tolerance < 1:
            raise InputError("gap_tolerance", self.gap_tolerance, "at least 0 and below 1 is expected")
        if self.time_limit_s == 0:
            raise InfeasibleError("time_limit_s", 0, None, "no search ends in no time")
        if not _is_number(self.time_limit_s) or not 0 < self.time_limit_s <= 86_400:
            raise InputError("time_limit_s", self.time_limit_s, "more than 0 and at most 86400 seconds is expected")
        if not isinstance(self.pins, Mapping):
            raise InputError("pins", self.pins, "a mapping from names to layouts is expected")
        for name, layout in self.pins.items():
            if not isinstance(name, str) or not isinstance(layout, str):
                raise InputError(f"pins.{name}", layout, "a layout such as 'S0' is expected")
        if not isinstance(self.stage_of, Mapping):
            raise InputError("stage_of", self.stage_of, "a mapping from names to stages is expected")
        for name, stage in self.stage_of.items():
            if not isinstance(name, str):
                raise InputError("stage_of", name, "names of ops or parameters are expected")
            check_integer(f"stage_of.{name}", stage, 0, MAX_STAGES - 1)
        if not isinstance(self.baselines, tuple) or len(set(self.baselines)) != len(self.baselines):
            raise InputError("baselines", self.baselines, "distinct names of baselines are expected")
        for name in self.baselines:
            if name not in BASELINES:
                raise InputError("baselines", name, f"some of {', '.join(BASELINES)} are expected")
        if self.stages is not None:
            check_integer("stages", self.stages, 1, MAX_STAGES)
        if not isinstance(self.schedules, tuple) or not self.schedules or set(self.schedules) - set(SCHEDULES):
            raise InputError("schedules", self.schedules, f"one or several of {', '.join(SCHEDULES)} are expected")
        if self.storage is not None and self.storage not in STORAGES:
            raise InputError("storage", self.storage, f"one of {', '.join(STORAGES)} is expected")
        for name in ("data_parallel", "tensor_parallel"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_DEVICES)
        if self.recompute is not None:
            check_integer("recompute", self.recompute, 0, MAX_STAGES)
        for name in ("offload", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(name, getattr(self, name), "true or false is expected")
        if self.bucket_bytes is not None:
            check_integer("bucket_bytes", self.bucket_bytes, 1, 2**40)
        for name in ("global_batch", "micro_batch"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_BATCH)
        if self.memory_limit_bytes is not None:
            check_integer("memory_limit_bytes", self.memory_limit_bytes, 1, 2**53)
        if self.global_batch is not None and self.micro_batch is not None and self.global_batch % self.micro_batch:
            raise InputError(
                "micro_batch", self.micro_batch, f"a divisor of the global batch {self.global_batch} is expected"
            )
        self._refuse_unused()

    def require_start(self) -> None:
        """Refuse options that leave an earlier plan's strategy no part in the search; ``InputError`` names the first."""
        for name in UNSTARTED:
            if getattr(self, name):
                raise InputError(name, getattr(self, name), "none is expected with a start, which has its own")

    def _refuse_unused(self) -> None:
        """Options that the others leave no effect are refused, not dropped in silence."""
        if self.schedules != RUNNABLE and self.stages == 1:
            raise InputError(
                "schedules", self.schedules, "stages = 1 forbids pipelines: more stages are expected, or any"
            )
        if self.schedules != RUNNABLE and self.pins and self.stages is None:
            raise InputError("schedules", self.schedules, "plans with pins have one stage unless stages are asked for")
        if self.storage is not None and self.pins:
            raise InputError("storage", self.storage, "none is expected with pins: they say how parameters are stored")
        if self.gap_tolerance != GAP_TOLERANCE and self.searcher not in BOUNDING:
            raise InputError("gap_tolerance", self.gap_tolerance, f"searcher {self.searcher} knows no gap")

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in _SELDOM}
        # Absent where they are the defaults: what knows neither keeps its bytes.
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


def require_room(num_parameters: int, parameter_bytes: int, cluster: Cluster, options: PlanOptions) -> None:
    """Refuse at once what no layout can fit: parameters, gradients and optimizer state, split over every device.

    Raises:
        InfeasibleError: ``memory_limit_bytes``, with these bytes per device as what is needed at least.
    """
    limit = min(options.memory_limit_bytes or cluster.mean_memory_bytes, cluster.mean_memory_bytes)
    state_bytes = 0 if options.offload else {"adamw": 8, "sgd": 0}[options.optimizer] * num_parameters
    least = -(-(2 * parameter_bytes + state_bytes) // cluster.num_devices)
    if least > limit:
        held = "parameters and gradients" if options.offload else "parameters, gradients and optimizer state"
        detail = f"{held} alone, split over {cluster.num_devices} devices, do not fit"
        raise InfeasibleError("memory_limit_bytes", limit, least, detail)


def require_state(graph: LogicalGraph, options: PlanOptions) -> None:
    """Refuse to offload where no parameter has optimizer state.

    Raises:
        InputError: ``offload``.
    """
    if not any(optimizer_bytes_per_element(leaf.meta, options.optimizer) for leaf in graph.trained):
        raise InputError("offload", True, f"{options.optimizer} keeps no state of {graph.name} that could be elsewhere")


def require_reproducible(graph: LogicalGraph, kind: str) -> None:
    """Refuse a model with an op that may give other bits in another run, whatever its layout, on a kind of device.

    Raises:
        InfeasibleError: ``deterministic``, with the first such op.
    """
    for node in graph.nodes:
        why = why_irreproducible(graph, node, kind)
        if why:
            raise InfeasibleError("deterministic", "true", None, f"{node.name} ({node.op}) {why}")
