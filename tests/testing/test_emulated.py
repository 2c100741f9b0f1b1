"""Real ranks on two nodes of two: links are as slow as they say, and failures are told by the rank that began them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autosbp.errors import AutosbpError, InputError
from autosbp.testing.emulated import EmulatedCluster
from autosbp.utils.processes import start_ticks
from tests.testing.ranks import NUM_BYTES

pytestmark = pytest.mark.integration

RATE_BYTES_PER_S = 200e6 / 8
PING = """
import socket, sys, time
peer = socket.create_connection(("10.99.0.2", 4000), timeout=20)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
taken = []
for _ in range(20):
    started = time.perf_counter()
    peer.sendall(b"?")
    answer = peer.recv(1)
    taken.append(time.perf_counter() - started)
print(answer.decode(), sorted(taken)[10])
"""
PONG = """
import socket, sys
server = socket.create_server(("10.99.0.2", 4000))
print("listening", flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while peer.recv(1):
    peer.sendall(sys.argv[1].encode())
"""


@pytest.fixture(scope="module")
def times(can_emulate: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    path = tmp_path_factory.mktemp("times") / "times.json"
    with EmulatedCluster(nodes=2, ranks_per_node=2, rate_mbit=200) as cluster:
        outcome = cluster.run("tests.testing.ranks", ["times", str(path)], timeout_s=120)
    assert outcome.reason == "", outcome.log_tail
    found: dict[str, float] = json.loads(path.read_text())
    return found


def ring_s(num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks * NUM_BYTES / RATE_BYTES_PER_S


@pytest.mark.clock
def test_an_all_reduce_between_nodes_takes_the_time_of_a_ring_over_the_link(times: dict[str, float]) -> None:
    assert times["one across"] == pytest.approx(ring_s(2), rel=0.35)
    assert times["all"] == pytest.approx(ring_s(4), rel=0.35)


@pytest.mark.clock
def test_an_all_reduce_inside_a_node_is_far_faster(times: dict[str, float]) -> None:
    assert times["inside"] < times["one across"] / 4


@pytest.mark.clock
def test_two_groups_at_once_share_the_links_of_their_nodes(times: dict[str, float]) -> None:
    assert times["two across"] / times["one across"] == pytest.approx(2.0, rel=0.25)


def test_the_error_that_came_first_is_the_reason(can_emulate: None, tmp_path: Path) -> None:
    with EmulatedCluster() as cluster:
        outcome = cluster.run("tests.testing.ranks", ["fail"], timeout_s=60, log_dir=tmp_path)
        assert outcome.reason == "a rank failed: rank 2: ValueError: the root cause"
        assert "ranks.py" in outcome.log_tail and "node 1:" in outcome.log_tail
        assert "closed by peer" in (tmp_path / "ranks.log").read_text()
        assert "the root cause" in (tmp_path / "ranks.node1.log").read_text()
        outcome = cluster.run("tests.testing.ranks", ["be_killed"], timeout_s=60)
        assert outcome.reason == "a rank failed: rank 3 was killed by SIGKILL"


def test_ranks_that_hang_are_ended(can_emulate: None, tmp_path: Path) -> None:
    with EmulatedCluster(nodes=2, ranks_per_node=1) as cluster:
        outcome = cluster.launch(
            *("tests.testing.ranks", ["hang", str(tmp_path)], 2, tmp_path / "ranks.log"),
            timeout_s=60,
            poll=lambda: len(list(tmp_path.glob("here*"))) < 2,
        )
        assert outcome.reason == "cancelled"
        pids = [int(path.read_text()) for path in tmp_path.glob("here*")]
        assert len(pids) == 2 and all(start_ticks(pid) is None for pid in pids)
        outcome = cluster.run("tests.testing.ranks", ["hang", str(tmp_path)], timeout_s=0.5)
        assert outcome.reason == "timed out after 0.5 s"


def test_ranks_are_started_inside_the_block_and_all_of_them() -> None:
    cluster = EmulatedCluster()
    with pytest.raises(AutosbpError, match="inside its with-block"):
        cluster.run("tests.testing.ranks")


def test_a_part_of_the_ranks_is_refused(can_emulate: None, tmp_path: Path) -> None:
    with EmulatedCluster() as cluster, pytest.raises(InputError, match="num_ranks: 2 .* expected 4"):
        cluster.launch("tests.testing.ranks", [], 2, tmp_path / "ranks.log", timeout_s=1)


def answer(cluster: EmulatedCluster, word: str) -> tuple[str, float]:
    """What node 0 hears from node 1, and the median round trip in seconds."""
    first, second = cluster.namespaces
    pong = ["ip", "netns", "exec", second, sys.executable, "-c", PONG, word]
    ping = ["ip", "netns", "exec", first, sys.executable, "-c", PING]
    with subprocess.Popen(pong, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline() == b"listening\n"
        heard, round_trip_s = subprocess.run(ping, capture_output=True, check=True, timeout=60).stdout.split()
    return heard.decode(), float(round_trip_s)


def test_two_clusters_at_once_do_not_hear_each_other(can_emulate: None) -> None:
    with EmulatedCluster(ranks_per_node=1) as one, EmulatedCluster(ranks_per_node=1) as other:
        assert set(one.namespaces).isdisjoint(other.namespaces)
        assert answer(one, "1")[0] == "1" and answer(other, "2")[0] == "2"


@pytest.mark.clock
def test_a_delay_is_paid_in_each_direction(can_emulate: None) -> None:
    with EmulatedCluster(ranks_per_node=1, delay_ms=10) as cluster:
        word, round_trip_s = answer(cluster, "x")
    assert word == "x" and 0.020 <= round_trip_s < 0.030


def test_nothing_is_made_in_the_namespace_of_the_caller(can_emulate: None) -> None:
    before = socket.if_nameindex()
    with EmulatedCluster() as cluster:
        assert socket.if_nameindex() == before
        assert all(Path("/run/netns", name).exists() for name in cluster.namespaces)
    assert not any(Path("/run/netns", name).exists() for name in cluster.namespaces)
    assert not [name for name in os.listdir("/run/netns") if f"-{os.getpid()}-" in name]
