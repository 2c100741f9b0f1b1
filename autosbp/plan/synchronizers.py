"""Synchronization strategies: how the gradient of each parameter is reduced and applied (AutoDist section 2.2).

A strategy is data: it is part of a plan's JSON and can be used in another plan of the same model.
``program.sync_checks`` checks it against a graph and a mesh, ``program.gradient_messages`` derives its messages,
``executor.synchronizers`` runs it, and ``costmodel.synchronizer_cost`` predicts its cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autosbp.errors import InputError
from autosbp.utils.json_io import Fields, check_integer

SCHEMA = "autosbp.sync/1"
ALL_REDUCE, PARAMETER_SERVER = "all_reduce", "parameter_server"
SYNCHRONIZERS = (ALL_REDUCE, PARAMETER_SERVER)
FP16, BF16, POWER_SGD, TOP_K = "fp16", "bf16", "power_sgd", "top_k"
COMPRESSORS = (FP16, BF16, POWER_SGD, TOP_K)
MAX_INDEX = 2**20


@dataclass(frozen=True, slots=True)
class Partition:
    """Shards of a parameter along tensor dim ``dim``, each synchronized separately.

    What is split is the part of the parameter that a device stores. Sizes of shards differ by at most one row.
    """

    dim: int
    shards: int


@dataclass(frozen=True, slots=True)
class Compressor:
    """Lossy encoding of gradients in messages.

    Args:
        name: ``fp16`` and ``bf16`` round; ``power_sgd`` sends low-rank factors of matrices; ``top_k`` sends the largest
            elements.
        rank: rank of the factors of ``power_sgd``.
        ratio: share of the elements that ``top_k`` sends.
        error_feedback: whether the compression error of a message is added to the next step's gradient.
    """

    name: str
    rank: int = 1
    ratio: float = 0.01
    error_feedback: bool = True

    def __str__(self) -> str:
        parameter = {POWER_SGD: f" rank {self.rank}", TOP_K: f" {self.ratio:g}"}.get(self.name, "")
        return self.name + parameter + ("" if self.error_feedback else " without error feedback")

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **({"rank": self.rank} if self.name == POWER_SGD else {}),
            **({"ratio": self.ratio} if self.name == TOP_K else {}),
            **({} if self.error_feedback else {"error_feedback": False}),
        }

    @staticmethod
    def from_dict(data: object, path: str) -> Compressor:
        fields = Fields(data, path, Compressor.__slots__)
        name = fields.text("name", choices=COMPRESSORS)
        for own, owner in (("rank", POWER_SGD), ("ratio", TOP_K)):
            if fields.has(own) and name != owner:
                raise InputError(fields.at(own), fields.raw(own), f"only {owner} has a {own}")
        ratio = fields.number("ratio", 0.01, high=1.0)
        if ratio == 0.0:
            raise InputError(fields.at("ratio"), ratio, "expected a number above 0 and up to 1")
        return Compressor(
            name, fields.integer("rank", 1, low=1, high=4096), ratio, fields.boolean("error_feedback", True)
        )


@dataclass(frozen=True, slots=True)
class ParameterSync:
    """How one parameter is synchronized over the mesh axes on which it is stored B.

    Args:
        synchronizer: ``all_reduce``: every replica gets the sum and runs the optimizer. ``parameter_server``: a
            destination gets the sum, runs the optimizer, and sends the new values to all replicas.
        groups: message label of each shard; shards with the same settings and label share a message.
        partition: shards of the parameter; None for a single shard.
        destinations: server of each shard (``parameter_server`` only): a replica's position in the reduction group,
            row-major over the group's axes.
        order: names of the mesh axes of each phase of the reduction; empty for one phase over all axes. With two phases,
            gradients are first summed within each group of the first phase. In each of these groups, the member at the
            destination's position (the transfer station) sends the sum on.
        compressor: lossy encoding of messages; None for none.
        staleness: maximum number of steps by which updates lag (``parameter_server`` only).
        sparse_rows: 0 for dense gradients; otherwise only non-zero rows are sent, at most this many per replica and round.
    """

    synchronizer: str = ALL_REDUCE
    groups: tuple[int, ...] = (0,)
    partition: Partition | None = None
    destinations: tuple[int, ...] = ()
    order: tuple[tuple[str, ...], ...] = ()
    compressor: Compressor | None = None
    staleness: int = 0
    sparse_rows: int = 0

    @property
    def num_shards(self) -> int:
        return self.partition.shards if self.partition else 1

    @property
    def is_served(self) -> bool:
        """Whether servers apply the gradients; with sparse gradients, servers only sum them."""
        return self.synchronizer == PARAMETER_SERVER and not self.sparse_rows

    @property
    def is_exact(self) -> bool:
        """Whether training equals that of one device: neither lossy nor stale."""
        return self.compressor is None and self.staleness == 0

    def __str__(self) -> str:
        parts = [self.synchronizer.replace("_", "-")]
        if self.destinations:
            parts.append(f"at {','.join(map(str, self.destinations))}")
        if self.partition:
            parts.append(f"in {self.partition.shards} shards of dim {self.partition.dim}")
        if self.order:
            parts.append(f"over {' then '.join('x'.join(axes) for axes in self.order)}")
        if self.sparse_rows:
            parts.append(f"{self.sparse_rows} rows")
        if self.compressor:
            parts.append(f"as {self.compressor} (lossy)")
        if self.staleness:
            parts.append(f"{self.staleness} steps late (stale)")
        return " ".join([*parts, f"[{','.join(map(str, self.groups))}]"])

    def to_dict(self) -> dict[str, Any]:
        return {
            "synchronizer": self.synchronizer,
            "groups": list(self.groups),
            **({"partition": [self.partition.dim, self.partition.shards]} if self.partition else {}),
            **({"destinations": list(self.destinations)} if self.destinations else {}),
            **({"order": [list(axes) for axes in self.order]} if self.order else {}),
            **({"compressor": self.compressor.to_dict()} if self.compressor else {}),
            **({"staleness": self.staleness} if self.staleness else {}),
            **({"sparse_rows": self.sparse_rows} if self.sparse_rows else {}),
        }

    @staticmethod
    def from_dict(data: object, path: str) -> ParameterSync:
        fields = Fields(data, path, ParameterSync.__slots__)
        sync = ParameterSync(
            fields.text("synchronizer", ALL_REDUCE, choices=SYNCHRONIZERS),
            _indices(fields, "groups", (0,)),
            _partition(fields),
            _indices(fields, "destinations", ()),
            _order(fields),
            Compressor.from_dict(fields.raw("compressor"), fields.at("compressor"))
            if fields.has("compressor")
            else None,
            fields.integer("staleness", 0, high=1024),
            fields.integer("sparse_rows", 0),
        )
        sync.check(path)
        return sync

    def check(self, path: str) -> None:
        """Raise ``InputError`` if the fields contradict each other; it names a field below ``path``."""
        shards, serves = self.num_shards, self.synchronizer == PARAMETER_SERVER
        if len(self.groups) != shards:
            raise InputError(f"{path}.groups", list(self.groups), f"expected one label for each of {shards} shards")
        if len(self.destinations) != (shards if serves else 0):
            limit = (
                f"expected one replica for each of {shards} shards" if serves else "an all-reduce has no destination"
            )
            raise InputError(f"{path}.destinations", list(self.destinations), limit)
        if self.staleness and not serves:
            raise InputError(f"{path}.staleness", self.staleness, "an all-reduce has none; use a parameter server")
        compressor = None if self.compressor is None else self.compressor.name
        if compressor in (POWER_SGD, TOP_K) and serves:
            raise InputError(f"{path}.compressor", compressor, "a parameter server takes fp16 or bf16")
        if compressor == TOP_K and self.order:
            raise InputError(f"{path}.compressor", compressor, "top_k reduces over all axes at once: expected no order")
        if self.sparse_rows:
            self._check_sparse(path)

    def _check_sparse(self, path: str) -> None:
        rows = self.sparse_rows
        if self.partition and self.partition.dim != 0:
            raise InputError(f"{path}.partition", self.partition.dim, "sparse gradients are partitioned by rows, dim 0")
        for name, given in (("compressor", self.compressor), ("order", self.order), ("staleness", self.staleness)):
            if given:
                raise InputError(f"{path}.sparse_rows", rows, f"sparse gradients have no {name}")


def _indices(fields: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    values = fields.sequence(name, default)
    return tuple(check_integer(f"{fields.at(name)}[{at}]", value, 0, MAX_INDEX) for at, value in enumerate(values))


def _partition(fields: Fields) -> Partition | None:
    if not fields.has("partition"):
        return None
    values = fields.sequence("partition")
    if len(values) != 2:
        raise InputError(fields.at("partition"), values, "expected [dim, shards]")
    field_name = fields.at("partition")
    return Partition(check_integer(field_name, values[0], 0, 64), check_integer(field_name, values[1], 2, MAX_INDEX))


def _order(fields: Fields) -> tuple[tuple[str, ...], ...]:
    parts = fields.sequence("order", ())
    for part in parts:
        if not isinstance(part, (list, tuple)) or not part or not all(isinstance(name, str) for name in part):
            raise InputError(fields.at("order"), parts, "expected lists of mesh axes, such as [['g0'], ['n0']]")
    return tuple(tuple(part) for part in parts)


@dataclass(frozen=True, slots=True)
class SyncStrategy:
    """A synchronization strategy.

    Args:
        replicas: number of replicas: the size of the largest reduction group.
        parameters: synchronization by parameter name; other parameters are reduced in default buckets
            (``Strategy.bucket_bytes``).
    """

    replicas: int
    parameters: Mapping[str, ParameterSync] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether training equals that of one device."""
        return all(sync.is_exact for sync in self.parameters.values())

    def __str__(self) -> str:
        """One line per parameter, with message labels in brackets."""
        width = max(map(len, self.parameters), default=0)
        lines = [f"{name:<{width}}  {sync}" for name, sync in self.parameters.items()]
        return "\n".join([f"{self.replicas} replicas", *lines])

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "replicas": self.replicas,
            "parameters": {name: sync.to_dict() for name, sync in self.parameters.items()},
        }

    @staticmethod
    def from_dict(data: object, path: str = "sync") -> SyncStrategy:
        """Read a strategy from JSON values; raises ``InputError`` with the name of a malformed or inconsistent field."""
        fields = Fields(data, path, ("schema", *SyncStrategy.__slots__), SCHEMA)
        parameters = fields.mapping("parameters")
        return SyncStrategy(
            fields.integer("replicas", low=1, high=MAX_INDEX),
            {str(name): ParameterSync.from_dict(one, f"{path}.parameters.{name}") for name, one in parameters.items()},
        )
