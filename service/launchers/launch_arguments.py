"""Launches the ranks of a trial or calibration on the configured cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autosbp.cluster.spec import Cluster
from autosbp.service.launchers._base import MAX_NODES, MAX_RANKS_PER_NODE
from autosbp.service.launchers._from_settings import make_launcher
from autosbp.service.launchers._rank_launch import LaunchedRanks

_LOOPBACK = "lo"


def launch_arguments(inputs: Mapping[str, Any], cluster: Cluster, told: Callable[[str], None]) -> dict[str, Any]:
    """Arguments of ``run_trial`` and ``calibrate`` that start an attempt's ranks on a cluster, or find them again.

    Each attempt has its own folder on the shared file system, because ranks of another attempt may still be running.

    Args:
        inputs: inputs of the task, with ``launching`` and ``key``.
        cluster: whose device count per node sets the ranks per node.
        told: called with a description of the cluster job's state.
    """
    options, key = inputs["launching"], inputs["key"]
    here = options["name"] == "local"
    ranks = LaunchedRanks(
        make_launcher(options),
        key,
        None if here else cluster.devices_per_node,
        options["queue_timeout_s"],
        uses_gpus=cluster.device.kind == "cuda",
        interface=options["interface"] or (_LOOPBACK if here else None),
        told=told,
        sandbox=options.get("sandbox", {}),  # jobs queued by earlier releases have no sandbox
    )
    return {
        "launch": ranks,
        "workdir": Path(options["root"]) / key / "work",
        "max_ranks": MAX_RANKS_PER_NODE * (1 if here else MAX_NODES),
        "resume": True,
    }
