"""Clusters: devices, levels of the network, and the file format and presets that describe them.

A cluster is a product of levels, outermost (slowest) first: ``nodes x devices of a node``. A level's bandwidth is what
one unit of that level (one node, one device) can send, shared by all groups of ranks that use it at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autosbp.cluster.hardware import MAX_DEVICES as MAX_DEVICES
from autosbp.cluster.hardware import Device as Device
from autosbp.cluster.hardware import Host as Host
from autosbp.cluster.hardware import Level as Level
from autosbp.cluster.hardware import presets as presets
from autosbp.cluster.hardware import read_device, read_host, read_levels
from autosbp.cluster.node_groups import (
    GroupLink,
    NodeGroup,
    combined_host,
    combined_levels,
    fastest_device,
    read_group,
    read_link,
    slowest_device,
)
from autosbp.errors import InputError
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.utils.json_io import FULL_DIGEST_DIGITS, HASH_DIGITS, Fields, check_integer, digest, read_file

SCHEMA = "autosbp.cluster/1"
_FIELDS = ("schema", "name", "device", "levels", "source", "host", "groups", "link", "price_per_device_hour")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices on a product of at most two levels, outermost first: nodes, and devices of a node.

    ``host`` is the target of optimizer offload, if known. ``price_per_device_hour`` is in US dollars, of the mean
    device, if known.

    All devices are equal unless there are ``groups`` (``autosbp.cluster.node_groups``): consecutive node groups along
    the outermost level with different devices, joined by a ``link``. ``device``, ``levels`` and ``host`` then have the
    slowest speeds and the smallest sizes of all groups, which is what a program on all devices gets.
    """

    name: str
    levels: tuple[Level, ...]
    device: Device
    source: str = ""
    host: Host | None = None
    groups: tuple[NodeGroup, ...] = ()
    link: GroupLink | None = None
    price_per_device_hour: float | None = None

    @staticmethod
    def of_groups(
        name: str, groups: tuple[NodeGroup, ...], link: GroupLink, source: str = "", price: float | None = None
    ) -> Cluster:
        """Combine different node groups into one cluster."""
        device = slowest_device([group.device for group in groups])
        return Cluster(name, combined_levels(groups, link), device, source, combined_host(groups), groups, link, price)

    def groups_of(self, first: int, last: int) -> tuple[int, ...]:
        """Indices of the groups of devices ``first`` to ``last``, inclusive."""
        found, at = [], 0
        for index, group in enumerate(self.groups):
            end = at + group.num_devices
            if first < end and last >= at:
                found.append(index)
            at = end
        return tuple(found)

    def part(self, groups: Sequence[int]) -> Cluster:
        """The cluster as a program sees it that runs on some groups only.

        Levels keep the counts of the whole cluster, with the slowest links and devices of these groups. Returns the
        same cluster if these are all groups.
        """
        if len(groups) == len(self.groups):
            return self
        chosen = tuple(self.groups[index] for index in groups)
        levels = combined_levels(chosen, self.link if len(chosen) > 1 else None)
        return Cluster(
            self.name,
            tuple(replace(level, count=whole.count) for level, whole in zip(levels, self.levels, strict=True)),
            slowest_device([group.device for group in chosen]),
            host=combined_host(chosen),
        )

    def quickest(self) -> Cluster:
        """A cluster of equal devices with the best values of any group; nothing is slower on it."""
        if not self.groups:
            return self
        levels = tuple(
            replace(
                level,
                latency_s=min(group.levels[at].latency_s for group in self.groups),
                bandwidth_bytes_per_s=max(group.levels[at].bandwidth_bytes_per_s for group in self.groups),
            )
            for at, level in enumerate(self.levels)
        )
        return Cluster(self.name, levels, fastest_device([group.device for group in self.groups]), host=self.host)

    def in_precision(self, precision: str | None) -> Cluster:
        """The cluster with the rates of a training precision; ``InputError`` if a device has none for it."""
        groups = tuple(replace(group, device=group.device.in_precision(precision)) for group in self.groups)
        return replace(self, device=self.device.in_precision(precision), groups=groups)

    @property
    def has_fast_bf16(self) -> bool:
        """Whether every device has tensor cores for bfloat16."""
        return all(device.has_fast_bf16 for device in (self.device, *(group.device for group in self.groups)))

    @property
    def num_devices(self) -> int:
        total = 1
        for level in self.levels:
            total *= level.count
        return total

    @property
    def price_per_hour(self) -> float | None:
        """US dollars an hour of all devices, if known."""
        return None if self.price_per_device_hour is None else self.num_devices * self.price_per_device_hour

    @property
    def mean_memory_bytes(self) -> int:
        """Mean memory of a device over all groups."""
        if not self.groups:
            return self.device.memory_bytes
        return sum(group.num_devices * group.device.memory_bytes for group in self.groups) // self.num_devices

    @property
    def devices_per_node(self) -> int:
        return self.levels[-1].count if len(self.levels) > 1 else 1

    @property
    def levels_key(self) -> tuple[tuple[str, int], ...]:
        """Names and counts of the levels; a calibration must have the same."""
        return tuple((level.name, level.count) for level in self.levels)

    @property
    def content_hash(self) -> str:
        """SHA-256 of the document."""
        return digest(self.to_dict(), FULL_DIGEST_DIGITS)

    @property
    def cluster_hash(self) -> str:
        return self.content_hash[:HASH_DIGITS]

    def mesh(self) -> Mesh:
        """The finest mesh: each level's count factored into primes, outermost level first."""
        axes = []
        for index, level in enumerate(self.levels):
            for position, prime in enumerate(prime_factors(level.count)):
                axes.append(Axis(f"{level.name}{position}", prime, index))
        return Mesh(tuple(axes), tuple(level.count for level in self.levels))

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "device": self.device.to_dict(),
            "levels": [level.to_dict() for level in self.levels],
            "source": self.source,
            **({"host": self.host.to_dict()} if self.host else {}),
            **({"groups": [group.to_dict() for group in self.groups]} if self.groups else {}),
            **({"link": self.link.to_dict()} if self.link else {}),
            **({} if self.price_per_device_hour is None else {"price_per_device_hour": self.price_per_device_hour}),
        }

    @staticmethod
    def from_dict(data: object) -> Cluster:
        """Read the file format; with ``groups``, ``device``, ``levels`` and ``host`` are derived and may be omitted.

        Raises:
            InputError: names the field, the value and the limit.
        """
        fields = Fields(data, "", _FIELDS, SCHEMA)
        source = fields.raw("source", "")
        if not isinstance(source, str):
            raise InputError("source", source, "expected a string")
        price = fields.number("price_per_device_hour", low=0.0, high=1e6) if fields.has(_FIELDS[-1]) else None
        if fields.has("groups"):
            return _grouped(fields, source, price)
        if fields.has("link"):
            raise InputError("link", fields.raw("link"), "joins groups, but the cluster has none")
        levels, device = read_levels(fields.sequence("levels")), read_device(fields.raw("device"))
        host = read_host(fields.raw("host")) if fields.has("host") else None
        return _checked(Cluster(fields.text("name"), levels, device, source, host, price_per_device_hour=price))


