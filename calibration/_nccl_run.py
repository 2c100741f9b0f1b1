"""Run the nccl-tests programs over the groups of a cluster and build a calibration from their output.

A single node is measured directly: one process with as many GPUs as the group has. Several nodes need programs built
with MPI, started by ``mpirun`` or ``srun`` with one process per GPU; ``NCCL_TESTS_SPLIT`` then runs all groups of one
shape concurrently, as a training step does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from autosbp.calibration._fit_pooling import pool_fits
from autosbp.calibration._nccl_log import KINDS_BY_PROGRAM
from autosbp.calibration._nccl_tests import import_nccl_log
from autosbp.calibration._rank_launch import Progress, why_unwritable, writing_to
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.errors import CalibrationError, InputError

LAUNCHERS = ("auto", "direct", "mpirun", "srun")
HOME = "NCCL_TESTS_HOME"
MIN_BYTES, MAX_BYTES, FACTOR = 2**10, 2**30, 4
_TAIL = 2000


@dataclass(frozen=True, slots=True)
class NcclGroup:
    """Groups of one shape; ``split`` is their value of ``NCCL_TESTS_SPLIT``, empty if all ranks form one group."""

    shape: tuple[int, ...]
    split: str

    @property
    def name(self) -> str:
        return "x".join(map(str, self.shape))


def groups_of(cluster: Cluster, launcher: str) -> Iterator[NcclGroup]:
    """Groups that nccl-tests can form: neighbours within a node, one GPU of each node, and all GPUs."""
    *outer, inside = (level.count for level in cluster.levels)
    nodes = prod(outer)
    for count in range(2, inside + 1):
        if inside % count == 0 and not (nodes > 1 and launcher == "direct"):
            whole = nodes == 1 and (launcher == "direct" or count == inside)
            yield NcclGroup((*[1] * len(outer), count), "" if whole else f"DIV {count}")
    if nodes > 1:
        yield NcclGroup((*outer, 1), f"MOD {inside}" if inside > 1 else "")
    if nodes > 1 and inside > 1:
        yield NcclGroup((*outer, inside), "")


def find_program(tool: str, environment: Mapping[str, str]) -> str:
    """Path of ``TOOL_perf`` (or ``TOOL_perf_mpi``) in ``NCCL_TESTS_HOME``, its ``build`` folder, or PATH."""
    home = environment.get(HOME, "")
    places = [home, str(Path(home) / "build")] if home else []
    for name in (f"{tool}_perf", f"{tool}_perf_mpi"):
        found = shutil.which(name, path=os.pathsep.join([*places, environment.get("PATH", "")]))
        if found is not None:
            return found
    limit = f"expected build/{tool}_perf of https://github.com/NVIDIA/nccl-tests in this folder or on PATH"
    raise InputError(HOME, home or None, limit)


def choose_launcher(launcher: str, cluster: Cluster, environment: Mapping[str, str]) -> str:
    """Resolve ``auto``: ``direct`` for one node, ``srun`` within a Slurm allocation, else ``mpirun``."""
    if launcher not in LAUNCHERS:
        raise InputError("nccl_tests", launcher, f"expected one of {', '.join(LAUNCHERS)}")
    many = prod(level.count for level in cluster.levels[:-1]) > 1
    if launcher == "auto":
        launcher = "direct" if not many else "srun" if "SLURM_JOB_ID" in environment else "mpirun"
    if launcher == "direct" and many:
        raise InputError("nccl_tests", launcher, "expected mpirun or srun for a cluster of several nodes")
    if launcher != "direct" and shutil.which(launcher, path=environment.get("PATH")) is None:
        raise InputError("nccl_tests", launcher, f"expected {launcher} on PATH")
    return launcher


def command_of(
    program: str, group: NcclGroup, cluster: Cluster, launcher: str, arguments: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Command line and additional environment variables of one run."""
    extra = {"NCCL_TESTS_SPLIT": group.split} if group.split else {}
    if launcher == "direct":
        return [program, *arguments, "-g", str(prod(group.shape))], {}
    inside = cluster.levels[-1].count
    ranks = cluster.num_devices
    if launcher == "srun":
        start = ["srun", f"--ntasks={ranks}", f"--ntasks-per-node={inside}", "--export=ALL"]
    else:
        start = ["mpirun", "-np", str(ranks), "-N", str(inside)]
        start += [word for name in extra for word in ("-x", name)]
    return [*start, program, *arguments, "-g", "1"], extra


