"""The contract of a launcher: what starts a job on a cluster, once, and finds it again.

A **job** is one process on each of its nodes, started by the cluster's own scheduler. Each runs an entry point of the table
``ENTRY_POINTS``; one that is for ranks is run as ``ranks_per_node`` of them. Nothing but these can be started: a spec holds
arguments, never a command line.

- **Exactly once.** A key names one piece of work. ``submit`` makes at most one cluster job for a key, whoever calls it and
  however often, also when the cluster's answer is lost on the way, or the caller dies between the two. Where a cluster
  cannot promise that, because two submissions cross, one of the two jobs ends without having run anything: a job's first
  process claims the key in the job's folder, and only the first claim holds. A cluster that starts a job again by itself
  finds the key claimed, too. The one way to run work again is another key.
- **Found again.** ``find`` needs the key alone, from any process and host that sees the same folder, also after the cluster
  has forgotten the job.
- **States**: ``queued -> running -> succeeded | failed | cancelled``, never back. ``succeeded`` means that all nodes' entry
  points returned 0. ``reason`` says why a job waits or how it failed.
- **Time limits** count from the start of the job's processes, not from its submission; one that takes longer is ended and
  ``failed``. If one node's process fails, those of the others are ended.
- **Cancel** may be called at any time, any number of times, of any key; it is not waited for. A job that had not
  ended by then becomes ``cancelled`` or, if it was about to end, what it ended as.
- **Logs** are what node 0's processes print, in the file ``log_path`` (other nodes' beside it, see ``node_log``); they can be
  read while they grow.
- **Errors**: ``UnavailableError`` where the cluster did not answer: nothing is known, ask again. ``LauncherError`` where it
  refused. Every call returns within some ten seconds, whatever the cluster does.

The folder of a launcher, and the paths in a spec, are on a file system that all nodes share. Methods may be called from any
thread and process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from autosbp.errors import InputError, TrialError
from autosbp.jsonio import check_integer

ENTRY_POINTS: Mapping[str, bool] = MappingProxyType(
    {"autosbp.executor.worker": True, "calibration._worker": True, "service.launchers.probe": False}
)
"""Modules that a job may run, and whether they are for ranks; one that is not runs once on each node."""
FINAL = ("succeeded", "failed", "cancelled")
_KEY = re.compile(r"[a-z0-9]([a-z0-9-]{0,47}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_NODES, MAX_RANKS_PER_NODE = 4096, 64


class LauncherError(TrialError):
    """The cluster refused a job, or the job cannot be run."""


class UnavailableError(LauncherError):
    """The cluster did not answer; nothing is known about what was asked."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job runs, and on how much.

    Args:
        module: one of ``ENTRY_POINTS``.
        arguments: its arguments; paths in them are absolute and shared.
        log_path: where node 0's output goes.
        time_limit_s: seconds that the job may run.
        num_nodes, ranks_per_node, gpus_per_node: how much of the cluster it takes.
        env: variables set for the job's processes; nothing else of the service's environment goes to the cluster.
        interface: network interface that ranks talk over; None leaves it to them.
    """

    module: str
    arguments: tuple[str, ...]
    log_path: Path
    time_limit_s: float
    num_nodes: int = 1
    ranks_per_node: int = 1
    gpus_per_node: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    interface: str | None = None

    def __post_init__(self) -> None:
        if self.module not in ENTRY_POINTS:
            raise InputError("module", self.module, f"one of {', '.join(ENTRY_POINTS)} is expected")
        if not self.log_path.is_absolute():
            raise InputError("log_path", str(self.log_path), "an absolute path is expected")
        if not 0 < self.time_limit_s < 1e7:
            raise InputError("time_limit_s", self.time_limit_s, "more than 0 and less than 1e7 seconds is expected")
        check_integer("num_nodes", self.num_nodes, 1, MAX_NODES)
        check_integer("ranks_per_node", self.ranks_per_node, 1, MAX_RANKS_PER_NODE)
        check_integer("gpus_per_node", self.gpus_per_node, 0, MAX_RANKS_PER_NODE)
        for text in (*self.arguments, *self.env, *self.env.values()):
            if "\0" in text or "\n" in text:
                raise InputError("arguments", text, "text without zeros and line ends is expected")
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                raise InputError("env", name, "the name of an environment variable is expected")

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **asdict(self),
            "arguments": list(self.arguments),
            "log_path": str(self.log_path),
            "env": dict(self.env),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> JobSpec:
        """Read what ``to_dict`` wrote."""
        return JobSpec(**{**data, "arguments": tuple(data["arguments"]), "log_path": Path(data["log_path"])})


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as it is now. ``native_id`` is the cluster's own name for it."""

    state: str
    reason: str
    native_id: str

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.state in FINAL


class Launcher(Protocol):
    """Starts jobs on one cluster; see the module's docstring for the promises."""

    @property
    def name(self) -> str:
        """What the setting calls it, such as ``slurm``."""

    def submit(self, spec: JobSpec, key: str) -> JobStatus:
        """The job of the key, made if there is none; ``InputError`` if the key has another spec."""

    def find(self, key: str) -> JobStatus | None:
        """The job of the key, or None if there never was one."""

    def status(self, key: str) -> JobStatus:
        """The job of the key; ``LauncherError`` if there is none."""

    def logs(self, key: str, offset: int = 0) -> bytes:
        """Node 0's log from a byte on, as far as it has been written; empty before the first."""

    def cancel(self, key: str) -> None:
        """Ask for the job's end."""

    def active_keys(self) -> Sequence[str]:
        """Keys of all jobs that wait or run on the cluster."""


def check_key(key: str) -> str:
    """The key, if it is one: it becomes part of names in every cluster (RFC 1123's labels, with room for a prefix)."""
    if not _KEY.fullmatch(key):
        raise InputError("key", key, "up to 49 of a-z, 0-9 and inner hyphens are expected")
    return key


def node_log(log_path: Path, node: int) -> Path:
    """Node 0 writes to ``log_path``, node N beside it: ``ranks.log``, ``ranks.node1.log``, ..."""
    return log_path if node == 0 else log_path.with_name(f"{log_path.stem}.node{node}{log_path.suffix}")
