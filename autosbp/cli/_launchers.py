"""How ``calibrate`` and ``trial`` start ranks: ``--launcher``, ``--interface``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._run import note
from autosbp.errors import InputError

if TYPE_CHECKING:
    from autosbp.cluster import Cluster
    from autosbp.torchrun import Launch

LAUNCHERS = ("local", "emulated")
CLUSTERS = ("slurm", "ray", "kubernetes")
LOOPBACK = "lo"

Launcher = Annotated[
    str,
    typer.Option(
        "--launcher",
        help="local: one rank per device, all on this machine. emulated: nodes are network namespaces with links as "
        "slow as the cluster says (root only), such as --cluster emulated:2x2. slurm, ray, kubernetes: a job on that "
        "cluster, as the AUTOSBP_* settings of docs/launchers.md say.",
    ),
]
Interface = Annotated[
    str, typer.Option("--interface", metavar="NAME", help="Network interface that local ranks talk over.")
]


def check_launcher(name: str) -> None:
    """Raise ``InputError`` for a launcher that does not exist."""
    if name not in (*LAUNCHERS, *CLUSTERS):
        raise InputError("launcher", name, f"one of {', '.join((*LAUNCHERS, *CLUSTERS))} is expected")


@contextmanager
def ranks_of(name: str, cluster: Cluster, interface: str = LOOPBACK) -> Iterator[dict[str, Any]]:
    """Arguments of ``run_trial`` by which any launcher starts the ranks of ``cluster``. A job on a real cluster is cancelled
    when the block is left by an exception, such as an interruption."""
    check_launcher(name)
    if name not in CLUSTERS:
        with launcher_of(name, cluster, interface) as launch:
            yield {"launch": launch}
        return
    from service.launchers.attempt import launched
    from service.settings import Settings

    if interface != LOOPBACK:
        raise InputError("interface", interface, f"AUTOSBP_LAUNCHER_INTERFACE is expected for --launcher {name}")
    key = f"cli-{secrets.token_hex(8)}-1"
    asked = Settings.model_validate({**Settings().model_dump(), "launcher": name}).launching
    ways = launched({"launching": asked, "key": key}, cluster, note)
    try:
        yield ways
    except BaseException:
        ways["launch"].launcher.cancel(key)
        raise


@contextmanager
def launcher_of(name: str, cluster: Cluster, interface: str = LOOPBACK) -> Iterator[Launch]:
    """What starts the ranks of ``cluster`` here; the nodes of an emulated one are there until the block is left."""
    from autosbp.torchrun import check_interface, run_ranks

    if name == "local":
        check_interface(interface)
        yield partial(run_ranks, interface=interface)
        return
    from autosbp.testing.emulated import EmulatedCluster

    if interface != LOOPBACK:
        raise InputError("interface", interface, "--launcher local is expected; emulated nodes have their own")
    with EmulatedCluster.of(cluster) as nodes:
        yield nodes.launch
