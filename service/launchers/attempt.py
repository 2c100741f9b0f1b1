"""The ranks of a trial or a calibration on the cluster of the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autosbp.cluster import Cluster
from service.launchers._base import MAX_NODES, MAX_RANKS_PER_NODE
from service.launchers._choice import launcher_of
from service.launchers._ranks import LaunchedRanks

_LOOPBACK = "lo"


def launched(inputs: Mapping[str, Any], cluster: Cluster, told: Callable[[str], None]) -> dict[str, Any]:
    """Arguments of ``run_trial`` and ``calibrate`` by which the ranks of an attempt start on a cluster, or are found there
    again. Each attempt has a folder of its own, under that which the nodes share: ranks of another may still be at work."""
    options, key = inputs["launching"], inputs["key"]
    here = options["name"] == "local"
    ranks = LaunchedRanks(
        launcher_of(options),
        key,
        None if here else cluster.devices_per_node,
        options["queue_timeout_s"],
        uses_gpus=cluster.device.kind == "cuda",
        interface=options["interface"] or (_LOOPBACK if here else None),
        told=told,
    )
    return {
        "launch": ranks,
        "workdir": Path(options["root"]) / key / "work",
        "max_ranks": MAX_RANKS_PER_NODE * (1 if here else MAX_NODES),
        "resume": True,
    }
