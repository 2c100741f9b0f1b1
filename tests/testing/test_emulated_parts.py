"""Parts of the emulated cluster that need no privileges: links as arithmetic, names, descriptions, its program."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.errors import InputError
from autosbp.testing.emulated import EmulatedCluster, Shape
from autosbp.testing.emulated.__main__ import main
from autosbp.testing.emulated._links import QUEUE_BYTES, Links
from autosbp.testing.emulated._owners import Owner, this_process
from autosbp.testing.emulated._rank_errors import first_error, write_error
from autosbp.testing.emulated._switch import wire_bytes
from autosbp.utils.json_io import read_file


def arrivals(links: Links) -> list[tuple[float, int]]:
    """When each frame arrives, and where."""
    found = []
    now_s = 0.0
    while (wait_s := links.wait_s(now_s)) is not None:
        now_s += wait_s
        found += [(round(now_s, 9), target) for target, _ in links.pop_arrived(now_s + 1e-12)]
    return found


def test_an_idle_path_costs_one_link_and_the_delay() -> None:
    links = Links(2, 1000.0, 0.5)
    links.send(0.0, 0, 1, b"", 100)
    assert arrivals(links) == [(0.6, 1)]


def test_frames_of_one_sender_queue_on_its_link() -> None:
    links = Links(3, 1000.0, 0.0)
    for target in (1, 2, 1):
        links.send(0.0, 0, target, b"", 100)
    assert arrivals(links) == [(0.1, 1), (0.2, 2), (0.3, 1)]


def test_frames_of_two_senders_queue_on_the_link_of_their_receiver() -> None:
    links = Links(3, 1000.0, 0.0)
    for source in (0, 1):
        links.send(0.0, source, 2, b"", 100)
    assert arrivals(links) == [(0.1, 2), (0.2, 2)]


def test_links_are_full_duplex() -> None:
    links = Links(2, 1000.0, 0.0)
    links.send(0.0, 0, 1, b"", 100)
    links.send(0.0, 1, 0, b"", 100)
    assert sorted(arrivals(links)) == [(0.1, 0), (0.1, 1)]


def test_a_frame_behind_a_full_queue_is_lost() -> None:
    links = Links(2, 1e6, 0.0)
    for _ in range(QUEUE_BYTES // 1000 + 10):
        links.send(0.0, 0, 1, b"", 1000)
    assert links.num_lost == 9 and len(arrivals(links)) == QUEUE_BYTES // 1000 + 1


def test_an_unsplit_segment_is_charged_with_the_headers_of_its_parts() -> None:
    def frame(size: int, gso_type: int, header_bytes: int, segment_bytes: int) -> bytes:
        return struct.pack("<BBHHHH", 1, gso_type, header_bytes, segment_bytes, 34, 16) + bytes(size)

    assert wire_bytes(frame(60, 0, 0, 0)) == 60
    assert wire_bytes(frame(66 + 3 * 1448, 1, 66, 1448)) == 3 * 1514
    assert wire_bytes(frame(66 + 1449, 1, 66, 1448)) == 2 * 66 + 1449


def test_an_owner_is_alive_only_as_the_process_that_it_was() -> None:
    owner = this_process(1)
    assert owner.alive and owner.namespace("n0").startswith(f"autosbp-emu-{os.getpid()}-")
    assert not Owner(owner.pid, owner.start_ticks + 1, 1).alive
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not Owner(child, owner.start_ticks, 1).alive  # ended, and nobody has waited for it
    os.waitpid(child, 0)


def test_the_first_error_is_found_by_its_time(tmp_path: Path) -> None:
    assert first_error(tmp_path) is None
    for rank in (3, 0):
        write_error(tmp_path, rank, ValueError(f"of rank {rank}"))
    error = first_error(tmp_path)
    assert error is not None and (error.rank, error.summary) == (3, "ValueError: of rank 3")


def test_the_default_is_described_by_the_preset() -> None:
    assert EmulatedCluster().spec == load_cluster("emulated:2x2")
    assert EmulatedCluster().spec.levels == load_cluster("emulated").levels


@pytest.mark.parametrize("shape", [Shape(), Shape(4, 1, 100.0), Shape(2, 4, 333.0, 12.5), Shape(1, 2)])
def test_a_description_gives_its_cluster_back(shape: Shape) -> None:
    assert Shape.of(Cluster.from_dict(shape.spec().to_dict())) == shape
    assert EmulatedCluster.of(shape.spec()).shape == shape


@pytest.mark.parametrize("spec", ["local:4", "dgx-h100:2", "local:2x2"])
def test_other_clusters_cannot_be_emulated(spec: str) -> None:
    with pytest.raises(InputError):
        EmulatedCluster.of(load_cluster(spec))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"nodes": 0}, "nodes"),
        ({"ranks_per_node": 33}, "ranks_per_node"),
        ({"nodes": 32, "ranks_per_node": 3}, "nodes * ranks_per_node"),
        ({"rate_mbit": 0.5}, "rate_mbit"),
        ({"rate_mbit": float("nan")}, "rate_mbit"),
        ({"delay_ms": -1.0}, "delay_ms"),
    ],
)
def test_a_shape_out_of_limits_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        EmulatedCluster(**changes)
    assert caught.value.field == field


def test_the_program_writes_a_description_for_the_planner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.json"
    assert main(["--nodes", "4", "--ranks", "1", "--rate", "100", "--spec", str(path)]) == 0
    assert Cluster.from_dict(read_file(path)) == Shape(4, 1, 100.0).spec()
    assert "emulated:4x1 at 100 Mbit/s" in capsys.readouterr().err


def test_a_description_that_cannot_be_written_is_told_by_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none" / "cluster.json"
    assert main(["--spec", str(path)]) == 2
    assert f"error: spec: '{path}' is invalid: expected a file in an existing" in capsys.readouterr().err


def test_the_program_refuses_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes", "99", "--", "module"]) == 2
    assert "nodes: 99 is invalid" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
