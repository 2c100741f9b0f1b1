"""Strategies and plans: everything that search decides, and the versioned JSON that carries it (DESIGN sections 2, 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autosbp.cluster import Cluster
from autosbp.errors import InputError
from autosbp.jsonio import MAX_INT, Fields, check_integer, digest
from autosbp.pipeline import Pipeline
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.sbp.placement import NdSbp, format_nd_sbp, parse_nd_sbp

SCHEMA, EARLIER_SCHEMA = "autosbp.plan/2", "autosbp.plan/1"
"""The version that is written, and one that is read, too: its plans were searched by a sum in which nothing overlaps."""
EARLIER_OBJECTIVE = (
    "An earlier release searched this plan, by a sum in which no communication overlaps computation: another one may be "
    "faster, and nothing is known of its gap."
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
            raise InputError(field, text, "layouts -> layouts is expected")
        return Signature(
            tuple(parse_nd_sbp(part) for part in left.split()), tuple(parse_nd_sbp(part) for part in right.split())
        )


COSTED = (
    "step_time_s",
    "breakdown",
    "comm_bytes_per_device",
    "memory_bytes_per_device",
    "memory_breakdown",
)
"""What a plan says of its winner and of each baseline."""


OWN = ("plan_id", "earlier_plan_id", "memory_breakdown", "by_stage", "ended_early")
"""What a plan says of its winner alone."""


def predicted_step_s(costs: Mapping[str, Any]) -> float:
    """The step of costs that were stored by any release: earlier ones had a sum in ``step_time_s``, and this beside it."""
    return float(costs.get("simulated_step_time_s", costs["step_time_s"]))


GATHERS = ("step", "use")
BUCKET_BYTES = 25 * 2**20
"""Largest message that parameters share, as in DistributedDataParallel (Li et al. 2020, section 3.2.3)."""

BoxingKey = tuple[tuple[int, ...], int, bool, NdSbp, NdSbp]
"""(shape, bytes, whether a gradient flows back, source layout, destination layout)."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How one model trains on one mesh, or on one for each stage of a pipeline.

    Args:
        mesh: the mesh that layouts refer to; neighbouring axes that all ops use alike are already merged. With a
            pipeline, the mesh of one stage; all stages have the same.
        signatures: layouts of every op that depends on a parameter.
        parameters: the stored layout of every parameter; B is synchronised once a step.
        paths: for each boxing, the layouts that it goes through, both ends included.
        global_batch, micro_batch: samples per step and per pass of the program, over all devices.
        optimizer: ``adamw`` or ``sgd``.
        gather: when parameters are boxed from their stored layouts. ``step``: once a step, gradients back once a step
            (ZeRO-1 and 2). ``use``: in every microbatch, freed after forward, gathered again for backward, gradients
            back in every microbatch (ZeRO-3, FSDP's reshard_after_forward).
        bucket_bytes: parameters are gathered together, and gradients reduced together, in messages of up to this
            many bytes; a larger parameter travels alone.
        pipeline: stages, where there are several.
        recompute: runs of ops, by their first and last in the program's order, whose results backward makes anew
            (``sbp.recompute``).
        offload: the optimizer's state is on the host, and its step is there.
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

    @property
    def num_micro(self) -> int:
        return self.global_batch // self.micro_batch

    @property
    def num_devices(self) -> int:
        """Of all stages."""
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
            # Absent where they are the defaults: plans that know neither keep their bytes.
            **({} if self.gather == "step" else {"gather": self.gather}),
            **({} if self.bucket_bytes == BUCKET_BYTES else {"bucket_bytes": self.bucket_bytes}),
            **({} if self.pipeline is None else {"pipeline": self.pipeline.to_dict()}),
            **({} if not self.recompute else {"recompute": [list(run) for run in self.recompute]}),
            **({"offload": True} if self.offload else {}),
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
                raise InputError(item.at("path"), len(route), "at least two layouts are expected")
            gradient = item.boolean("gradient", True)
            shape = tuple(check_integer(item.at("shape"), size, 0, MAX_INT) for size in item.sequence("shape"))
            paths[shape, item.integer("bytes"), gradient, route[0], route[-1]] = route
        for layout in (*parameters.values(), *(layout for route in paths.values() for layout in route)):
            if len(layout) != mesh.ndim:
                raise InputError(path, format_nd_sbp(layout), f"{mesh.ndim} entries are expected, one per mesh axis")
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
        )
        if strategy.global_batch % strategy.micro_batch:
            raise InputError(fields.at("micro_batch"), strategy.micro_batch, f"a divisor of {strategy.global_batch}")
        if not fields.has("pipeline"):
            return strategy
        pipeline = Pipeline.from_dict(fields.raw("pipeline"), fields.at("pipeline"), strategy.num_micro)
        return replace(strategy, pipeline=pipeline)


