"""Strategies and plans: all decisions of the search, and the versioned JSON that stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autosbp.cluster.spec import Cluster
from autosbp.errors import InputError
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.synchronizers import SyncStrategy
from autosbp.plan.throughput import at_step_time
from autosbp.sbp.layout import NdSbp, format_nd_sbp, parse_nd_sbp
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.utils.json_io import FULL_DIGEST_DIGITS, HASH_DIGITS, MAX_INT, Fields, check_integer, digest

SCHEMA, OLDER_SCHEMA = "autosbp.plan/2", "autosbp.plan/1"
"""The version that is written, and an older one that is also read: its plans minimised a sum in which nothing overlaps."""
OLDER_OBJECTIVE_WARNING = (
    "An earlier release searched this plan with a cost model without overlap: another plan may be faster, and its "
    "optimality gap is unknown."
)


@dataclass(frozen=True, slots=True)
class Signature:
    """The layouts of every tensor argument and output of one op."""

    ins: tuple[NdSbp, ...]
    outs: tuple[NdSbp, ...]

    def __str__(self) -> str:
        left = " ".join(format_nd_sbp(layout) for layout in self.ins)
        return f"{left} -> {' '.join(format_nd_sbp(layout) for layout in self.outs)}"

    @staticmethod
    def parse(text: str, field: str) -> Signature:
        left, arrow, right = text.partition("->") if isinstance(text, str) else ("", "", "")
        if not arrow:
            raise InputError(field, text, "expected layouts -> layouts")
        return Signature(
            tuple(parse_nd_sbp(part) for part in left.split()), tuple(parse_nd_sbp(part) for part in right.split())
        )


COST_FIELDS = (
    "step_time_s",
    "breakdown",
    "comm_bytes_per_device",
    "memory_bytes_per_device",
    "memory_breakdown",
)
"""Cost fields that a plan document has for its own strategy and for each baseline."""


STRATEGY_ONLY_FIELDS = ("plan_id", "earlier_plan_id", "strategy_summary", "memory_breakdown", "by_stage", "ended_early")
"""Fields that a plan document has for its own strategy only."""


def predicted_step_s(costs: Mapping[str, Any]) -> float:
    """Step time of costs stored by any release.

    Older releases stored a sum in ``step_time_s`` and the simulated time next to it.
    """
    return float(costs.get("simulated_step_time_s", costs["step_time_s"]))


GATHERS = ("step", "use")
BUCKET_BYTES = 25 * 2**20
"""Largest message that parameters share, as in DistributedDataParallel (Li et al. 2020, section 3.2.3)."""

BoxingKey = tuple[tuple[int, ...], int, bool, NdSbp, NdSbp]
"""(shape, bytes, whether a gradient flows back, source layout, destination layout)."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How one model trains on one mesh, or on one mesh per pipeline stage.

    Args:
        mesh: the mesh that layouts refer to; neighbouring axes that all ops use alike are already merged. With a
            pipeline, the mesh of one stage; all stages have the same.
        signatures: layouts of every op that depends on a parameter.
        parameters: the stored layout of every parameter; gradients of B parameters are synchronised once a step.
        paths: for each boxing, the sequence of layouts, both ends included.
        global_batch, micro_batch: samples per step and per pass of the program, over all devices.
        optimizer: ``adamw`` or ``sgd``.
        gather: when parameters are boxed from their stored layouts. ``step``: once a step, gradients back once a step
            (ZeRO-1 and 2). ``use``: in every microbatch, freed after forward, gathered again for backward, gradients
            back in every microbatch (ZeRO-3, FSDP's reshard_after_forward).
        bucket_bytes: maximum size of messages that gather several parameters or reduce several gradients; a larger
            parameter travels alone.
        pipeline: the pipeline; None without stages.
        recompute: activation checkpointing segments, each by its first and last op in the program's order
            (``program.activation_checkpointing``).
        offload: keep the optimizer's state on the host and run its step there.
        sync: how gradients are synchronized; None reduces all in default buckets.
    """

    mesh: Mesh
    signatures: Mapping[str, Signature]
    parameters: Mapping[str, NdSbp]
    paths: Mapping[BoxingKey, tuple[NdSbp, ...]]
    global_batch: int
    micro_batch: int
    optimizer: str
    gather: str = "step"
    bucket_bytes: int = BUCKET_BYTES
    pipeline: Pipeline | None = None
    recompute: tuple[tuple[str, str], ...] = ()
    offload: bool = False
    sync: SyncStrategy | None = None

    @property
    def num_micro(self) -> int:
        return self.global_batch // self.micro_batch

    @property
    def num_devices(self) -> int:
        """Devices of all stages."""
        return self.mesh.size * self.num_stages

    @property
    def num_stages(self) -> int:
        return self.pipeline.num_stages if self.pipeline else 1

    def to_dict(self) -> dict[str, Any]:
        paths = [
            {"shape": list(shape), "bytes": size, "path": [format_nd_sbp(layout) for layout in path]}
            | ({} if gradient else {"gradient": False})
            for (shape, size, gradient, _, _), path in self.paths.items()
        ]
        return {
            "mesh": self.mesh.to_dict(),
            "signatures": {name: str(signature) for name, signature in self.signatures.items()},
            "parameters": {name: format_nd_sbp(layout) for name, layout in self.parameters.items()},
            "paths": sorted(
                paths, key=lambda entry: (entry["shape"], entry["bytes"], entry["path"], "gradient" in entry)
            ),
            "global_batch": self.global_batch,
            "micro_batch": self.micro_batch,
            "optimizer": self.optimizer,
            # Omitted at the defaults, so that documents without these fields keep their bytes.
            **({} if self.gather == "step" else {"gather": self.gather}),
            **({} if self.bucket_bytes == BUCKET_BYTES else {"bucket_bytes": self.bucket_bytes}),
            **({} if self.pipeline is None else {"pipeline": self.pipeline.to_dict()}),
            **({} if not self.recompute else {"recompute": [list(run) for run in self.recompute]}),
            **({"offload": True} if self.offload else {}),
            **({} if self.sync is None else {"sync": self.sync.to_dict()}),
        }

    @staticmethod
    def from_dict(data: object, path: str = "strategy") -> Strategy:
        fields = Fields(data, path, tuple(Strategy.__slots__))
        mesh = _mesh(fields.raw("mesh"), fields.at("mesh"))
        signatures = {
            str(name): Signature.parse(text, f"{path}.signatures.{name}")
            for name, text in fields.mapping("signatures").items()
        }
        parameters = {str(name): parse_nd_sbp(text) for name, text in fields.mapping("parameters").items()}
        paths: dict[BoxingKey, tuple[NdSbp, ...]] = {}
        for at, entry in enumerate(fields.sequence("paths")):
            item = Fields(entry, f"{path}.paths[{at}]", ("shape", "bytes", "path", "gradient"))
            route = tuple(parse_nd_sbp(text, in_path=True) for text in item.sequence("path"))
            if len(route) < 2:
                raise InputError(item.at("path"), len(route), "expected at least two layouts")
            gradient = item.boolean("gradient", True)
            shape = tuple(check_integer(item.at("shape"), size, 0, MAX_INT) for size in item.sequence("shape"))
            paths[shape, item.integer("bytes"), gradient, route[0], route[-1]] = route
        for layout in (*parameters.values(), *(layout for route in paths.values() for layout in route)):
            if len(layout) != mesh.ndim:
                raise InputError(path, format_nd_sbp(layout), f"expected {mesh.ndim} entries, one per mesh axis")
        strategy = Strategy(
            mesh,
            signatures,
            parameters,
            paths,
            fields.integer("global_batch", low=1),
            fields.integer("micro_batch", low=1),
            fields.text("optimizer", choices=("adamw", "sgd")),
            fields.text("gather", "step", choices=GATHERS),
            fields.integer("bucket_bytes", BUCKET_BYTES, low=1),
            recompute=_recompute(fields),
            offload=fields.boolean("offload", False),
            sync=SyncStrategy.from_dict(fields.raw("sync"), fields.at("sync")) if fields.has("sync") else None,
        )
        if strategy.global_batch % strategy.micro_batch:
            raise InputError(
                fields.at("micro_batch"), strategy.micro_batch, (f"expected a divisor of {strategy.global_batch}")
            )
        if not fields.has("pipeline"):
            return strategy
        pipeline = Pipeline.from_dict(fields.raw("pipeline"), fields.at("pipeline"), strategy.num_micro)
        return replace(strategy, pipeline=pipeline)


def _recompute(fields: Fields) -> tuple[tuple[str, str], ...]:
    runs = fields.sequence("recompute") if fields.has("recompute") else ()
    for at, run in enumerate(runs):
        if not isinstance(run, (list, tuple)) or len(run) != 2 or not all(isinstance(name, str) for name in run):
            raise InputError(fields.at(f"recompute[{at}]"), run, "expected the names of the first and the last op")
    return tuple((run[0], run[1]) for run in runs)


def _mesh(data: object, path: str) -> Mesh:
    fields = Fields(data, path, ("axes", "level_counts"))
    axes = []
    for at, entry in enumerate(fields.sequence("axes")):
        if not isinstance(entry, (list, tuple)) or len(entry) != 3:
            raise InputError(f"{path}.axes[{at}]", entry, "expected [name, size, level]")
        field = f"{path}.axes[{at}]"
        axes.append(Axis(str(entry[0]), check_integer(field, entry[1], 2, 2**20), check_integer(field, entry[2], 0, 1)))
    counts = tuple(check_integer(f"{path}.level_counts", count, 1, 2**20) for count in fields.sequence("level_counts"))
    size = 1
    for count in counts:
        size *= count
    for axis in axes:
        if axis.level >= len(counts) or size % axis.size:
            raise InputError(
                f"{path}.axes", axis.name, ("expected axes whose sizes multiply to the device counts of their levels")
            )
        size //= axis.size
    if size != 1:
        raise InputError(f"{path}.axes", [axis.size for axis in axes], f"expected axes for {counts} devices")
    return Mesh(tuple(axes), counts)


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Costs of one stage on a cluster with groups.

    Args:
        group: name of the group or groups that the stage is on.
        busy_s: all its passes in a step.
        memory_bytes, memory_limit_bytes: memory of one of its devices, used and available.
    """

    group: str
    busy_s: float
    memory_bytes: int
    memory_limit_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in StageCosts.__slots__}


