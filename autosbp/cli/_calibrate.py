"""``autosbp calibrate``: measure a cluster's collectives, and the ops of a model, into a calibration file."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._files import ModelSizes, check_output, read_model, write_json
from autosbp.cli._launchers import LOOPBACK, Interface, Launcher, check_launcher, ranks_of
from autosbp.cli._options import (
    AsJson,
    Cluster,
    GlobalBatch,
    ImageSize,
    MicroBatch,
    ModelOption,
    Output,
    SeqLen,
    Server,
    Timeout,
)
from autosbp.cli._run import note
from autosbp.cli._show_calibration import Report, show_calibration
from autosbp.cli._unused import refuse_unused
from autosbp.errors import CalibrationError, InputError
from autosbp.scratch import new_folder

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration, CollectiveFit
    from calibration import Progress

RESULTS, REQUEST = "results.jsonl", "request.json"
"""What ``calibration`` writes as it measures, and before."""
OTHERS = "results-*.jsonl"
"""Results of other requests that it found there."""
Backend = Annotated[str | None, typer.Option("--backend", help="gloo or nccl; by default what the devices use.")]
Sizes = Annotated[str | None, typer.Option("--sizes", metavar="BYTES,...", help="Message sizes, at least three.")]
Repeats = Annotated[int, typer.Option("--repeats", help="Most repeats of one size; fewer where time is up.")]
Budget = Annotated[float, typer.Option("--budget", metavar="S", help="Seconds for the whole run, its start included.")]
Variants = Annotated[
    bool,
    typer.Option("--variants/--no-variants", help="Also one group alone, and contiguous beside strided groups."),
]
Method = Annotated[str, typer.Option("--method", help="relative or ols (plain least squares).")]
PointSeconds = Annotated[float, typer.Option("--point-s", help="Most seconds of one size of one collective.")]
OpSeconds = Annotated[float, typer.Option("--op-s", help="Most seconds of one direction of one op.")]
NcclLogs = Annotated[
    list[str] | None,
    typer.Option("--nccl-log", metavar="SHAPE=FILE", help="Output of nccl-tests over a group, such as 2x8=log.txt."),
]
NcclTests = Annotated[
    str | None,
    typer.Option("--nccl-tests", metavar="LAUNCHER", help="Run nccl-tests: auto, direct, mpirun or srun."),
]
_OF_OPS = ("global_batch", "micro_batch", "seq_len", "image_size", "op_s")
_OF_RANKS = ("model", *_OF_OPS, "backend", "repeats", "budget", "variants", "point_s", "launcher", "interface")
_OF_LOGS = ("nccl_log", "nccl_tests", "in_place")
_UNUSED = {
    "--server": (*_OF_LOGS, "backend", "sizes", "repeats", "method", "launcher", "interface", "timeout"),
    "--nccl-log": (*_OF_RANKS, "nccl_tests", "sizes", "timeout"),
    "--nccl-tests": _OF_RANKS,
    "ranks": ("in_place",),
}
"""Options that each way to a calibration does not read."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Where results are until the calibration is stored: in a folder beside the output, and in one that the ranks of a
    cluster share, if that is another."""

    beside: Path | None = None
    shared: Path | None = None

    def bring_back(self) -> None:
        """What the ranks have found so far, beside the output; where that cannot be written, a note says where it is."""
        try:
            _copy_results(self.shared, self.beside)
        except InputError as error:
            note(f"{error}; the results are in {self.shared}")


InPlace = Annotated[bool, typer.Option("--in-place", help="Of nccl-tests, take the in-place times.")]


def calibrate(
    cluster: Cluster,
    output: Output = None,
    model: ModelOption = None,
    global_batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    backend: Backend = None,
    sizes: Sizes = None,
    repeats: Repeats = 30,
    budget: Budget = 165.0,
    variants: Variants = True,
    method: Method = "relative",
    point_s: PointSeconds = 1.0,
    op_s: OpSeconds = 0.25,
    nccl_log: NcclLogs = None,
    nccl_tests: NcclTests = None,
    in_place: InPlace = False,
    report: Report = None,
    launcher: Launcher = "local",
    interface: Interface = LOOPBACK,
    timeout: Timeout = 600.0,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Measure a cluster with one rank per device of this machine, or read the logs of nccl-tests.

    With --model, the ops that its plans may run are timed, too. What a run that ended early has measured is kept beside
    the output, in FILE.partial, and the same command goes on from there.
    """
    from autosbp.search.plan_options import PlanOptions

    if output is None and not as_json:
        raise InputError("output", None, "-o FILE is expected, or --json")
    check_output(output)
    check_output(report)
    ways = {"--server": server, "--nccl-log": nccl_log, "--nccl-tests": nccl_tests}
    way = next((name for name, given in ways.items() if given is not None), "ranks")
    _refuse_unused(
        way, model=model, global_batch=global_batch, micro_batch=micro_batch, seq_len=seq_len, image_size=image_size,
        op_s=op_s, backend=backend, sizes=sizes, repeats=repeats, budget=budget, variants=variants, method=method,
        point_s=point_s, nccl_log=nccl_log, nccl_tests=nccl_tests, in_place=in_place, launcher=launcher,
        interface=interface, timeout=timeout,
    )  # fmt: skip
    options = PlanOptions(global_batch, micro_batch)
    kept = Kept()
    if server is not None:
        found = _measure_there(
            server,
            cluster,
            model,
            ModelSizes(seq_len, image_size),
            options,
            {"point_s": point_s, "op_s": op_s, "budget_s": budget, "variants": variants},
        )
    elif nccl_log:
        found = _read_logs(cluster, nccl_log, method, in_place)
    elif nccl_tests is not None:
        found = _run_nccl_tests(cluster, nccl_tests, output, _sizes(sizes), method, in_place, timeout)
    else:
        effort = {"repeats": repeats, "method": method, "point_s": point_s, "op_s": op_s, "timeout_s": timeout}
        effort.update(backend=backend, sizes=_sizes(sizes), budget_s=budget, variants=variants)
        found, kept = _measure_here(
            cluster, (model, ModelSizes(seq_len, image_size), options), (launcher, interface), output, effort
        )
    document = {**found.to_dict(), "calibration_id": found.calibration_id}
    if output is not None:
        _store(output, document, kept)
    show_calibration(found, report, as_json)


