"""The contract of a launcher, which starts a job on a cluster exactly once and finds it again.

A **job** is one process per node, started by the cluster's scheduler. Each process runs an entry point of the table
``ENTRY_POINTS``; an entry point for ranks runs as ``ranks_per_node`` processes. Nothing else can be started: a spec
holds arguments, never a command line.

- **Exactly once.** A key identifies one piece of work. ``submit`` creates at most one cluster job per key, whoever
  calls it and however often, even if the cluster's answer is lost or the caller dies in between. If a cluster cannot
  guarantee that for two concurrent submissions, one of the two jobs ends without running anything: a job's first
  process claims the key in the job's folder, and only the first claim succeeds. A job that the cluster restarts by
  itself also finds the key claimed. Running work again needs another key.
- **Recovery.** ``find`` needs only the key and works from any process and host that sees the shared folder, even after
  the cluster has forgotten the job.
- **States**: ``queued -> running -> succeeded | failed | cancelled``, never back. ``succeeded`` means that the entry
  points of all nodes returned 0. ``reason`` says why a job waits or how it failed.
- **Time limits** count from the start of the job's processes, not from submission. A job that exceeds its limit is
  ended and ``failed``. If one node's process fails, those of the other nodes are ended.
- **Cancel** may be called at any time and repeatedly, for any key; it does not wait. A job that had not ended becomes
  ``cancelled``, or keeps the state in which it was just ending.
- **Logs** are the output of node 0's processes, in the file ``log_path``; other nodes' logs lie next to it
  (``node_log``). They can be read while they grow.
- **Errors**: ``UnavailableError`` if the cluster did not answer: the outcome is unknown, ask again. ``LauncherError``
  if it refused. Every call returns within about ten seconds, whatever the cluster does.

The launcher's folder and the paths in a spec are on a file system that all nodes share. Methods may be called from any
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
from autosbp.utils.json_io import check_integer

ENTRY_POINTS: Mapping[str, bool] = MappingProxyType(
    {
        "autosbp.executor.trial_worker": True,
        "autosbp.calibration._rank_worker": True,
        "autosbp.service.launchers.probe_entry": False,
    }
)
"""Modules that a job may run, and whether they run as ranks; the others run once per node."""
FINAL = ("succeeded", "failed", "cancelled")
_KEY = re.compile(r"[a-z0-9]([a-z0-9-]{0,47}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_NODES, MAX_RANKS_PER_NODE = 4096, 64


class LauncherError(TrialError):
    """The cluster refused a job, or the job cannot be run."""


class UnavailableError(LauncherError):
    """The cluster did not answer; the outcome of the request is unknown."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job runs, and with which resources.

    Args:
        module: one of ``ENTRY_POINTS``.
        arguments: its arguments; paths in them are absolute and on the shared file system.
        log_path: file of node 0's output.
        time_limit_s: seconds that the job may run.
        num_nodes, ranks_per_node, gpus_per_node: resources of the job.
        env: variables set for the job's processes; no other variable of the service reaches the cluster.
        interface: network interface for communication between ranks; None leaves the choice to the libraries.
        sandbox: confinement as of ``autosbp.sandbox.Sandbox.to_dict``; ranks may write only to the folder of
            ``log_path``.

    Raises:
        InputError: a member has a wrong value.
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
    sandbox: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.module not in ENTRY_POINTS:
            raise InputError("module", self.module, f"expected one of {', '.join(ENTRY_POINTS)}")
        if not self.log_path.is_absolute():
            raise InputError("log_path", str(self.log_path), "expected an absolute path")
        if not 0 < self.time_limit_s < 1e7:
            raise InputError("time_limit_s", self.time_limit_s, "expected more than 0 and less than 1e7 seconds")
        check_integer("num_nodes", self.num_nodes, 1, MAX_NODES)
        check_integer("ranks_per_node", self.ranks_per_node, 1, MAX_RANKS_PER_NODE)
        check_integer("gpus_per_node", self.gpus_per_node, 0, MAX_RANKS_PER_NODE)
        for text in (*self.arguments, *self.env, *self.env.values()):
            if "\0" in text or "\n" in text:
                raise InputError("arguments", text, "expected text without NUL characters and line breaks")
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                raise InputError("env", name, "expected the name of an environment variable")

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {
            **asdict(self),
            "arguments": list(self.arguments),
            "log_path": str(self.log_path),
            "env": dict(self.env),
            "sandbox": dict(self.sandbox),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> JobSpec:
        """Inverse of ``to_dict``."""
        return JobSpec(**{**data, "arguments": tuple(data["arguments"]), "log_path": Path(data["log_path"])})


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Current status of a job. ``native_id`` is the cluster's own id of it."""

    state: str
    reason: str
    native_id: str

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINAL


class Launcher(Protocol):
    """Starts jobs on one cluster; the module's docstring has the guarantees."""

    @property
    def name(self) -> str:
        """Name of the launcher in the settings, such as ``slurm``."""

    def submit(self, spec: JobSpec, key: str) -> JobStatus:
        """Return the key's job, submitting it if there is none; raise ``InputError`` if the key has another spec."""

    def find(self, key: str) -> JobStatus | None:
        """Return the key's job, or None if there never was one."""

    def status(self, key: str) -> JobStatus:
        """Return the key's job; raise ``LauncherError`` if there is none."""

    def logs(self, key: str, offset: int = 0) -> bytes:
        """Node 0's log from byte ``offset`` on, as far as it is written; empty before the first byte."""

    def cancel(self, key: str) -> None:
        """Request the end of the job."""

    def active_keys(self) -> Sequence[str]:
        """Keys of all jobs that are queued or running on the cluster."""


def check_key(key: str) -> str:
    """Return a valid key, or raise ``InputError``.

    A key becomes part of names on every cluster, hence the rules of RFC 1123 labels, with room for a prefix.
    """
    if not _KEY.fullmatch(key):
        raise InputError("key", key, "expected at most 49 of a-z, 0-9 and inner hyphens")
    return key


def node_log(log_path: Path, node: int) -> Path:
    """Log file of a node: ``log_path`` for node 0, next to it ``ranks.node1.log``, ... for the others."""
    return log_path if node == 0 else log_path.with_name(f"{log_path.stem}.node{node}{log_path.suffix}")
