"""Nodes as network namespaces, each joined by a link of limited rate to a bridge in a namespace of its own.

Nothing is made in the namespace of the caller: no bridge, no link, no address, no route. So two clusters may use the
same addresses, and to remove the namespaces is to remove everything.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from functools import cache

from autosbp.errors import AutosbpError, UnsupportedError
from autosbp.testing.emulated._owners import Owner, owned, this_process

INTERFACE = "eth0"
BURST, QUEUE = "8kb", "4mb"
# A link of a cluster has no queue of seconds, and its rate does not depend on what was sent before: senders keep little
# in flight, lose nothing, and neither probe the rate nor begin slowly after a pause.
TCP = {"tcp_congestion_control": "reno", "tcp_limit_output_bytes": "65536", "tcp_slow_start_after_idle": "0"}
_END_S = 10.0
_COMMAND_S = 30.0


def address(node: int) -> str:
    """The address of a node, the same in every cluster."""
    return f"10.99.0.{node + 1}"


def make_nodes(owner: Owner, num_nodes: int) -> list[str]:
    """The namespaces of the nodes, with a loopback interface and nothing else, and that of the switch."""
    nodes = [owner.namespace(f"n{node}") for node in range(num_nodes)]
    for namespace in (owner.namespace("switch"), *nodes):
        tool("ip", "netns", "add", namespace)
        tool("ip", "-n", namespace, "link", "set", "lo", "up")
    settings = "; ".join(f"echo {value} > /proc/sys/net/ipv4/{name}" for name, value in TCP.items())
    for namespace in nodes:
        tool(*inside(namespace, ["sh", "-e", "-c", settings]))
    return nodes


def join_by_bridge(owner: Owner, nodes: list[str], rate_mbit: float) -> None:
    """A bridge and one link per node, limited to ``rate_mbit`` in each direction by a token bucket at each end."""
    switch = owner.namespace("switch")
    tool("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    tool("ip", "-n", switch, "link", "set", "bridge", "up")
    for node, namespace in enumerate(nodes):
        port = f"port{node}"
        peer = ("peer", "name", INTERFACE, "netns", namespace)
        tool("ip", "-n", switch, "link", "add", port, "type", "veth", *peer)
        tool("ip", "-n", switch, "link", "set", port, "master", "bridge", "addrgenmode", "none", "up")
        for where, device in ((switch, port), (namespace, INTERFACE)):
            limit_rate(where, device, rate_mbit)
        bring_up(namespace, node)


def limit_rate(namespace: str, device: str, rate_mbit: float) -> None:
    """Let ``device`` send at ``rate_mbit``; at most ``QUEUE`` waits, what comes then is lost."""
    rate = ("rate", f"{round(rate_mbit * 1e6)}bit", "burst", BURST, "limit", QUEUE)
    tool("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *rate)


def bring_up(namespace: str, node: int) -> None:
    """Give a node's interface its address, and none of IPv6."""
    tool("ip", "-n", namespace, "link", "set", INTERFACE, "addrgenmode", "none")
    tool("ip", "-n", namespace, "address", "add", f"{address(node)}/24", "dev", INTERFACE)
    tool("ip", "-n", namespace, "link", "set", INTERFACE, "up")


def inside(namespace: str, command: list[str]) -> list[str]:
    """A command that runs in a namespace, under the process id that it is started with."""
    return ["ip", "netns", "exec", namespace, *command]


def end_processes(namespace: str) -> None:
    """Kill every process of a namespace, by id, and wait until none is left."""
    deadline = time.monotonic() + _END_S
    while pids := [int(pid) for pid in tool("ip", "netns", "pids", namespace).split()]:
        if time.monotonic() > deadline:
            raise AutosbpError(f"{namespace}: processes {pids} do not end")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove(owner: Owner) -> list[str]:
    """End all processes of one cluster and remove its namespaces, as many as there are; returns their names."""
    names = [name for name, found in owned() if found == owner]
    failures = []
    for name in names:
        try:
            end_processes(name)
            tool("ip", "netns", "delete", name)
        except AutosbpError as error:  # the others are removed first
            failures.append(error)
    if failures:
        raise failures[0]
    return names


def sweep() -> list[str]:
    """Remove what processes that are gone have left: their clusters' namespaces, links and processes, by name and id."""
    removed = []
    for owner in {owner for _, owner in owned()}:
        if not owner.alive:
            with suppress(AutosbpError):  # another process sweeps at the same time
                removed += remove(owner)
    left = [name for name, owner in owned() if not owner.alive]
    if left:
        raise AutosbpError(f"could not remove {', '.join(left)}")
    return removed


@cache
def why_not() -> str | None:
    """Why this machine cannot emulate a cluster, or None; makes one namespace with a rate limit to find out."""
    if os.geteuid() != 0:
        return "an emulated cluster needs root (network namespaces)"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"an emulated cluster needs the program {program!r} (Debian: apt-get install iproute2)"
    owner = this_process(0)
    try:
        [node] = make_nodes(owner, 1)
        join_by_bridge(owner, [node], 100)
    except UnsupportedError as error:
        return f"this kernel or container does not allow an emulated cluster: {error}"
    finally:
        remove(owner)
    return None


def tool(*command: str) -> str:
    """Run ``ip`` or ``tc``; its output, or ``UnsupportedError`` with what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"{' '.join(command)}: no answer in {_COMMAND_S:g} s") from None
    if done.returncode != 0:
        raise UnsupportedError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
