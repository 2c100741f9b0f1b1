"""A calibration through the command line on two nodes of two, whose links really are slow."""

from __future__ import annotations

import json

import pytest

from autosbp.costmodel.calibration import Calibration, CollectiveFit
from tests.cli.processes import autosbp
from tests.testing.conftest import can_emulate as can_emulate

pytestmark = pytest.mark.clock

LARGEST = 2 << 20
PAYLOAD_BYTES_PER_S = 200e6 / 8 * 1448 / 1514


@pytest.fixture(scope="module")
def fits(can_emulate: None, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[object, ...], CollectiveFit]:
    path = tmp_path_factory.mktemp("emulated") / "calibration.json"
    done = autosbp(
        *("calibrate", "--cluster", "emulated:2x2", "--launcher", "emulated", "-o", path),
        *("--sizes", f"{16 << 10},{256 << 10},{LARGEST}", "--repeats", 5, "--budget", 30),
    )
    assert done.returncode == 0, done.stderr
    assert not path.with_name("calibration.json.partial").exists()
    calibration = Calibration.from_dict(json.loads(path.read_text()))
    assert calibration.complete and calibration.cluster.name == "emulated:2x2"
    return {(fit.kind, fit.group_shape, fit.num_groups): fit for fit in calibration.collectives}


def largest_s(fit: CollectiveFit) -> float:
    assert fit.points[-1].num_bytes == LARGEST
    return fit.points[-1].median_s


@pytest.mark.parametrize(
    ("shape", "num_groups", "sharing", "ring"),
    [((2, 1), 1, 1, 1.0), ((2, 1), None, 2, 1.0), ((2, 2), None, 1, 1.5)],
)
def test_all_reduces_between_nodes_take_the_time_of_their_rings(
    fits: dict[tuple[object, ...], CollectiveFit],
    shape: tuple[int, int],
    num_groups: int | None,
    sharing: int,
    ring: float,
) -> None:
    seconds = largest_s(fits["all_reduce", shape, num_groups])
    assert seconds == pytest.approx(sharing * ring * LARGEST / PAYLOAD_BYTES_PER_S, rel=0.35)


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_groups_that_share_a_link_take_twice_as_long_as_one_alone(
    fits: dict[tuple[object, ...], CollectiveFit], kind: str
) -> None:
    shared, alone = largest_s(fits[kind, (2, 1), None]), largest_s(fits[kind, (2, 1), 1])
    assert 1.5 < shared / alone < 2.6


def test_ranks_that_arrive_in_sequence_exchange_in_turns(fits: dict[tuple[object, ...], CollectiveFit]) -> None:
    """Half of the message goes each way. Ranks that come together would send both halves at once, which no step does."""
    seconds = largest_s(fits["all_to_all", (2, 1), 1])
    assert seconds == pytest.approx(LARGEST / PAYLOAD_BYTES_PER_S, rel=0.2)


def test_collectives_inside_a_node_are_far_faster(fits: dict[tuple[object, ...], CollectiveFit]) -> None:
    for kind in ("all_reduce", "all_gather", "all_to_all", "broadcast", "p2p"):
        assert largest_s(fits[kind, (1, 2), None]) < largest_s(fits[kind, (2, 1), None]) / 4