def _grouped(fields: Fields, source: str, price: float | None) -> Cluster:
    groups: list[NodeGroup] = []
    for at, entry in enumerate(fields.sequence("groups")):
        path = f"groups[{at}]"
        if isinstance(entry, Mapping) and "preset" in entry:
            chosen = Fields(entry, path, ("name", "preset"))
            preset = _preset(chosen.text("preset"), chosen.at("preset"))
            groups.append(NodeGroup(chosen.text("name", preset.device.name), preset.levels, preset.device, preset.host))
        else:
            groups.append(read_group(entry, path))
    if len(groups) < 2:
        raise InputError("groups", len(groups), "expected at least two")
    for at, group in enumerate(groups):
        _check_like(group, groups[0], f"groups[{at}]")
    if len({group.name for group in groups}) < len(groups):
        raise InputError("groups", [group.name for group in groups], "names of groups must differ")
    link = read_link(fields.raw("link"))
    cluster = _checked(Cluster.of_groups(fields.text("name"), tuple(groups), link, source, price))
    derived = cluster.to_dict()
    for name in ("device", "levels", "host"):
        if fields.has(name) and fields.raw(name) != derived.get(name):
            raise InputError(name, fields.raw(name), "must match the groups, or be omitted")
    return cluster


def _preset(spec: str, path: str) -> Cluster:
    """Load a preset of equal devices; never a file."""
    if Path(spec).suffix:
        raise InputError(path, spec, "expected PRESET:NODES")
    try:
        preset = load_cluster(spec)
    except InputError as error:
        raise InputError(path, spec, error.limit) from None
    if preset.groups:
        raise InputError(path, spec, "expected a preset with identical devices")
    return preset