@dataclass(frozen=True, slots=True)
class Costs:
    """Predicted costs of one strategy, per device and training step.

    ``step_time_s`` is the simulated step, with communication overlapped with computation where the executor overlaps
    them. Search minimises and bounds it, and a trial should measure it. It is the sum of ``compute_s``, the
    communication that a rank waits for (``exposed``, by purpose; ``costmodel.step_event.PURPOSES``), ``bubble_s`` and
    ``optimizer_s``. ``hidden_comm_s`` is communication that it does not wait for. ``stages`` is set where stages are on
    groups of different devices; memory is then that of the stage closest to its limit.
    """

    step_time_s: float
    compute_s: float
    exposed: Mapping[str, float]
    hidden_comm_s: float
    bubble_s: float
    optimizer_s: float
    comm_bytes_per_device: int
    memory_bytes_per_device: int
    memory: Mapping[str, int]
    stages: tuple[StageCosts, ...] = ()

    @property
    def exposed_comm_s(self) -> float:
        """Communication that a rank waits for."""
        return sum(self.exposed.values(), 0.0)

    def memory_excess_bytes(self, limit: int) -> int:
        """Memory of the fullest device in excess of ``limit``; negative if it fits.

        A device's own memory is its limit where that is known and smaller.
        """
        if not self.stages:
            return self.memory_bytes_per_device - limit
        return max(stage.memory_bytes - min(limit, stage.memory_limit_bytes) for stage in self.stages)

    def effective_limit_bytes(self, limit: int) -> int:
        """The effective limit: the fullest device's own memory where that is smaller."""
        tight = max(self.stages, key=lambda each: each.memory_bytes - each.memory_limit_bytes, default=None)
        return limit if tight is None else min(limit, tight.memory_limit_bytes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "step_time_s": self.step_time_s,
            "breakdown": {
                "compute_s": self.compute_s,
                "exposed_comm_s": self.exposed_comm_s,
                "exposed_comm_by_purpose_s": {name: self.exposed[name] for name in sorted(self.exposed)},
                "hidden_comm_s": self.hidden_comm_s,
                "bubble_s": self.bubble_s,
                "optimizer_s": self.optimizer_s,
            },
            "comm_bytes_per_device": self.comm_bytes_per_device,
            "memory_bytes_per_device": self.memory_bytes_per_device,
            "memory_breakdown": dict(self.memory),
            **({"by_stage": [stage.to_dict() for stage in self.stages]} if self.stages else {}),
        }


