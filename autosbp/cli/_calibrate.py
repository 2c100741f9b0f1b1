"""``autosbp calibrate``: measure a cluster's collectives, and optionally a model's ops, into a calibration file."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._calibration_report import Report, show_calibration
from autosbp.cli._exit_codes import note
from autosbp.cli._files import ModelSizes, check_output, read_model, write_json
from autosbp.cli._launchers import LOOPBACK, Interface, Launcher, check_launcher, rank_launcher
from autosbp.cli._option_checks import refuse_unused
from autosbp.cli._options import (
    AsJson,
    Cluster,
    GlobalBatch,
    ImageSize,
    MicroBatch,
    ModelOption,
    Output,
    Precision,
    SeqLen,
    Server,
    Timeout,
)
from autosbp.errors import CalibrationError, InputError
from autosbp.utils.tempdirs import new_folder

if TYPE_CHECKING:
    from autosbp.calibration import Progress
    from autosbp.costmodel.calibration import Calibration, CollectiveFit

RESULTS, REQUEST = "results.jsonl", "request.json"
"""Files that ``calibration`` writes: the request before it measures, results as it measures."""
OTHER_RESULTS_GLOB = "results-*.jsonl"
"""Results of a different request that ``calibration`` found in the folder and set aside."""
Backend = Annotated[str | None, typer.Option("--backend", help="gloo or nccl; default: nccl for GPUs, gloo for CPUs.")]
Sizes = Annotated[
    str | None, typer.Option("--sizes", metavar="BYTES,...", help="Message sizes in bytes, at least three.")
]
Repeats = Annotated[
    int, typer.Option("--repeats", help="Maximum repeats per message size; fewer if the time budget runs out.")
]
Budget = Annotated[
    float,
    typer.Option(
        "--budget", metavar="S", help="Time budget of the whole run in seconds, including the start of the ranks."
    ),
]
Variants = Annotated[
    bool,
    typer.Option(
        "--variants/--no-variants", help="Also measure one group alone, and contiguous as well as strided groups."
    ),
]
Method = Annotated[
    str,
    typer.Option(
        "--method", help="Fitting method: relative (robust, relative errors) or ols (ordinary least squares)."
    ),
]
PointSeconds = Annotated[float, typer.Option("--point-s", help="Maximum seconds per message size of one collective.")]
OpSeconds = Annotated[
    float, typer.Option("--op-s", help="Maximum seconds for the forward, and for the backward, of one op.")
]
NcclLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--nccl-log",
        metavar="SHAPE=FILE",
        help="Import nccl-tests output for a group of this shape (count per cluster level), such as 2x8=log.txt. Repeatable.",
    ),
]
NcclTests = Annotated[
    str | None,
    typer.Option(
        "--nccl-tests", metavar="LAUNCHER", help="Measure with nccl-tests, started by: auto, direct, mpirun or srun."
    ),
]
_OP_OPTIONS = ("global_batch", "micro_batch", "precision", "seq_len", "image_size", "op_s")
_RANK_OPTIONS = ("model", *_OP_OPTIONS, "backend", "repeats", "budget", "variants", "point_s", "launcher", "interface")
_LOG_OPTIONS = ("nccl_log", "nccl_tests", "in_place")
_UNUSED_OPTIONS = {
    "--server": (*_LOG_OPTIONS, "backend", "sizes", "repeats", "method", "launcher", "interface", "timeout"),
    "--nccl-log": (*_RANK_OPTIONS, "nccl_tests", "sizes", "timeout"),
    "--nccl-tests": _RANK_OPTIONS,
    "ranks": ("in_place",),
}
"""Options that each source of a calibration does not read."""


@dataclass(frozen=True, slots=True)
class PartialResults:
    """Folders that hold the results until the calibration is stored.

    Attributes:
        beside: next to the output file.
        shared: folder that the ranks of a cluster share, if that is a different one.
    """

    beside: Path | None = None
    shared: Path | None = None

    def copy_to_output_folder(self) -> None:
        """Copy the ranks' results so far next to the output; if that folder cannot be written, print where they are."""
        try:
            _copy_results(self.shared, self.beside)
        except InputError as error:
            note(f"{error}; results are in {self.shared}")


InPlace = Annotated[bool, typer.Option("--in-place", help="Use the in-place times of nccl-tests.")]