def calibrate_with_nccl_tests(
    cluster: Cluster,
    workdir: Path,
    *,
    launcher: str = "auto",
    sizes: tuple[int, int] = (MIN_BYTES, MAX_BYTES),
    iterations: int = 20,
    in_place: bool = False,
    method: str = "relative",
    timeout_s: float = 600.0,
    progress: Callable[[Progress], None] | None = None,
) -> Calibration:
    """Measure every collective over every group that nccl-tests can form.

    Args:
        workdir: folder for the output of each run, ``KIND-SHAPE.txt`` and, if the program writes it, ``.json``. It
            stays if a run fails, for ``import_nccl_log``.
        launcher: one of ``LAUNCHERS``.
        sizes: smallest and largest message in bytes; sizes between them grow in steps of 4x.
        iterations: timed iterations per size.
        in_place: fit the in-place times instead of the out-of-place ones.
        timeout_s: limit of each run, in seconds.

    Raises:
        InputError: a program or launcher is missing, or an argument is out of range.
        CalibrationError: a run failed, hung, found wrong values or ended early; names the measurement.
    """
    environment = dict(os.environ)
    launcher = choose_launcher(launcher, cluster, environment)
    if not 0 < sizes[0] <= sizes[1] // FACTOR**2:
        raise InputError("sizes", list(sizes), f"expected a largest size of at least {FACTOR**2} times the smallest")
    programs = {kind: find_program(tool, environment) for tool, kind in KINDS_BY_PROGRAM.items()}
    runs = [(kind, group) for group in groups_of(cluster, launcher) for kind in programs]
    arguments = ["-b", str(sizes[0]), "-e", str(sizes[1]), "-f", str(FACTOR), "-n", str(iterations)]
    with writing_to(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
    fits = []
    for at, (kind, group) in enumerate(runs):
        name = f"{kind} over {group.name}"
        if progress is not None:
            progress(Progress(at, len(runs), name))
        stem = workdir / f"{kind}-{group.name}"
        report = stem.with_suffix(".json")
        report.unlink(missing_ok=True)
        own = ["-J", str(report)] if _writes_json(programs[kind], environment) else []
        command, extra = command_of(programs[kind], group, cluster, launcher, [*arguments, *own])
        with writing_to(workdir):
            _run(command, {**environment, **extra}, stem.with_suffix(".txt"), name, timeout_s)
        # With MPI the report is written where rank 0 runs, possibly on another machine.
        log = report if report.exists() else stem.with_suffix(".txt")
        try:
            at_once = cluster.num_devices // prod(group.shape) if extra else 1
            fit = import_nccl_log(
                log, cluster, group.shape, kind=kind, in_place=in_place, method=method, num_groups=at_once
            )
            fits.append(fit)
        except CalibrationError as error:
            full = why_unwritable(workdir)  # a program that cannot write its report may still exit with 0
            why = f"{error}: cannot write {workdir}: {full}" if full else error
            raise CalibrationError(f"{name}: {why}; output: {workdir}") from None
    notes = (f"measured with nccl-tests, started by {launcher}, {'in' if in_place else 'out of'} place",)
    return Calibration(cluster, "nccl", method, tuple(pool_fits(fits) if method == "relative" else fits), notes=notes)


def _writes_json(program: str, environment: Mapping[str, str]) -> bool:
    """Whether this nccl-tests release has ``-J``, according to its usage text."""
    with suppress(OSError, subprocess.TimeoutExpired):
        usage = subprocess.run([program, "-h"], capture_output=True, text=True, env=dict(environment), timeout=30)
        return "--output_file" in usage.stdout + usage.stderr
    return False


def _run(command: Sequence[str], environment: dict[str, str], log: Path, name: str, timeout_s: float) -> None:
    """Run a command to its end with its output in ``log``; kills its whole process group."""
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CalibrationError(f"{name}: cannot start {command[0]} ({error})") from None
        reason = ""
        try:
            if process.wait(timeout_s) != 0:
                reason = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            reason = f"timed out after {timeout_s:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if reason:
        if full := why_unwritable(log.parent):
            reason += f": cannot write {log.parent}: {full}"
        tail = log.read_bytes()[-_TAIL:].decode(errors="replace").strip()
        raise CalibrationError(f"{name}: {reason}; output: {log}\nlast lines:\n{tail}")
