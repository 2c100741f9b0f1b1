"""Measures a cluster: real collectives and ops over torch.distributed, fitted to the cost model's alpha and beta.

    from autosbp.cluster import load_cluster
    from calibration import calibrate
    calibration = calibrate(load_cluster("local:2x2"))

``read_partial`` makes a calibration of what a run that ended early has left in its folder, ``read_results`` and ``assemble``
one of such lines wherever they are; ``calibrate_with_nccl_tests`` runs nccl-tests, ``import_nccl_log`` reads what it
printed. Nothing here imports torch in the caller's process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import METHODS, Calibration
from autosbp.errors import InputError
from autosbp.torchrun import MAX_LOCAL_RANKS, Launch, check_devices, run_ranks
from calibration._fit import fit_collective
from calibration._launch import Progress, mark_taken, way_of, written
from calibration._launch import launch as measure
from calibration._nccl_log import NcclLog
from calibration._nccl_run import calibrate_with_nccl_tests
from calibration._nccl_tests import import_nccl_log, read_nccl_log
from calibration._pooling import share_fits
from calibration._report import report_html
from calibration._request import BUDGET_S, DEFAULT_SIZES, Request
from calibration._results import assemble, read_partial, read_results
from calibration._scratch import scratch

__all__ = [
    "METHODS",
    "NcclLog",
    "Progress",
    "Request",
    "assemble",
    "calibrate",
    "calibrate_with_nccl_tests",
    "fit_collective",
    "import_nccl_log",
    "read_nccl_log",
    "read_partial",
    "read_results",
    "report_html",
    "share_fits",
]


def calibrate(
    cluster: Cluster,
    *,
    backend: str | None = None,
    sizes: Sequence[int] | None = None,
    repeats: int = 30,
    op_keys: Sequence[str] = (),
    method: str = "relative",
    timeout_s: float = 600.0,
    progress: Callable[[Progress], None] | None = None,
    workdir: Path | None = None,
    point_s: float = 1.0,
    op_s: float = 0.25,
    budget_s: float = BUDGET_S,
    stall_s: float = 60.0,
    variants: bool = True,
    launch: Launch = run_ranks,
    max_ranks: int = MAX_LOCAL_RANKS,
    queued: bool = False,
    resume: bool = False,
    take: bool = True,
    cancelled: Callable[[], bool] | None = None,
) -> Calibration:
    """Measure every collective over every group shape of ``cluster`` with one rank per device.

    Args:
        backend: ``gloo`` or ``nccl``; by default what the cluster's device kind uses.
        sizes: message sizes in bytes, at least three; in steps of 4 from 1 KB to 16 MB (Gloo) or 1 GB (NCCL) by default.
            A size is rounded up to a whole number of float32 per rank.
        repeats: most repeats per size; fewer (three at least) where ``point_s`` seconds, or its part of ``budget_s``, do
            not hold as many. The calibration's notes say how many points have fewer.
        op_keys: ops to time with all ranks running at once, as ``autosbp.costmodel.op_bench`` reads them, those
            first that tell most; ``op_s`` seconds, at most, for each of forward and backward.
        method: ``relative`` or ``ols``, see ``calibration._fit``.
        timeout_s: limit of the whole run.
        budget_s: time box of the run, from the start of the ranks to their end. Sizes that it does not hold are left
            out, but for the smallest three, and so are the lightest ops; the calibration's notes tell.
        stall_s: a run that measures nothing new for so long hangs, and is ended.
        variants: also measure one group alone, and contiguous beside strided groups.
        launch: how ranks are started: on this machine over the loopback interface, by default.
            ``partial(run_ranks, interface="eth0")`` takes another one, ``EmulatedCluster.launch`` several nodes.
        max_ranks: that ``launch`` can start.
        queued: ranks may wait for a cluster before they start, and the time box begins with them.
        resume: ``workdir`` may be that of the very same run, begun before, whose ranks ``launch`` finds again: what they
            have measured is not measured again.
        take: another run of the same request in ``workdir`` measures anew. False leaves it the results of this one, for
            a caller that may fail to store the calibration; what then removes the folder takes them.
        cancelled: asked ten times a second; True ends the run.
        progress: called from this thread as each measurement starts.
        workdir: where request, results and log are kept. By default a temporary folder, removed after success. A run
            that ended early is continued by another one of the same request, started in the same way, in the same
            folder; a temporary one is found again for a day, and then removed by a later run.

    Raises:
        InputError: an argument is out of range.
        CalibrationError: a rank failed, the time ran out, the run was cancelled or a fit is impossible; names the
            measurement, and what was measured until then stays in ``results.jsonl``.
    """
    if cluster.groups:
        raise InputError("cluster", cluster.name, "devices that are alike are expected; it has groups of others")
    if method not in METHODS:
        raise InputError("method", method, f"one of {', '.join(METHODS)} is expected")
    backend = backend or ("nccl" if cluster.device.kind == "cuda" else "gloo")
    request = Request(
        cluster,
        backend,
        tuple(DEFAULT_SIZES.get(backend, ()) if sizes is None else sizes),
        repeats,
        point_s,
        tuple(op_keys),
        op_s,
        timeout_s,
        budget_s,
        stall_s,
        variants,
        way_of(launch),
    )
    if op_keys and (backend == "nccl") != (cluster.device.kind == "cuda"):
        limit = f"its ranks compute on other devices than {cluster.device.name}: leave the model's ops out, or it"
        raise InputError("backend", backend, limit)
    if backend == "nccl" and cluster.num_devices <= max_ranks:  # more are refused anyway
        check_devices("backend", backend, launch, cluster.num_devices)
    with scratch(request) if workdir is None else nullcontext(workdir) as folder:
        with written(folder):
            folder.mkdir(parents=True, exist_ok=True)
        results = measure(
            request, folder, launch, progress, max_ranks=max_ranks, queued=queued, resume=resume, cancelled=cancelled
        )
        calibration = assemble(request, results, method)
        if workdir is not None and take:
            mark_taken(folder)
    return calibration
