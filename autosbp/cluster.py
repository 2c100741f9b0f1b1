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

from autosbp.errors import InputError
from autosbp.groups import Group, Link, joined_host, joined_levels, quickest_of, read_group, read_link, slowest_of
from autosbp.hardware import MAX_DEVICES as MAX_DEVICES
from autosbp.hardware import Curves as Curves
from autosbp.hardware import Device as Device
from autosbp.hardware import Host as Host
from autosbp.hardware import Level as Level
from autosbp.hardware import presets as presets
from autosbp.hardware import read_device, read_host, read_levels
from autosbp.jsonio import Fields, check_integer, digest, read_file
from autosbp.sbp.mesh import Axis, Mesh

SCHEMA = "autosbp.cluster/1"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices on a product of levels, outermost first. Two levels at most: nodes and devices of a node. ``host`` is what
    optimizer state can be offloaded to, where that is known.

    All devices are alike but where there are ``groups`` of unlike ones (``autosbp.groups``), one behind the other along
    the outermost level, joined by a ``link``: then ``device``, ``levels`` and ``host`` have the slowest and the least of
    all, which is what a program on all of them at once gets.
    """

    name: str
    levels: tuple[Level, ...]
    device: Device
    source: str = ""
    host: Host | None = None
    groups: tuple[Group, ...] = ()
    link: Link | None = None

    @staticmethod
    def of_groups(name: str, groups: tuple[Group, ...], link: Link, source: str = "") -> Cluster:
        """Unlike groups as one cluster."""
        device = slowest_of([group.device for group in groups])
        return Cluster(name, joined_levels(groups, link), device, source, joined_host(groups), groups, link)

    def groups_of(self, first: int, last: int) -> tuple[int, ...]:
        """The groups that devices ``first`` to ``last``, both included, are of."""
        found, at = [], 0
        for index, group in enumerate(self.groups):
            end = at + group.num_devices
            if first < end and last >= at:
                found.append(index)
            at = end
        return tuple(found)

    def part(self, groups: Sequence[int]) -> Cluster:
        """What some groups are to a program on them alone: levels have the counts of the whole cluster, and the slowest
        links and devices of these groups. The same cluster where these are all."""
        if len(groups) == len(self.groups):
            return self
        chosen = tuple(self.groups[index] for index in groups)
        levels = joined_levels(chosen, self.link if len(chosen) > 1 else None)
        return Cluster(
            self.name,
            tuple(replace(level, count=whole.count) for level, whole in zip(levels, self.levels, strict=True)),
            slowest_of([group.device for group in chosen]),
            host=joined_host(chosen),
        )

    def quickest(self) -> Cluster:
        """As if all devices were alike and had the best of what any has; nothing is slower on it."""
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
        return Cluster(self.name, levels, quickest_of([group.device for group in self.groups]), host=self.host)

    @property
    def num_devices(self) -> int:
        total = 1
        for level in self.levels:
            total *= level.count
        return total

    @property
    def mean_memory_bytes(self) -> int:
        """Of a device, over all groups."""
        if not self.groups:
            return self.device.memory_bytes
        return sum(group.num_devices * group.device.memory_bytes for group in self.groups) // self.num_devices

    @property
    def devices_per_node(self) -> int:
        return self.levels[-1].count if len(self.levels) > 1 else 1

    @property
    def levels_key(self) -> tuple[tuple[str, int], ...]:
        """Names and counts of the levels: what a calibration must agree on."""
        return tuple((level.name, level.count) for level in self.levels)

    @property
    def cluster_hash(self) -> str:
        return digest(self.to_dict())

    def mesh(self) -> Mesh:
        """The finest mesh: each level's count factored into primes, outermost level first (DESIGN section 2)."""
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
        }

    @staticmethod
    def from_dict(data: object) -> Cluster:
        """Read the file format; raises ``InputError`` that names the field, the value and the limit. With ``groups``,
        ``device``, ``levels`` and ``host`` follow from these, and may be left out."""
        fields = Fields(data, "", ("schema", "name", "device", "levels", "source", "host", "groups", "link"), SCHEMA)
        source = fields.raw("source", "")
        if not isinstance(source, str):
            raise InputError("source", source, "a string is expected")
        if fields.has("groups"):
            return _grouped(fields, source)
        if fields.has("link"):
            raise InputError("link", fields.raw("link"), "groups are expected, which it joins")
        levels, device = read_levels(fields.sequence("levels")), read_device(fields.raw("device"))
        host = read_host(fields.raw("host")) if fields.has("host") else None
        return _checked(Cluster(fields.text("name"), levels, device, source, host))