def calibrate(
    cluster: Cluster,
    output: Output = None,
    model: ModelOption = None,
    global_batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    precision: Precision = "auto",
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

    With --model, also time the ops that plans of the model may run. If a run ends early, its measurements stay next to
    the output, in FILE.partial, and the same command continues from there.
    """
    from autosbp.search.plan_options import PlanOptions

    if output is None and not as_json:
        raise InputError("output", None, "required: -o FILE or --json")
    check_output(output)
    check_output(report)
    ways = {"--server": server, "--nccl-log": nccl_log, "--nccl-tests": nccl_tests}
    way = next((name for name, given in ways.items() if given is not None), "ranks")
    _refuse_unused(
        way, model=model, global_batch=global_batch, micro_batch=micro_batch, precision=precision, seq_len=seq_len,
        image_size=image_size, op_s=op_s, backend=backend, sizes=sizes, repeats=repeats, budget=budget, variants=variants,
        method=method, point_s=point_s, nccl_log=nccl_log, nccl_tests=nccl_tests, in_place=in_place, launcher=launcher,
        interface=interface, timeout=timeout,
    )  # fmt: skip
    options = PlanOptions(global_batch, micro_batch, precision=precision)
    kept = PartialResults()
    if server is not None:
        found = _measure_remotely(
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
        found, kept = _measure_locally(
            cluster, (model, ModelSizes(seq_len, image_size), options), (launcher, interface), output, effort
        )
    document = {**found.to_dict(), "calibration_id": found.calibration_id}
    if output is not None:
        _store(output, document, kept)
    show_calibration(found, report, as_json)


def _store(output: Path, document: dict[str, Any], kept: PartialResults) -> None:
    """Write the calibration, then remove the measurements it was fitted from; they are kept if the write fails."""
    try:
        write_json(output, document)
    except InputError:
        if kept.beside is not None:
            kept.copy_to_output_folder()
            note(
                f"measurements are kept in {kept.beside}; run the same command again to store them without "
                "measuring again"
            )
        raise
    note(f"wrote {output}")
    if kept.beside is not None:
        _remove_stored_results(kept.beside)


def _remove_stored_results(folder: Path) -> None:
    """Remove the results of the stored request; keep those of other requests."""
    others = sorted(folder.glob(OTHER_RESULTS_GLOB))
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path not in others:
            path.unlink()
    if others:
        note(f"keeping the measurements of another request in {folder}: {', '.join(path.name for path in others)}")
    elif folder.exists():
        folder.rmdir()


def _refuse_unused(way: str, **given: object) -> None:
    """Refuse options that this source of a calibration does not read."""
    needed = "requires --nccl-log or --nccl-tests"
    limit = needed if way == "ranks" else f"not used with {way}; omit it"
    refuse_unused(calibrate, limit, **{name: given[name] for name in _UNUSED_OPTIONS[way]})
    if given["model"] is None:
        refuse_unused(calibrate, "requires --model", **{name: given[name] for name in _OP_OPTIONS})


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if re.fullmatch(r"\d{1,18}(,\d{1,18})*", text, re.ASCII) is None:
        raise InputError("sizes", text, "expected comma-separated integers (bytes)")
    return [int(part) for part in text.split(",")]


def _measure_locally(
    cluster: str,
    ops_of: tuple[str | None, ModelSizes, Any],
    started_by: tuple[str, str],
    output: Path | None,
    effort: dict[str, Any],
) -> tuple[Calibration, PartialResults]:
    """Measure with ranks of the given launcher and interface.

    Args:
        ops_of: model whose ops are timed (None: no ops), its sizes and the plan options.
        started_by: launcher and network interface.

    Ranks of a cluster write to the folder that they share. Results of an earlier, interrupted run are read from the
    folder next to the output, and this run's partial results are copied back there.
    """
    from autosbp import api
    from autosbp.calibration import calibrate as measure

    check_launcher(started_by[0])
    there = api.load_cluster(cluster)
    model, sizes, options = ops_of
    keys = [] if model is None else api.op_keys(read_model(model, sizes), there, options)
    if started_by[0] == "emulated" and effort["backend"] == "nccl":
        raise InputError("backend", "nccl", "expected gloo: emulated nodes share the devices of one machine")
    workdir = None if output is None else output.with_name(output.name + ".partial")
    with rank_launcher(started_by[0], there, started_by[1]) as ways:
        shared = ways.get("workdir")
        kept = PartialResults(workdir, shared)
        ways = {name: value for name, value in ways.items() if name in ("launch", "max_ranks")}
        _copy_results(workdir, shared)
        try:
            found = measure(
                there, op_keys=keys, progress=_print_progress, workdir=shared or workdir, queued=bool(shared), take=False,
                **ways, **effort,
            )  # fmt: skip
        except InputError:
            if workdir is not None:
                with suppress(OSError):  # not empty if it holds the results of an earlier run
                    workdir.rmdir()
            raise
        except BaseException as error:
            kept.copy_to_output_folder()
            if workdir is not None and isinstance(error, (CalibrationError, KeyboardInterrupt)):
                note(f"run the same command to continue; run autosbp explain {workdir} to see the measurements so far")
            raise
    return found, kept


def _copy_results(source: Path | None, target: Path | None) -> None:
    """Copy partial results from one folder to another; do nothing if either is None or there are no results."""
    if source is None or target is None or not (source / RESULTS).exists():
        return
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in (RESULTS, REQUEST):
            shutil.copyfile(source / name, target / f"{name}.part")
            (target / f"{name}.part").replace(target / name)
    except OSError as error:
        limit = f"expected a writable folder ({error.strerror})"
        raise InputError("workdir", str(target), limit) from None


def _print_progress(step: Progress) -> None:
    note(f"[{step.done + 1}/{step.total}] {step.name[:100]}")


def _measure_remotely(
    server: str, cluster: str, model: str | None, sizes: ModelSizes, options: Any, effort: dict[str, Any]
) -> Calibration:
    from autosbp.cli._remote import open_client, post_cluster, post_model, wait
    from autosbp.costmodel.calibration import Calibration

    with open_client(server) as client:
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
    """Run the programs of nccl-tests; their output stays next to the output file, in FILE.nccl-tests."""
    from autosbp.calibration import calibrate_with_nccl_tests
    from autosbp.cluster.spec import load_cluster

    there = load_cluster(cluster)
    ways: dict[str, Any] = {"launcher": launcher, "method": method, "in_place": in_place, "timeout_s": timeout_s}
    if sizes is not None:
        ways["sizes"] = (min(sizes), max(sizes))
    if output is not None:
        folder = output.with_name(output.name + ".nccl-tests")
        return calibrate_with_nccl_tests(there, folder, progress=_print_progress, **ways)
    held, temporary = new_folder("autosbp-nccl-tests-")
    try:
        found = calibrate_with_nccl_tests(there, temporary, progress=_print_progress, **ways)
    except InputError:
        shutil.rmtree(temporary)
        raise
    else:
        shutil.rmtree(temporary)  # after a failure it stays for a day; the error message names it
    finally:
        os.close(held)
    return found


def _read_logs(cluster: str, logs: list[str], method: str, in_place: bool) -> Calibration:
    """Fit the logs of nccl-tests; each entry names its group shape as counts per cluster level, such as ``2x8``."""
    from autosbp.calibration import import_nccl_log, pool_fits, read_nccl_log
    from autosbp.cluster.spec import load_cluster
    from autosbp.costmodel.calibration import Calibration

    there = load_cluster(cluster)
    cut: list[str] = []
    fits: dict[tuple[str, tuple[int, ...]], CollectiveFit] = {}
    for entry in logs:
        shape, equals, path = entry.partition("=")
        if not equals or re.fullmatch(r"\d{1,7}(x\d{1,7})?", shape, re.ASCII) is None:
            raise InputError("nccl_log", entry, "expected SHAPE=FILE, such as 2x8=all_reduce.txt")
        counts = tuple(int(part) for part in shape.split("x"))
        fit = import_nccl_log(Path(path), there, counts, method=method, in_place=in_place)
        if (fit.kind, counts) in fits:
            raise InputError("nccl_log", entry, f"duplicate log of {fit.kind} over {shape}: expected one")
        fits[fit.kind, counts] = fit
        if not read_nccl_log(Path(path), fit.kind).ends:
            cut.append(f"{path} has no summary: it may be incomplete")
    notes = [
        f"{fit.kind} over {'x'.join(map(str, shape))}: measured with {fit.num_groups} of the groups running; contention "
        "between all groups is predicted from it"
        for (_, shape), fit in fits.items()
        if fit.num_groups is not None
    ]
    found = pool_fits(list(fits.values())) if method == "relative" else fits.values()
    return Calibration(there, "nccl", method, tuple(found), notes=("fitted from nccl-tests logs", *notes, *cut))