@dataclass(frozen=True, slots=True)
class Baseline:
    """A strategy that users would otherwise choose, costed by the same model.

    Args:
        costs, strategy: None if the baseline is infeasible or was not evaluated.
        feasible: None if there was no time to evaluate it.
        reason: why it is infeasible, or a further remark.
        free_of: names of the plan's constraints that it violates.
    """

    name: str
    costs: Costs | None
    strategy: Strategy | None
    feasible: bool | None
    reason: str = ""
    free_of: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        known = self.costs.to_dict() if self.costs else dict.fromkeys(COST_FIELDS)
        return {
            **{key: known[key] for key in COST_FIELDS},
            **({"by_stage": known["by_stage"]} if "by_stage" in known else {}),
            "feasible": self.feasible,
            "reason": self.reason,
            **({"free_of": list(self.free_of)} if self.free_of else {}),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """A strategy with its predicted costs, its baselines and its provenance.

    ``document`` is the whole JSON: same input, seed and calibration give the same bytes. It therefore excludes
    ``search_s``, the wall time of the search.
    """

    document: Mapping[str, Any]
    search_s: float | None = None

    @property
    def plan_id(self) -> str:
        return str(self.document["plan_id"])

    @property
    def stored_id(self) -> str:
        """The id under which a service stores it; for a plan of an older release, the id that it had there."""
        return str(self.document.get("earlier_plan_id", self.plan_id))

    @property
    def strategy(self) -> Strategy:
        return Strategy.from_dict(self.document["strategy"])

    @property
    def cluster(self) -> Cluster:
        """The cluster, with the rates of the plan's precision."""
        return Cluster.from_dict(self.document["cluster"]).in_precision(self.precision)

    @property
    def precision(self) -> str | None:
        """The training precision (``autosbp.graph.precision``); None where it is that of the graph as captured."""
        precision: str | None = self.document.get("precision")
        return precision

    def baseline_strategy(self, name: str) -> Strategy:
        """The strategy of a feasible baseline; otherwise an ``InputError`` lists the feasible ones."""
        entry = self.document["baseline_strategies"].get(name)
        if entry is None:
            known = ", ".join(self.document["baseline_strategies"]) or "none"
            raise InputError("baseline", name, f"feasible baselines: {known}")
        return Strategy.from_dict(entry, f"baseline_strategies.{name}")

    def with_baseline(self, name: str) -> Plan:
        """This plan with the baseline's strategy and costs in place of its own; for trials of baselines."""
        return self.with_strategy(
            self.baseline_strategy(name), self.document["baselines"][name], {"searcher": f"baseline {name}"}
        )

    def with_strategy(self, strategy: Strategy, costs: Mapping[str, Any], fields: Mapping[str, Any]) -> Plan:
        """This plan with another strategy of its model and cluster.

        Args:
            costs: of the strategy, as a document has them (``COST_FIELDS``).
            fields: further members of the document: ``searcher`` says where the strategy comes from; without
                ``lower_bound_s`` and ``gap`` nothing is proved about it.
        """
        document = {
            **{key: value for key, value in self.document.items() if key not in STRATEGY_ONLY_FIELDS},
            **{key: costs[key] for key in (*COST_FIELDS, "by_stage") if key in costs},
            **at_step_time(self.document, costs["step_time_s"]),
            "strategy": strategy.to_dict(),
            "evaluations": 0,
            "lower_bound_s": None,
            "gap": None,
            **fields,
        }
        return replace(self, document={**document, "plan_id": plan_id_of(document)})

    def with_field(self, name: str, value: Any, seconds: float) -> Plan:
        """A copy with one more field, which took ``seconds`` to compute."""
        document = {**self.document, name: value}
        search_s = None if self.search_s is None else self.search_s + seconds
        return Plan({**document, "plan_id": plan_id_of(document)}, search_s)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.document)

    def summary(self) -> dict[str, Any]:
        """The document and the wall time of its search, as ``plan --json`` prints them."""
        return {**self.document, "search_s": self.search_s}

    @staticmethod
    def from_dict(data: object) -> Plan:
        """Read a plan; one of ``OLDER_SCHEMA`` is converted to the current schema, under another id.

        Raises:
            InputError: another version, a malformed strategy, or an id that does not match.
        """
        if not isinstance(data, Mapping):
            raise InputError("plan", data, "expected a mapping")
        if data.get("schema") not in (SCHEMA, OLDER_SCHEMA):
            raise InputError("schema", data.get("schema"), f"this release reads version {SCHEMA!r}")
        for key in ("plan_id", "strategy", "cluster", "baselines", "baseline_strategies", "provenance"):
            if key not in data:
                raise InputError(key, None, "this field is required")
        for key in ("baselines", "baseline_strategies", "provenance"):
            if not isinstance(data[key], Mapping):
                raise InputError(key, data[key], "expected a mapping")
        Strategy.from_dict(data["strategy"])
        Cluster.from_dict(data["cluster"])
        if data["plan_id"] != plan_id_of(data):
            raise InputError("plan_id", data["plan_id"], f"the hash of this plan is {plan_id_of(data)}")
        document = {key: value for key, value in data.items() if key != "search_s"}
        if data["schema"] == OLDER_SCHEMA:
            document = {**upgrade_document(document), "earlier_plan_id": data["plan_id"]}
            document["plan_id"] = plan_id_of(document)
        return Plan(document, data.get("search_s"))