def _grouped(fields: Fields, source: str) -> Cluster:
    groups: list[Group] = []
    for at, entry in enumerate(fields.sequence("groups")):
        path = f"groups[{at}]"
        if isinstance(entry, Mapping) and "preset" in entry:
            chosen = Fields(entry, path, ("name", "preset"))
            preset = _preset(chosen.text("preset"), chosen.at("preset"))
            groups.append(Group(chosen.text("name", preset.device.name), preset.levels, preset.device, preset.host))
        else:
            groups.append(read_group(entry, path))
    if len(groups) < 2:
        raise InputError("groups", len(groups), "two or more are expected")
    for at, group in enumerate(groups):
        _check_like(group, groups[0], f"groups[{at}]")
    if len({group.name for group in groups}) < len(groups):
        raise InputError("groups", [group.name for group in groups], "names of groups must differ")
    cluster = _checked(Cluster.of_groups(fields.text("name"), tuple(groups), read_link(fields.raw("link")), source))
    derived = cluster.to_dict()
    for name in ("device", "levels", "host"):
        if fields.has(name) and fields.raw(name) != derived.get(name):
            raise InputError(name, fields.raw(name), "what follows from the groups is expected, or nothing")
    return cluster


def _preset(spec: str, path: str) -> Cluster:
    """A preset of devices that are alike; never a file."""
    if Path(spec).suffix:
        raise InputError(path, spec, "PRESET:NODES is expected")
    try:
        preset = load_cluster(spec)
    except InputError as error:
        raise InputError(path, spec, error.limit) from None
    if preset.groups:
        raise InputError(path, spec, "a preset of devices that are alike is expected")
    return preset


def _check_like(group: Group, first: Group, path: str) -> None:
    """Raise ``InputError`` where groups cannot be one mesh, or not run one program."""
    names, wanted = ([level.name for level in each.levels] for each in (group, first))
    if names != wanted:
        raise InputError(f"{path}.levels", names, f"levels {wanted} are expected, as in groups[0]")
    inner, all_inner = ([level.count for level in each.levels[1:]] for each in (group, first))
    if inner != all_inner:
        raise InputError(f"{path}.levels[1].count", inner[0], f"{all_inner[0]} are expected, as in groups[0]")
    if group.device.kind != first.device.kind:
        raise InputError(f"{path}.device.kind", group.device.kind, f"{first.device.kind} is expected, as in groups[0]")


def _checked(cluster: Cluster) -> Cluster:
    if cluster.num_devices > MAX_DEVICES:
        raise InputError("levels", cluster.num_devices, f"at most {MAX_DEVICES} devices are expected")
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

    ``PRESET:NODES`` overrides the preset's number of nodes, ``PRESET:NODESxDEVICES`` the devices of a node too, and a
    bare ``PRESET`` is the preset as its file has it. ``local:4`` is one level of 4 ranks. Where a preset has groups, these
    are the nodes of each. Raises ``InputError``.
    """
    path = Path(spec)
    if path.suffix in (".yaml", ".yml", ".json"):
        return Cluster.from_dict(read_file(path))
    name, colon, given = spec.partition(":")
    known = presets()["clusters"]
    if name not in known:
        choices = ", ".join(sorted(known))
        raise InputError("cluster", spec, f"PRESET:NODES with one of {choices}, or a .yaml or .json file is expected")
    data = {"schema": SCHEMA, "name": spec, **known[name]}
    if not colon:
        return Cluster.from_dict(data)
    if "groups" in data:
        groups = [{**group, "levels": _counted(group["levels"], spec, given)} for group in data["groups"]]
        return Cluster.from_dict({**data, "groups": groups})
    return Cluster.from_dict({**data, "levels": _counted(data["levels"], spec, given)})


def _counted(levels: list[dict[str, Any]], spec: str, given: str) -> list[dict[str, Any]]:
    """A preset's levels with the counts of ``NODES`` or ``NODESxDEVICES``."""
    match = re.fullmatch(r"(\d{1,40})(?:x(\d{1,40}))?", given, re.ASCII)
    if match is None:
        raise InputError("cluster", spec, "PRESET:NODES or PRESET:NODESxDEVICES is expected, such as local:2x2")
    nodes, devices = match.groups()
    counts = [check_integer("cluster.nodes", int(nodes), 1, MAX_DEVICES)]
    if devices is not None:
        counts.append(check_integer("cluster.devices_per_node", int(devices), 1, MAX_DEVICES))
    if len(counts) > len(levels):
        raise InputError("cluster", spec, f"PRESET:NODES is expected: {spec.partition(':')[0]} has one device a node")
    if spec.startswith("local:") and len(counts) == 1:
        return [{**levels[-1], "count": counts[0]}]
    counts += [level["count"] for level in levels[len(counts) :]]
    return [{**level, "count": count} for level, count in zip(levels, counts, strict=True)]