def _check_like(group: NodeGroup, first: NodeGroup, path: str) -> None:
    """Raise ``InputError`` if groups cannot form one mesh or cannot run one program."""
    names, wanted = ([level.name for level in each.levels] for each in (group, first))
    if names != wanted:
        raise InputError(f"{path}.levels", names, f"expected levels {wanted}, as in groups[0]")
    inner, all_inner = ([level.count for level in each.levels[1:]] for each in (group, first))
    if inner != all_inner:
        raise InputError(f"{path}.levels[1].count", inner[0], f"expected {all_inner[0]}, as in groups[0]")
    if group.device.kind != first.device.kind:
        raise InputError(f"{path}.device.kind", group.device.kind, f"expected {first.device.kind}, as in groups[0]")


def _checked(cluster: Cluster) -> Cluster:
    if cluster.num_devices > MAX_DEVICES:
        raise InputError("levels", cluster.num_devices, f"expected at most {MAX_DEVICES} devices")
    return cluster


def prime_factors(count: int) -> list[int]:
    """Primes of ``count`` in ascending order; ``[]`` for 1."""
    factors, divisor = [], 2
    while divisor * divisor <= count:
        while count % divisor == 0:
            factors.append(divisor)
            count //= divisor
        divisor += 1
    return factors + [count] if count > 1 else factors


def load_cluster(spec: str) -> Cluster:
    """A cluster from a YAML/JSON path or a preset: ``dgx-a100-80g:8``, ``local:4``, ``local:2x2``, ``piz-daint``.

    ``PRESET:NODES`` overrides the preset's number of nodes, ``PRESET:NODESxDEVICES`` also the devices of a node, and a
    bare ``PRESET`` uses the counts of its file. ``local:4`` is one level of 4 ranks. For a preset with groups, the
    counts apply to each group. Raises ``InputError``.
    """
    path = Path(spec)
    if path.suffix in (".yaml", ".yml", ".json"):
        return Cluster.from_dict(read_file(path))
    name, colon, given = spec.partition(":")
    known = presets()["clusters"]
    if name not in known:
        choices = ", ".join(sorted(known))
        raise InputError("cluster", spec, f"expected PRESET:NODES with one of {choices}, or a .yaml or .json file")
    data = {"schema": SCHEMA, "name": spec, **{key: value for key, value in known[name].items() if key != "links"}}
    if not colon:
        return Cluster.from_dict(data)
    if "groups" in data:
        groups = [{**group, "levels": _with_counts(group["levels"], spec, given)} for group in data["groups"]]
        return Cluster.from_dict({**data, "groups": groups})
    return Cluster.from_dict({**data, "levels": _with_counts(data["levels"], spec, given)})


def _with_counts(levels: list[dict[str, Any]], spec: str, given: str) -> list[dict[str, Any]]:
    """A preset's levels with the counts of ``NODES`` or ``NODESxDEVICES``."""
    match = re.fullmatch(r"(\d{1,40})(?:x(\d{1,40}))?", given, re.ASCII)
    if match is None:
        raise InputError("cluster", spec, "expected PRESET:NODES or PRESET:NODESxDEVICES, such as local:2x2")
    nodes, devices = match.groups()
    counts = [check_integer("cluster.nodes", int(nodes), 1, MAX_DEVICES)]
    if devices is not None:
        counts.append(check_integer("cluster.devices_per_node", int(devices), 1, MAX_DEVICES))
    if len(counts) > len(levels):
        raise InputError("cluster", spec, f"expected PRESET:NODES: {spec.partition(':')[0]} has one device per node")
    if spec.startswith("local:") and len(counts) == 1:
        return [{**levels[-1], "count": counts[0]}]
    counts += [level["count"] for level in levels[len(counts) :]]
    return [{**level, "count": count} for level, count in zip(levels, counts, strict=True)]
