"""Contents of one nccl-tests run, independent of the output format, and which collective it measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from autosbp.costmodel.calibration import Point
from autosbp.errors import InputError

KINDS_BY_PROGRAM: Mapping[str, str] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "p2p",
}
"""Kinds of collectives by name of the nccl-tests program, without its suffix ``_perf``."""
_SPELLINGS = {tool.replace("_", ""): kind for tool, kind in KINDS_BY_PROGRAM.items()}
_STARTED = re.compile(r"# Collective test starting: (\w+?)_perf")
_PROGRAM = re.compile(r"(?:^|[/\s])(\w+?)_perf\w*\b")
_DEVICE = re.compile(r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+(\d+)\b")
_DEVICES_PER_PROCESS = re.compile(r"\bnThread\s+(\d+)\s+nGpus\s+(\d+)\b")


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One rank of a log's device list."""

    rank: int
    group: int | None
    host: str
    device: int
    where: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks of one group, by host.

    Attributes:
        num_groups: groups that ran concurrently; None if the list does not say.
        ranks_by_host: None if hosts cannot be told apart, as where several call themselves ``localhost``.
        complete: whether every rank is listed; if not, the counts are lower bounds.
    """

    where: str
    num_groups: int | None
    num_ranks: int
    ranks_by_host: tuple[int, ...] | None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class NcclLog:
    """Points of one collective; ``median_s`` is nccl-tests' mean, and there is no spread.

    Attributes:
        bus_factor: busbw / algbw if known, which determines the number of ranks.
        num_skipped: pieces of rows whose message size was lost between other lines.
        placement: from the device list; None if there is none.
        ends: whether the log has the run's summary; without it, missing rows cannot be detected.
    """

    kind: str
    out_of_place: tuple[Point, ...]
    in_place: tuple[Point, ...]
    bus_factor: float | None
    num_skipped: int
    placement: Placement | None = None
    ends: bool = True

    @property
    def num_groups(self) -> int | None:
        """Number of groups that ran concurrently; None if the log does not say."""
        return self.placement.num_groups if self.placement else None


def kind_of(given: str | None, program: str, path: Path) -> str:
    """Kind of collective: the given one, or the one that the program's or the file's name implies.

    Raises:
        InputError: no name implies one, or the program measures a collective that no plan uses, such as
            ``gather_perf``.
    """
    if given is not None:
        if given not in KINDS_BY_PROGRAM.values():
            raise InputError("kind", given, f"expected one of {', '.join(KINDS_BY_PROGRAM.values())}")
        return given
    named = _STARTED.search(program) or _PROGRAM.search(program)
    if named is not None:
        for tool, kind in KINDS_BY_PROGRAM.items():
            if f"_{named[1]}".endswith(f"_{tool}"):
                return kind
        raise InputError(
            "kind", named[1], f"expected a log of a collective that plans use: {', '.join(KINDS_BY_PROGRAM)}"
        )
    found = kind_in_name(path.name)
    if found is not None:
        return found
    limit = f"cannot tell the nccl-tests program; name it in the log or file name: one of {', '.join(KINDS_BY_PROGRAM)}"
    raise InputError("kind", f"that of {path.name}", limit)


def kind_in_name(name: str) -> str | None:
    """Kind of the collective whose name is part of ``name``, such as ``AllReduce`` or ``all-to-all``."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for spelling, kind in _SPELLINGS.items() if spelling in letters), None)


def listed_devices(text: str, name: str) -> list[ListedDevice]:
    """Device list of a text log; ranks that started without MPI list themselves anywhere between the rows."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _DEVICE.finditer(line):
            group = None if match[2] is None else int(match[2])
            found.append(ListedDevice(int(match[1]), group, match[3], int(match[4]), f"{name} line {number}"))
    return found


def devices_per_process(text: str) -> int:
    """Devices of one process, as a log's first line says: a shorter device list is an excerpt."""
    match = _DEVICES_PER_PROCESS.search(text)
    return prod(map(int, match.groups())) if match else 1


def placement_of(devices: list[ListedDevice], least: int = 1) -> Placement | None:
    """Ranks and hosts of one group, the same in each; ``least`` devices are in a complete list.

    None without a list, and for the lists of several runs, in which ranks repeat.
    """
    ranks = sorted({each.rank for each in devices})
    if not devices or len(ranks) < len(devices):
        return None
    groups: dict[int, dict[str, list[int]]] = {}
    for each in devices:
        groups.setdefault(each.group or 0, {}).setdefault(each.host, []).append(each.device)
    told_apart = all(len(set(used)) == len(used) for hosts in groups.values() for used in hosts.values())
    largest = max(groups.values(), key=lambda hosts: sum(map(len, hosts.values())))
    return Placement(
        devices[0].where,
        None if all(each.group is None for each in devices) else len(groups),
        sum(map(len, largest.values())),
        tuple(sorted(map(len, largest.values()))) if told_apart else None,
        ranks == list(range(len(devices))) and len(devices) >= least,
    )


def check_placement(placement: Placement, group_shape: tuple[int, ...]) -> None:
    """Refuse a group shape that the device list contradicts, in ranks or in ranks of a host.

    With one level, ranks may be devices of one host or one a host.

    Raises:
        InputError: the shape and what the list says.
    """
    expected, found = prod(group_shape), placement.num_ranks
    if found > expected or placement.complete and found != expected:
        raise InputError(
            "group_shape", group_shape, f"the device list from {placement.where} on has {found} ranks a group"
        )
    hosts = placement.ranks_by_host
    if hosts is None:
        return
    inside = group_shape[-1:] if len(group_shape) > 1 else (1, expected)
    too_many = hosts[-1] > max(inside)
    if too_many or placement.complete and (hosts[0] != hosts[-1] or hosts[0] not in inside):
        listed = ", ".join(map(str, hosts))
        limit = f"the device list from {placement.where} on has {listed} ranks on its {len(hosts)} hosts"
        raise InputError("group_shape", group_shape, limit)
