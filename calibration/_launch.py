"""Starts the ranks of a calibration on this machine, follows their measurements, and keeps partial results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autosbp.errors import CalibrationError, InputError
from autosbp.jsonio import canonical
from autosbp.torchrun import MAX_LOCAL_RANKS, run_ranks
from calibration._request import Request, measurement_names
from calibration._results import Results, read_results


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` measurements are made and ``name`` is running."""

    done: int
    total: int
    name: str


def launch(request: Request, workdir: Path, progress: Callable[[Progress], None] | None = None) -> Results:
    """Run ``request`` with one rank per device of its cluster, all on this machine, and return the results.

    ``workdir`` gets ``request.json``, ``results.jsonl`` (a line per measurement, kept whatever happens) and
    ``ranks.log``. Only the loopback interface is used. ``OMP_NUM_THREADS`` is 1 unless the environment sets it. Raises
    ``CalibrationError`` with the name of the measurement and the end of the log when a rank fails or
    ``request.timeout_s`` passes, and ``InputError`` above ``MAX_LOCAL_RANKS`` ranks. An exception of ``progress`` ends
    the run. No process is left behind.
    """
    if request.cluster.num_devices > MAX_LOCAL_RANKS:
        raise InputError("cluster", request.cluster.name, f"at most {MAX_LOCAL_RANKS} ranks can start on one machine")
    results_path = workdir / "results.jsonl"
    (workdir / "request.json").write_bytes(canonical(request.to_dict()))
    results_path.unlink(missing_ok=True)
    total = len(measurement_names(request))
    shown = -1

    def follow() -> bool:
        nonlocal shown
        begun = read_results(results_path).begun if progress else ()
        if progress and len(begun) - 1 > shown:
            shown = len(begun) - 1
            progress(Progress(shown, total, begun[-1]))
        return True

    outcome = run_ranks(
        "calibration._worker",
        [str(workdir / "request.json"), str(results_path)],
        request.cluster.num_devices,
        workdir / "ranks.log",
        timeout_s=request.timeout_s,
        poll=follow,
    )
    if outcome.reason:
        name = read_results(results_path).current
        raise CalibrationError(
            f"{name}: {outcome.reason}; results so far are in {results_path}\n"
            f"end of the ranks' log:\n{outcome.log_tail}"
        )
    return read_results(results_path)