def _recompute(fields: Fields) -> tuple[tuple[str, str], ...]:
    runs = fields.sequence("recompute") if fields.has("recompute") else ()
    for at, run in enumerate(runs):
        if not isinstance(run, (list, tuple)) or len(run) != 2 or not all(isinstance(name, str) for name in run):
            raise InputError(fields.at(f"recompute[{at}]"), run, "the names of the first and the last op are expected")
    return tuple((run[0], run[1]) for run in runs)


def _mesh(data: object, path: str) -> Mesh:
    fields = Fields(data, path, ("axes", "level_counts"))
    axes = []
    for at, entry in enumerate(fields.sequence("axes")):
        if not isinstance(entry, (list, tuple)) or len(entry) != 3:
            raise InputError(f"{path}.axes[{at}]", entry, "[name, size, level] is expected")
        field = f"{path}.axes[{at}]"
        axes.append(Axis(str(entry[0]), check_integer(field, entry[1], 2, 2**20), check_integer(field, entry[2], 0, 1)))
    counts = tuple(check_integer(f"{path}.level_counts", count, 1, 2**20) for count in fields.sequence("level_counts"))
    size = 1
    for count in counts:
        size *= count
    for axis in axes:
        if axis.level >= len(counts) or size % axis.size:
            raise InputError(f"{path}.axes", axis.name, "axes whose sizes multiply to the devices of their levels")
        size //= axis.size
    if size != 1:
        raise InputError(f"{path}.axes", [axis.size for axis in axes], f"axes for {counts} devices are expected")
    return Mesh(tuple(axes), counts)


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Of a stage on a cluster with groups: the group, or groups, that it is on, all its passes in a step, and the memory of
    one of its devices with what that has."""

    group: str
    busy_s: float
    memory_bytes: int
    memory_limit_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in StageCosts.__slots__}


@dataclass(frozen=True, slots=True)
class Costs:
    """What the cost model predicts of one strategy, per device and training step.

    ``step_time_s`` is the simulated step, with communication beside computation where the executor has it so: what search
    minimises and bounds, and what a trial should measure. It is the sum of ``compute_s``, the communication that a rank waits
    for, which is ``exposed`` by purpose (``costmodel.timeline_event.PURPOSES``), ``bubble_s`` and ``optimizer_s``.
    ``hidden_comm_s`` is the communication that it does not wait for. ``stages`` are there where these are on groups of
    unlike devices; memory is then that of the stage that is nearest to its limit.
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

    def excess_bytes(self, limit: int) -> int:
        """What the fullest device has above a limit, or above its own memory where that is known and less; negative where
        there is room."""
        if not self.stages:
            return self.memory_bytes_per_device - limit
        return max(stage.memory_bytes - min(limit, stage.memory_limit_bytes) for stage in self.stages)

    def limit_bytes(self, limit: int) -> int:
        """The limit that is meant: the fullest device's own where that is less."""
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
    """A point of the space that users would otherwise choose, costed by the same model; costs and strategy are None where it is
    not feasible, or where nobody knows (None): there was no time to look. ``reason`` says why, or what else is to be known;
    ``free_of`` names the constraints of the plan that it does not obey.
    """

    name: str
    costs: Costs | None
    strategy: Strategy | None
    feasible: bool | None
    reason: str = ""
    free_of: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        known = self.costs.to_dict() if self.costs else dict.fromkeys(COSTED)
        return {
            **{key: known[key] for key in COSTED},
            **({"by_stage": known["by_stage"]} if "by_stage" in known else {}),
            "feasible": self.feasible,
            "reason": self.reason,
            **({"free_of": list(self.free_of)} if self.free_of else {}),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """A strategy with its predicted costs, its baselines and where it came from.

    ``document`` is the whole JSON: same input, seed and calibration, same bytes. ``search_s``, the wall time of the
    search, is therefore no part of it.
    """

    document: Mapping[str, Any]
    search_s: float | None = None

    @property
    def plan_id(self) -> str:
        return str(self.document["plan_id"])

    @property
    def stored_id(self) -> str:
        """The id that a service has it under: of a plan that an earlier release wrote, the one that it had then."""
        return str(self.document.get("earlier_plan_id", self.plan_id))

    @property
    def strategy(self) -> Strategy:
        return Strategy.from_dict(self.document["strategy"])

    @property
    def cluster(self) -> Cluster:
        return Cluster.from_dict(self.document["cluster"])

    def baseline_strategy(self, name: str) -> Strategy:
        """The strategy of a feasible baseline; an ``InputError`` names those there are."""
        entry = self.document["baseline_strategies"].get(name)
        if entry is None:
            known = ", ".join(self.document["baseline_strategies"]) or "none"
            raise InputError("baseline", name, f"feasible baselines are {known}")
        return Strategy.from_dict(entry, f"baseline_strategies.{name}")

    def with_baseline(self, name: str) -> Plan:
        """This plan with the baseline's strategy and costs in place of the winner's; for trials of baselines."""
        strategy = self.baseline_strategy(name)
        costs = self.document["baselines"][name]
        document = {
            **{key: value for key, value in self.document.items() if key not in OWN},
            **{key: costs[key] for key in (*COSTED, "by_stage") if key in costs},
            "strategy": strategy.to_dict(),
            "searcher": f"baseline {name}",
            "evaluations": 0,
            "lower_bound_s": None,
            "gap": None,
        }
        return replace(self, document={**document, "plan_id": plan_id_of(document)})

    def with_member(self, name: str, value: Any, seconds: float) -> Plan:
        """With one member more, which took so many seconds to find."""
        document = {**self.document, name: value}
        search_s = None if self.search_s is None else self.search_s + seconds
        return Plan({**document, "plan_id": plan_id_of(document)}, search_s)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.document)

    def summary(self) -> dict[str, Any]:
        """What ``plan --json`` prints: the document, and the wall time of its search."""
        return {**self.document, "search_s": self.search_s}

    @staticmethod
    def from_dict(data: object) -> Plan:
        """Read a plan, one of ``EARLIER_SCHEMA`` with what it says of its step made that of today, under another id; raises
        ``InputError`` for another version, a malformed strategy or an id that does not match."""
        if not isinstance(data, Mapping):
            raise InputError("plan", data, "a mapping is expected")
        if data.get("schema") not in (SCHEMA, EARLIER_SCHEMA):
            raise InputError("schema", data.get("schema"), f"{SCHEMA!r} is the version this release reads")
        for key in ("plan_id", "strategy", "cluster", "baselines", "baseline_strategies", "provenance"):
            if key not in data:
                raise InputError(key, None, "this field is required")
        for key in ("baselines", "baseline_strategies", "provenance"):
            if not isinstance(data[key], Mapping):
                raise InputError(key, data[key], "a mapping is expected")
        Strategy.from_dict(data["strategy"])
        Cluster.from_dict(data["cluster"])
        if data["plan_id"] != plan_id_of(data):
            raise InputError("plan_id", data["plan_id"], f"{plan_id_of(data)} is the hash of this plan")
        document = {key: value for key, value in data.items() if key != "search_s"}
        if data["schema"] == EARLIER_SCHEMA:
            document = {**current_document(document), "earlier_plan_id": data["plan_id"]}
            document["plan_id"] = plan_id_of(document)
        return Plan(document, data.get("search_s"))


def current_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's document as this release writes it, but for its id: of ``EARLIER_SCHEMA`` steps are those that were simulated
    beside the sum, and bounds, and the steps of fewer devices, which were of the sum, are gone."""
    if document.get("schema") != EARLIER_SCHEMA:
        return dict(document)
    fields = Fields(document, "", document)
    kept = {name: value for name, value in document.items() if name != "fewer_devices"}
    return {
        **_with_simulated_step(kept, ""),
        "schema": SCHEMA,
        "lower_bound_s": None,
        "gap": None,
        "warnings": [*fields.sequence("warnings", ()), EARLIER_OBJECTIVE],
        "baselines": {
            name: _with_simulated_step(entry, f"baselines.{name}")
            for name, entry in fields.mapping("baselines").items()
        },
    }


def _with_simulated_step(costs: object, path: str) -> dict[str, Any]:
    """The parts of the sum, of which the step has less: what of communication was hidden, then of waiting, then of computation;
    or more communication, where messages slowed each other down."""
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
    """The content hash of a plan document."""
    content = {key: value for key, value in document.items() if key not in ("plan_id", "search_s")}
    return "plan-" + digest(content)
