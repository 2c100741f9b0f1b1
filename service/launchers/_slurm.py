"""Jobs on Slurm, by its command-line clients (22.05 or later); accounting is asked where there is any.

A job's name is made of its key, so that it can be found from the moment at which the controller has it. Two jobs of one
name never run at once (``--dependency=singleton``), and the second finds the key claimed.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.launchers._base import JobSpec, LauncherError, UnavailableError
from service.launchers._cluster import ClusterLauncher
from service.launchers._folder import JobFolder

_PREFIX = "autosbp-"
_CLIENT_S = 20.0  # with the controller down, a client gives up after 10 s
_NO_ANSWER = ("Unable to contact", "connect failure", "timed out", "Socket timed out", "Connection refused", "munge")
_UNKNOWN = "Invalid job id"
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING"}
_STATES: Mapping[str, str] = {
    **dict.fromkeys(_WAITING, "queued"),
    **dict.fromkeys(_RUNNING, "running"),
    "COMPLETED": "succeeded",
    "CANCELLED": "cancelled",
}
"""Slurm's states that have one of ours; every other is a failure."""
_ACCOUNTED_SINCE = "now-30days"
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF")


class SlurmLauncher(ClusterLauncher):
    """Submits with sbatch; each node's process is a task of one srun.

    Args:
        options: more of sbatch's own options, such as ``--partition=gpu``.
        python: the interpreter on the nodes, in whose environment autosbp is installed.
        python_path: folders that are added to its path.
        exclusive: whether a job has its nodes to itself, as what it measures needs.
    """

    name = "slurm"

    def __init__(
        self,
        root: Path,
        *,
        python: str,
        python_path: str = "",
        options: Sequence[str] = (),
        exclusive: bool = True,
        settle_s: float = 3.0,
    ) -> None:
        super().__init__(root, settle_s)
        self._python, self._python_path = python, python_path
        self._options = [*options, *(["--exclusive"] if exclusive else [])]

    def active_keys(self) -> Sequence[str]:
        """See ``Launcher``."""
        names = _client("squeue", "--me", "--noheader", "--format=%j").split()
        return sorted({name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)})

    def _check(self, spec: JobSpec) -> None:
        """Slurm itself refuses what it cannot run."""

    def _submit(self, folder: JobFolder) -> str:
        spec, key = folder.spec, folder.key
        nodes = f"--nodes={spec.num_nodes}"
        minutes = math.ceil(spec.time_limit_s / 60) + 2  # ours comes first, to the second, and leaves a reason
        answer = _client(
            *("sbatch", "--parsable", f"--job-name={_PREFIX}{key}", f"--comment=autosbp {key}", nodes),
            *("--ntasks-per-node=1", f"--cpus-per-task={spec.ranks_per_node}", f"--time={minutes}", "--no-requeue"),
            *("--dependency=singleton", f"--output={folder.path / 'slurm.log'}", "--open-mode=append"),
            *([f"--gpus-per-node={spec.gpus_per_node}"] if spec.gpus_per_node else []),
            *(f"--chdir={folder.path}", *self._options),
            script=self._script(folder, spec),
        )
        return _job_id(answer)

    def _script(self, folder: JobFolder, spec: JobSpec) -> str:
        path = {"PYTHONPATH": self._python_path} if self._python_path else {}
        step = [
            *("srun", f"--ntasks={spec.num_nodes}", "--ntasks-per-node=1", f"--cpus-per-task={spec.ranks_per_node}"),
            *("--kill-on-bad-exit=1", "--cpu-bind=none", self._python, "-m", "service.launchers._node"),
            *(str(folder.path), "SLURM_JOB_ID", "SLURM_NODEID"),
        ]
        lines = [f"export {name}={shlex.quote(value)}" for name, value in path.items()]
        return "\n".join(["#!/bin/sh", *lines, f"exec {shlex.join(step)}", ""])

    def _known(self, folder: JobFolder) -> str | None:
        """The first one, if two submissions have crossed; a later one only waits for it."""
        answer = _client("squeue", "--me", "--noheader", "--states=all", f"--name={_PREFIX}{folder.key}", "--format=%i")
        found = sorted(map(int, answer.split()))
        if not found:
            return _accounted_id(f"{_PREFIX}{folder.key}")
        return folder.token or str(found[0])

    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        answer = _client(
            "squeue", "--noheader", "--states=all", f"--jobs={folder.native_id}", "--format=%T|%r", missing=""
        )
        if not answer.strip():
            return _accounted(str(folder.native_id))
        state, _, why = answer.strip().splitlines()[0].partition("|")
        return _told(state, why)

    def _cancel(self, folder: JobFolder) -> None:
        _client("scancel", str(folder.native_id), missing="")


def _told(state: str, why: str) -> tuple[str, str]:
    ours = _STATES.get(state, "failed")
    words = "" if why in ("None", "") else why
    return ours, f"slurm: {state} {words}".strip() if ours == "failed" else words


def _accounted(native_id: str) -> tuple[str, str] | None:
    """What accounting says of a job that the controller has forgotten."""
    answer = _client("sacct", "-X", "-n", "-P", "-o", "State", "-j", native_id, may_lack=True)
    words = answer.split()
    return _told(words[0], "") if words else None


def _accounted_id(name: str) -> str | None:
    """Asked by name, accounting tells of today alone unless it is given a time. Where it does not answer the claim in the
    job's folder still keeps a second job from running."""
    asked = ("-X", "-n", "-P", "-o", "JobID", f"--name={name}", f"--starttime={_ACCOUNTED_SINCE}")
    try:
        answer = _client("sacct", *asked, may_lack=True)
    except UnavailableError:
        return None
    words = answer.split()
    return words[0] if words else None


def _job_id(answer: str) -> str:
    words = answer.strip().split(";")
    if not words[0].isdigit():
        raise UnavailableError(f"sbatch gave no job id: {answer!r}")
    return words[0]


def _client(*command: str, script: str | None = None, missing: str | None = None, may_lack: bool = False) -> str:
    """What a client prints. It gets no more of the service's environment than it needs: sbatch would pass it on to the job.

    ``missing`` is the answer where Slurm does not know the job; with ``may_lack``, nothing is, where there is no such client
    or no accounting.
    """
    env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=_CLIENT_S, env=env)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} did not answer within {_CLIENT_S:g} s") from None
    except FileNotFoundError:
        if may_lack:
            return ""
        raise LauncherError(f"{command[0]} is not installed here; Slurm's clients are needed") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip()
    if missing is not None and _UNKNOWN in said:
        return missing
    if may_lack and not any(mark in said for mark in _NO_ANSWER):
        return ""
    # Only a job can be refused; a question that is not answered may be asked again.
    if script is None or not said or done.returncode < 0 or any(mark in said for mark in _NO_ANSWER):
        raise UnavailableError(f"{command[0]} did not answer: {said or f'exit code {done.returncode}'}")
    raise LauncherError(f"{command[0]}: {said}")