def _store(output: Path, document: dict[str, Any], kept: Kept) -> None:
    """Write the calibration, then remove what it was made of: that is there until the calibration is."""
    try:
        write_json(output, document)
    except InputError:
        if kept.beside is not None:
            kept.bring_back()
            note(f"the same command stores what was measured, which is kept in {kept.beside}, without measuring again")
        raise
    note(f"wrote {output}")
    if kept.beside is not None:
        _clear(kept.beside)


def _clear(folder: Path) -> None:
    """Remove the results of a request that is stored, but none of another one."""
    others = sorted(folder.glob(OTHERS))
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path not in others:
            path.unlink()
    if others:
        note(f"what another request has measured stays in {folder}: {', '.join(path.name for path in others)}")
    elif folder.exists():
        folder.rmdir()


def _refuse_unused(way: str, **given: object) -> None:
    """What a way to a calibration does not read."""
    needed = "--nccl-log or --nccl-tests is expected with it"
    limit = needed if way == "ranks" else f"{way} does without it: leave it out"
    refuse_unused(calibrate, limit, **{name: given[name] for name in _UNUSED[way]})
    if given["model"] is None:
        refuse_unused(calibrate, "--model is expected with it", **{name: given[name] for name in _OF_OPS})


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if re.fullmatch(r"\d{1,18}(,\d{1,18})*", text, re.ASCII) is None:
        raise InputError("sizes", text, "whole numbers of bytes with commas between them are expected")
    return [int(part) for part in text.split(",")]


def _measure_here(
    cluster: str,
    ops_of: tuple[str | None, ModelSizes, Any],
    started_by: tuple[str, str],
    output: Path | None,
    effort: dict[str, Any],
) -> tuple[Calibration, Kept]:
    """Measure with ranks of the given launcher and interface; ``ops_of`` is a model, its sequence length, options. Ranks of a
    cluster write to the folder that it shares; what a run that ended early has found comes from and goes beside the output.
    """
    from autosbp import api
    from calibration import calibrate as measure

    check_launcher(started_by[0])
    there = api.load_cluster(cluster)
    model, sizes, options = ops_of
    keys = [] if model is None else api.op_keys(read_model(model, sizes), there, options)
    if started_by[0] == "emulated" and effort["backend"] == "nccl":
        raise InputError("backend", "nccl", "gloo is expected on emulated nodes, which have one machine's devices")
    workdir = None if output is None else output.with_name(output.name + ".partial")
    with ranks_of(started_by[0], there, started_by[1]) as ways:
        shared = ways.get("workdir")
        kept = Kept(workdir, shared)
        ways = {name: value for name, value in ways.items() if name in ("launch", "max_ranks")}
        _copy_results(workdir, shared)
        try:
            found = measure(
                there, op_keys=keys, progress=_follow, workdir=shared or workdir, queued=bool(shared), take=False,
                **ways, **effort,
            )  # fmt: skip
        except InputError:
            if workdir is not None:
                with suppress(OSError):  # it is kept where it holds what an earlier run has found
                    workdir.rmdir()
            raise
        except BaseException as error:
            kept.bring_back()
            if workdir is not None and isinstance(error, (CalibrationError, KeyboardInterrupt)):
                note(f"the same command continues this run; autosbp explain {workdir} shows what it has measured")
            raise
    return found, kept


