"""Documents that the tests post, and waiting for jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Point

CLUSTER = "local:2x2"
ZOO = "mlp"
OPTIONS = {"global_batch": 8, "time_limit_s": 5.0}


def graph() -> dict[str, Any]:
    """A two-layer perceptron with a cross-entropy."""
    document: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "mlp.json").read_text())
    return document


def cluster(**changes: Any) -> dict[str, Any]:
    return {**load_cluster(CLUSTER).to_dict(), **changes}


def calibration(cluster: str = CLUSTER) -> dict[str, Any]:
    there = load_cluster(cluster)
    shapes = ((1, 2), (2, 1), (2, 2)) if len(there.levels) > 1 else ((there.num_devices,),)
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
    points = (Point(1024, 1e-4, 1e-5, 5), Point(1048576, 1e-3, 1e-4, 5))
    fits = tuple(CollectiveFit(kind, shape, 1e-4, 1e-9, 0.99, 0.01, 0.1, points) for kind in kinds for shape in shapes)
    return Calibration(there, "gloo", "relative", fits).to_dict()


def wait(client: Any, job_id: str, states: tuple[str, ...] = ("succeeded", "failed", "cancelled")) -> dict[str, Any]:
    """Poll a job until it is in one of ``states``."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").json()
        if job["state"] in states:
            return job
        time.sleep(0.05)
    raise AssertionError(f"job {job_id} is still {job}")


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll until something holds."""
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
