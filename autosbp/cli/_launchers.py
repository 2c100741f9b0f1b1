"""How ``calibrate`` and ``trial`` start ranks: ``--launcher`` and ``--interface``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._exit_codes import note
from autosbp.errors import InputError

if TYPE_CHECKING:
    from autosbp.cluster.spec import Cluster
    from autosbp.launch.local import Launch

LAUNCHERS = ("local", "emulated")
CLUSTER_LAUNCHERS = ("slurm", "ray", "kubernetes")
LOOPBACK = "lo"

Launcher = Annotated[
    str,
    typer.Option(
        "--launcher",
        help="local: one rank per device, all on this machine. emulated: network namespaces as nodes, with the "
        "link speeds of the cluster file (root only), such as --cluster emulated:2x2. slurm, ray, kubernetes: "
        "a job on that cluster, configured by the AUTOSBP_* settings in docs/how-to/launchers.md.",
    ),
]
Interface = Annotated[
    str, typer.Option("--interface", metavar="NAME", help="Network interface for communication between local ranks.")
]


def check_launcher(name: str) -> None:
    """Raise ``InputError`` for an unknown launcher."""
    if name not in (*LAUNCHERS, *CLUSTER_LAUNCHERS):
        raise InputError("launcher", name, f"expected one of {', '.join((*LAUNCHERS, *CLUSTER_LAUNCHERS))}")


@contextmanager
def rank_launcher(name: str, cluster: Cluster, interface: str = LOOPBACK) -> Iterator[dict[str, Any]]:
    """Keyword arguments for ``run_trial`` that start the ranks of ``cluster`` with the named launcher.

    A job on a real cluster is cancelled if the block raises, for example when it is interrupted.
    """
    check_launcher(name)
    if name not in CLUSTER_LAUNCHERS:
        with launcher_of(name, cluster, interface) as launch:
            yield {"launch": launch}
        return
    from autosbp.service.launchers.launch_arguments import launch_arguments
    from autosbp.service.settings import Settings

    if interface != LOOPBACK:
        raise InputError(
            "interface", interface, (f"not used with --launcher {name}; set AUTOSBP_LAUNCHER_INTERFACE instead")
        )
    key = f"cli-{secrets.token_hex(8)}-1"
    asked = Settings.model_validate({**Settings().model_dump(), "launcher": name}).launching
    ways = launch_arguments({"launching": asked, "key": key}, cluster, note)
    try:
        yield ways
    except BaseException:
        ways["launch"].launcher.cancel(key)
        raise


@contextmanager
def launcher_of(name: str, cluster: Cluster, interface: str = LOOPBACK) -> Iterator[Launch]:
    """Launch function for the ranks of ``cluster`` on this machine; emulated nodes exist until the block ends."""
    from autosbp.launch.local import check_interface, run_ranks

    if name == "local":
        check_interface(interface)
        yield partial(run_ranks, interface=interface)
        return
    from autosbp.testing.emulated import EmulatedCluster

    if interface != LOOPBACK:
        raise InputError("interface", interface, "only available with --launcher local")
    with EmulatedCluster.of(cluster) as nodes:
        yield nodes.launch