def _copy_results(source: Path | None, target: Path | None) -> None:
    """What a run has found so far, from one folder to another; nothing where there is not one of each."""
    if source is None or target is None or not (source / RESULTS).exists():
        return
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in (RESULTS, REQUEST):
            shutil.copyfile(source / name, target / f"{name}.part")
            (target / f"{name}.part").replace(target / name)
    except OSError as error:
        limit = f"a folder that can be written is expected ({error.strerror})"
        raise InputError("workdir", str(target), limit) from None


def _follow(step: Progress) -> None:
    note(f"[{step.done + 1}/{step.total}] {step.name[:100]}")


def _measure_there(
    server: str, cluster: str, model: str | None, sizes: ModelSizes, options: Any, effort: dict[str, Any]
) -> Calibration:
    from autosbp.cli._server import connected, post_cluster, post_model, wait
    from autosbp.costmodel.calibration import Calibration

    with connected(server) as client:
        cluster_id = post_cluster(client, cluster)
        models = [] if model is None else [post_model(client, model, sizes)]
        asked = (cluster_id, models, options.to_dict())
        result = wait(client, lambda key: client.calibrate(*asked, **effort, idempotency_key=key))
        return Calibration.from_dict(client.get_calibration(result["calibration_id"]))


def _run_nccl_tests(
    cluster: str,
    launcher: str,
    output: Path | None,
    sizes: list[int] | None,
    method: str,
    in_place: bool,
    timeout_s: float,
) -> Calibration:
    """Runs of nccl-tests' programs; what they print stays beside the output, in FILE.nccl-tests."""
    from autosbp.cluster import load_cluster
    from calibration import calibrate_with_nccl_tests

    there = load_cluster(cluster)
    ways: dict[str, Any] = {"launcher": launcher, "method": method, "in_place": in_place, "timeout_s": timeout_s}
    if sizes is not None:
        ways["sizes"] = (min(sizes), max(sizes))
    if output is not None:
        folder = output.with_name(output.name + ".nccl-tests")
        return calibrate_with_nccl_tests(there, folder, progress=_follow, **ways)
    held, temporary = new_folder("autosbp-nccl-tests-")
    try:
        found = calibrate_with_nccl_tests(there, temporary, progress=_follow, **ways)
    except InputError:
        shutil.rmtree(temporary)
        raise
    else:
        shutil.rmtree(temporary)  # after a failure it stays for a day, as the error says where
    finally:
        os.close(held)
    return found


def _read_logs(cluster: str, logs: list[str], method: str, in_place: bool) -> Calibration:
    """Fits of nccl-tests' logs; each names the group that it was run over, in units of each cluster level."""
    from autosbp.cluster import load_cluster
    from autosbp.costmodel.calibration import Calibration
    from calibration import import_nccl_log, read_nccl_log, share_fits

    there = load_cluster(cluster)
    cut: list[str] = []
    fits: dict[tuple[str, tuple[int, ...]], CollectiveFit] = {}
    for entry in logs:
        shape, equals, path = entry.partition("=")
        if not equals or re.fullmatch(r"\d{1,7}(x\d{1,7})?", shape, re.ASCII) is None:
            raise InputError("nccl_log", entry, "SHAPE=FILE is expected, such as 2x8=all_reduce.txt")
        counts = tuple(int(part) for part in shape.split("x"))
        fit = import_nccl_log(Path(path), there, counts, method=method, in_place=in_place)
        if (fit.kind, counts) in fits:
            raise InputError("nccl_log", entry, f"one log of {fit.kind} over {shape} is expected, not two")
        fits[fit.kind, counts] = fit
        if not read_nccl_log(Path(path), fit.kind).ends:
            cut.append(f"{path} has no summary: whether it has all sizes is not known")
    notes = [f"{fit.kind} over {'x'.join(map(str, shape))}: {fit.num_groups} of the groups alone; all at once, which share "
             "links, are predicted from it" for (_, shape), fit in fits.items() if fit.num_groups is not None]  # fmt: skip
    found = share_fits(list(fits.values())) if method == "relative" else fits.values()
    return Calibration(there, "nccl", method, tuple(found), notes=("fitted from logs of nccl-tests", *notes, *cut))
