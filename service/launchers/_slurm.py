"""Jobs on Slurm, by its command-line clients (22.05 or later) and, where configured, its accounting.

A job's name contains its key, so that it can be found from the moment the controller has it. Two jobs of one name never
run at once (``--dependency=singleton``), and the second finds the key claimed.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from autosbp.service.launchers._base import JobSpec, LauncherError, UnavailableError
from autosbp.service.launchers._cluster_launcher import ClusterLauncher
from autosbp.service.launchers._job_folder import JobFolder

_PREFIX = "autosbp-"
_CLIENT_S = 20.0  # if the controller is down, a client gives up after 10 s
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
"""Slurm's states and ours; all others are failures."""
_ACCOUNTED_SINCE = "now-30days"
_PASSED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF")


class SlurmLauncher(ClusterLauncher):
    """Submits with sbatch; each node's process is a task of one srun.

    Args:
        root: folder of the jobs' folders, shared with all nodes.
        python: interpreter on the nodes, in whose environment autosbp is installed.
        python_path: PYTHONPATH of the nodes' processes.
        options: additional options of sbatch, such as ``--partition=gpu``.
        exclusive: whether a job has its nodes to itself, which measurements need.
        settle_s: see ``ClusterLauncher``.
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
        names = _run_client("squeue", "--me", "--noheader", "--format=%j").split()
        return sorted({name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)})

    def _check(self, spec: JobSpec) -> None:
        """Check nothing: Slurm refuses what it cannot run."""

    def _submit(self, folder: JobFolder) -> str:
        spec, key = folder.spec, folder.key
        nodes = f"--nodes={spec.num_nodes}"
        # longer than the node process's own limit, which comes first and records a reason
        minutes = math.ceil(spec.time_limit_s / 60) + 2
        answer = _run_client(
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
            *("--kill-on-bad-exit=1", "--cpu-bind=none", self._python, "-m", "autosbp.service.launchers._node_process"),
            *(str(folder.path), "SLURM_JOB_ID", "SLURM_NODEID"),
        ]
        lines = [f"export {name}={shlex.quote(value)}" for name, value in path.items()]
        return "\n".join(["#!/bin/sh", *lines, f"exec {shlex.join(step)}", ""])

    def _find_native_id(self, folder: JobFolder) -> str | None:
        """The first job if two submissions crossed; the later one only waits for it."""
        answer = _run_client(
            "squeue", "--me", "--noheader", "--states=all", f"--name={_PREFIX}{folder.key}", "--format=%i"
        )
        found = sorted(map(int, answer.split()))
        if not found:
            return _find_in_accounting(f"{_PREFIX}{folder.key}")
        return folder.token or str(found[0])

    def _native(self, folder: JobFolder) -> tuple[str, str] | None:
        answer = _run_client(
            "squeue", "--noheader", "--states=all", f"--jobs={folder.native_id}", "--format=%T|%r", missing=""
        )
        if not answer.strip():
            return _accounting_status(str(folder.native_id))
        state, _, why = answer.strip().splitlines()[0].partition("|")
        return _state_and_reason(state, why)

    def _cancel(self, folder: JobFolder) -> None:
        _run_client("scancel", str(folder.native_id), missing="")


def _state_and_reason(state: str, why: str) -> tuple[str, str]:
    ours = _STATES.get(state, "failed")
    words = "" if why in ("None", "") else why
    return ours, f"slurm: {state} {words}".strip() if ours == "failed" else words


def _accounting_status(native_id: str) -> tuple[str, str] | None:
    """State and reason from accounting, for a job that the controller has forgotten."""
    answer = _run_client("sacct", "-X", "-n", "-P", "-o", "State", "-j", native_id, may_lack=True)
    words = answer.split()
    return _state_and_reason(words[0], "") if words else None


def _find_in_accounting(name: str) -> str | None:
    """Find a job's id by its name in accounting.

    A query by name covers only today without a start time. If accounting does not answer, the claim in the job's folder
    still prevents a second run.
    """
    asked = ("-X", "-n", "-P", "-o", "JobID", f"--name={name}", f"--starttime={_ACCOUNTED_SINCE}")
    try:
        answer = _run_client("sacct", *asked, may_lack=True)
    except UnavailableError:
        return None
    words = answer.split()
    return words[0] if words else None


def _job_id(answer: str) -> str:
    words = answer.strip().split(";")
    if not words[0].isdigit():
        raise UnavailableError(f"sbatch returned no job id: {answer!r}")
    return words[0]


def _run_client(*command: str, script: str | None = None, missing: str | None = None, may_lack: bool = False) -> str:
    """Run a Slurm client and return its output.

    It gets only a few variables of the service's environment, because sbatch would pass them on to the job.

    Args:
        *command: the client and its arguments.
        script: standard input, the batch script of a submission.
        missing: output to return if Slurm does not know the job.
        may_lack: return "" if the client or accounting is not installed.

    Raises:
        UnavailableError: Slurm did not answer.
        LauncherError: Slurm refused the job, or its clients are not installed.
    """
    env = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=_CLIENT_S, env=env)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} did not respond within {_CLIENT_S:g} s") from None
    except FileNotFoundError:
        if may_lack:
            return ""
        raise LauncherError(f"{command[0]} is not installed; install the Slurm client programs") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip()
    if missing is not None and _UNKNOWN in said:
        return missing
    if may_lack and not any(mark in said for mark in _NO_ANSWER):
        return ""
    # Only submissions can be refused; a failed query may be repeated.
    if script is None or not said or done.returncode < 0 or any(mark in said for mark in _NO_ANSWER):
        raise UnavailableError(f"{command[0]} failed: {said or f'exit code {done.returncode}'}")
    raise LauncherError(f"{command[0]}: {said}")