def upgrade_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a plan document to the current schema, except for its id.

    For ``OLDER_SCHEMA``, the simulated step times replace the sums. Bounds and the step times of fewer devices are
    dropped, because they refer to the sum.
    """
    if document.get("schema") != OLDER_SCHEMA:
        return dict(document)
    fields = Fields(document, "", document)
    kept = {name: value for name, value in document.items() if name != "fewer_devices"}
    return {
        **_with_simulated_step(kept, ""),
        "schema": SCHEMA,
        "lower_bound_s": None,
        "gap": None,
        "warnings": [*fields.sequence("warnings", ()), OLDER_OBJECTIVE_WARNING],
        "baselines": {
            name: _with_simulated_step(entry, f"baselines.{name}")
            for name, entry in fields.mapping("baselines").items()
        },
    }


def _with_simulated_step(costs: object, path: str) -> dict[str, Any]:
    """Reduce the parts of the sum to the simulated step: first hidden communication, then bubble, then compute.

    Where messages slow each other down, the simulated step is longer and exposed communication grows instead.
    """
    fields = Fields(costs, path, costs if isinstance(costs, Mapping) else ())
    found = {name: value for name, value in fields.data.items() if name != "simulated_step_time_s"}
    if not all(map(fields.has, ("simulated_step_time_s", "step_time_s", "breakdown"))):
        return found
    step_s = fields.number("simulated_step_time_s")
    left_s = fields.number("step_time_s") - step_s
    parts = dict(fields.mapping("breakdown"))
    sums = Fields(parts, fields.at("breakdown"), parts)
    exposed_s = sums.number("exposed_comm_s")
    for name in ("exposed_comm_s", "bubble_s", "compute_s"):
        less_s = min(left_s, sums.number(name))
        parts[name] -= less_s
        left_s -= less_s
    parts["hidden_comm_s"] = max(0.0, exposed_s - parts["exposed_comm_s"])
    return {**found, "step_time_s": step_s, "breakdown": parts}


def plan_id_of(document: Mapping[str, Any]) -> str:
    """The id of a plan document, from a hash of its content."""
    return f"plan-{content_hash_of(document)[:HASH_DIGITS]}"


def content_hash_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a plan document without its id and search time."""
    content = {key: value for key, value in document.items() if key not in ("plan_id", "search_s")}
    return digest(content, FULL_DIGEST_DIGITS)
