"""Calibrate a cluster: time collectives and ops over torch.distributed and fit the cost model's alpha and beta.

    from autosbp.cluster.spec import load_cluster
    from calibration import calibrate
    calibration = calibrate(load_cluster("local:2x2"))

``read_partial`` builds a calibration from the folder of an interrupted run; ``read_results`` and ``assemble`` build one
from result lines read elsewhere. ``calibrate_with_nccl_tests`` runs nccl-tests, and ``import_nccl_log`` reads its
output. Nothing here imports torch in the caller's process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from autosbp.calibration._alpha_beta_fit import fit_collective
from autosbp.calibration._fit_pooling import pool_fits
from autosbp.calibration._nccl_log import NcclLog
from autosbp.calibration._nccl_run import calibrate_with_nccl_tests
from autosbp.calibration._nccl_tests import import_nccl_log, read_nccl_log
from autosbp.calibration._rank_launch import Progress, describe_launch, mark_used, writing_to
from autosbp.calibration._rank_launch import launch as measure
from autosbp.calibration._report import report_html
from autosbp.calibration._request import BUDGET_S, DEFAULT_SIZES, Request
from autosbp.calibration._results import assemble, read_partial, read_results
from autosbp.calibration._run_folder import temporary_run_folder
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import METHODS, Calibration
from autosbp.errors import InputError
from autosbp.launch.local import MAX_LOCAL_RANKS, Launch, check_devices, run_ranks

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
    "pool_fits",
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
        backend: ``gloo`` or ``nccl``; by default the one for the cluster's device kind.
        sizes: message sizes in bytes, at least three; default: steps of 4x from 1 KB to 16 MB (Gloo) or 1 GB (NCCL). A
            size is rounded up to a whole number of float32 per rank.
        repeats: maximum repeats per size; fewer (at least three) if ``point_s`` seconds, or the size's share of
            ``budget_s``, do not suffice. The calibration's notes say how many points have fewer.
        op_keys: ops to time with all ranks running at once, in the format of ``autosbp.costmodel.op_benchmark``, the
            most important first.
        op_s: maximum seconds for each of forward and backward of one op.
        point_s: maximum seconds for one size of one collective.
        method: ``relative`` or ``ols``, see ``autosbp.calibration._alpha_beta_fit``.
        timeout_s: hard limit of the whole run, in seconds.
        budget_s: time box of the run in seconds, from the start of the ranks to their end. Sizes that do not fit are
            skipped, except the smallest three, and so are the cheapest ops; the calibration's notes list them.
        stall_s: the run fails if it measures nothing new for this many seconds.
        variants: also measure one group alone, and contiguous in addition to strided groups.
        launch: starts the ranks; by default on this machine over the loopback interface. ``partial(run_ranks,
            interface="eth0")`` uses another interface, ``EmulatedCluster.launch`` several nodes.
        max_ranks: maximum number of ranks that ``launch`` can start.
        queued: ranks may wait in a cluster's queue before they start; the time box begins when they do.
        resume: ``workdir`` may belong to this very run, started earlier, whose ranks ``launch`` finds again; its
            finished measurements are kept.
        take: mark the results as used, so that the next run of this request in ``workdir`` measures anew. With False
            they stay available to it, for a caller that may fail to store the calibration and removes the folder
            afterwards.
        cancelled: polled ten times a second; returning True ends the run.
        progress: called from this thread at the start of each measurement.
        workdir: folder for request, results and log. By default a temporary folder, removed after success. A run that
            ended early is continued by another run of the same request, started in the same way, in the same folder. A
            temporary folder can be continued for a day; after that, a later run removes it.

    Raises:
        InputError: an argument is out of range.
        CalibrationError: a rank failed, time ran out, the run was cancelled or a fit is impossible. The message names
            the measurement; earlier measurements stay in ``results.jsonl``.
    """
    if cluster.groups:
        raise InputError("cluster", cluster.name, "expected a cluster with identical devices, without groups")
    if method not in METHODS:
        raise InputError("method", method, f"expected one of {', '.join(METHODS)}")
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
        describe_launch(launch),
    )
    if op_keys and (backend == "nccl") != (cluster.device.kind == "cuda"):
        limit = f"its ranks do not compute on {cluster.device.name}; omit either the model's ops or this option"
        raise InputError("backend", backend, limit)
    if backend == "nccl" and cluster.num_devices <= max_ranks:  # otherwise ``measure`` refuses
        check_devices("backend", backend, launch, cluster.num_devices)
    with temporary_run_folder(request) if workdir is None else nullcontext(workdir) as folder:
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
        results = measure(
            request, folder, launch, progress, max_ranks=max_ranks, queued=queued, resume=resume, cancelled=cancelled
        )
        calibration = assemble(request, results, method)
        if workdir is not None and take:
            mark_used(folder)
    return calibration
