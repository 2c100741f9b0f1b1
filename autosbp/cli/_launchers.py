"""How ``calibrate`` and ``trial`` start ranks: ``--launcher``, ``--interface``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from autosbp.errors import InputError

if TYPE_CHECKING:
    from autosbp.cluster import Cluster
    from autosbp.torchrun import Launch

LAUNCHERS = ("local", "emulated")
LOOPBACK = "lo"

Launcher = Annotated[
    str,
    typer.Option(
        "--launcher",
        help="local: one rank per device, all on this machine. emulated: nodes are network namespaces with links as "
        "slow as the cluster says (root only), such as --cluster emulated:2x2.",
    ),
]
Interface = Annotated[
    str, typer.Option("--interface", metavar="NAME", help="Network interface that local ranks talk over.")
]


def check_launcher(name: str) -> None:
    """Raise ``InputError`` for a launcher that does not exist."""
    if name not in LAUNCHERS:
        raise InputError("launcher", name, f"one of {', '.join(LAUNCHERS)} is expected")


@contextmanager
def launcher_of(name: str, cluster: Cluster, interface: str = LOOPBACK) -> Iterator[Launch]:
    """What starts the ranks of ``cluster``; the nodes of an emulated one are there until the block is left."""
    from autosbp.torchrun import check_interface, run_ranks

    check_launcher(name)
    if name == "local":
        check_interface(interface)
        yield partial(run_ranks, interface=interface)
        return
    from autosbp.testing.emulated import EmulatedCluster

    if interface != LOOPBACK:
        raise InputError("interface", interface, "--launcher local is expected; emulated nodes have their own")
    with EmulatedCluster.of(cluster) as nodes:
        yield nodes.launch
