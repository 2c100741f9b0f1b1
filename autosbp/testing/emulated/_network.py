"""Nodes as network namespaces, each connected by a link of limited rate to a bridge in a separate namespace.

Nothing is created in the caller's namespace: no bridge, link, address or route. So several clusters can use the same
addresses, and removing the namespaces removes everything.
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
from autosbp.testing.emulated._owners import Owner, owned_namespaces, this_process

INTERFACE = "eth0"
BURST, QUEUE = "8kb", "4mb"
# A link of a cluster has no queue of seconds, and its rate does not depend on what was sent before. With these settings
# senders keep little in flight, lose nothing, and neither probe the rate nor begin slowly after a pause.
TCP = {"tcp_congestion_control": "reno", "tcp_limit_output_bytes": "65536", "tcp_slow_start_after_idle": "0"}
_END_S = 10.0
_COMMAND_S = 30.0


def address(node: int) -> str:
    """The address of a node, the same in every cluster."""
    return f"10.99.0.{node + 1}"


def make_nodes(owner: Owner, num_nodes: int) -> list[str]:
    """Create the namespaces of the switch and of the nodes, with only a loopback interface; return those of the nodes."""
    nodes = [owner.namespace(f"n{node}") for node in range(num_nodes)]
    for namespace in (owner.namespace("switch"), *nodes):
        run_tool("ip", "netns", "add", namespace)
        run_tool("ip", "-n", namespace, "link", "set", "lo", "up")
    settings = "; ".join(f"echo {value} > /proc/sys/net/ipv4/{name}" for name, value in TCP.items())
    for namespace in nodes:
        run_tool(*in_namespace(namespace, ["sh", "-e", "-c", settings]))
    return nodes


def join_by_bridge(owner: Owner, nodes: list[str], rate_mbit: float) -> None:
    """Create a bridge and one link per node; token buckets at both ends limit each direction to ``rate_mbit``."""
    switch = owner.namespace("switch")
    run_tool("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    run_tool("ip", "-n", switch, "link", "set", "bridge", "up")
    for node, namespace in enumerate(nodes):
        port = f"port{node}"
        peer = ("peer", "name", INTERFACE, "netns", namespace)
        run_tool("ip", "-n", switch, "link", "add", port, "type", "veth", *peer)
        run_tool("ip", "-n", switch, "link", "set", port, "master", "bridge", "addrgenmode", "none", "up")
        for where, device in ((switch, port), (namespace, INTERFACE)):
            limit_rate(where, device, rate_mbit)
        configure_interface(namespace, node)


def limit_rate(namespace: str, device: str, rate_mbit: float) -> None:
    """Limit the send rate of ``device`` to ``rate_mbit``; at most ``QUEUE`` waits, further frames are lost."""
    rate = ("rate", f"{round(rate_mbit * 1e6)}bit", "burst", BURST, "limit", QUEUE)
    run_tool("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *rate)


def configure_interface(namespace: str, node: int) -> None:
    """Give a node's interface its IPv4 address, and no IPv6 address."""
    run_tool("ip", "-n", namespace, "link", "set", INTERFACE, "addrgenmode", "none")
    run_tool("ip", "-n", namespace, "address", "add", f"{address(node)}/24", "dev", INTERFACE)
    run_tool("ip", "-n", namespace, "link", "set", INTERFACE, "up")


def in_namespace(namespace: str, command: list[str]) -> list[str]:
    """Wrap a command to run in a namespace; it keeps the process id with which it is started."""
    return ["ip", "netns", "exec", namespace, *command]


def end_processes(namespace: str) -> None:
    """Kill every process of a namespace, by id, and wait until all have ended."""
    deadline = time.monotonic() + _END_S
    while pids := [int(pid) for pid in run_tool("ip", "netns", "pids", namespace).split()]:
        if time.monotonic() > deadline:
            raise AutosbpError(f"{namespace}: processes {pids} did not exit")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove(owner: Owner) -> list[str]:
    """Kill all processes of one cluster and remove its remaining namespaces; return their names."""
    names = [name for name, found in owned_namespaces() if found == owner]
    failures = []
    for name in names:
        try:
            end_processes(name)
            run_tool("ip", "netns", "delete", name)
        except AutosbpError as error:  # raised after removing the others
            failures.append(error)
    if failures:
        raise failures[0]
    return names


def sweep() -> list[str]:
    """Remove leftovers of dead owners: their clusters' namespaces, links and processes, by name and id."""
    removed = []
    for owner in {owner for _, owner in owned_namespaces()}:
        if not owner.alive:
            with suppress(AutosbpError):  # another process may sweep at the same time
                removed += remove(owner)
    left = [name for name, owner in owned_namespaces() if not owner.alive]
    if left:
        raise AutosbpError(f"could not remove {', '.join(left)}")
    return removed


@cache
def unavailable_reason() -> str | None:
    """The reason why this machine cannot emulate a cluster, or None; tests it with one namespace and a rate limit."""
    if os.geteuid() != 0:
        return "an emulated cluster requires root (network namespaces)"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"an emulated cluster requires the program {program!r} (Debian: apt-get install iproute2)"
    owner = this_process(0)
    try:
        [node] = make_nodes(owner, 1)
        join_by_bridge(owner, [node], 100)
    except UnsupportedError as error:
        return f"this kernel or container does not allow an emulated cluster: {error}"
    finally:
        remove(owner)
    return None


def run_tool(*command: str) -> str:
    """Run ``ip`` or ``tc`` and return its output; raise ``UnsupportedError`` with its message if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"{' '.join(command)}: no answer in {_COMMAND_S:g} s") from None
    if done.returncode != 0:
        raise UnsupportedError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
