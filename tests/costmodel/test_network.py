"""The network model: formulas against numbers worked out by hand, shared links, and fits before levels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import KINDS, Calibration, CollectiveFit, Point
from autosbp.costmodel.network import NetworkModel, alpha_count, beta_factor

DGX = load_cluster("dgx-a100-80g:2")  # 5 us and 200 GB/s a node, 2 us and 240 GB/s a device
DAINT = load_cluster("piz-daint:8")  # 10 us and 1.9 GB/s


@pytest.mark.parametrize(
    ("kind", "latencies", "factor"),
    [
        ("all_reduce", 14, 1.75),
        ("all_gather", 7, 0.875),
        ("reduce_scatter", 7, 0.875),
        ("all_to_all", 7, 0.875),
        ("broadcast", 7, 1.0),
        ("p2p", 1, 1.0),
    ],
)
def test_ring_counts_of_eight_ranks(kind: str, latencies: float, factor: float) -> None:
    assert (alpha_count(kind, 8), beta_factor(kind, 8)) == (latencies, factor)
    # 1.9 MB at 1.9 GB/s is 1 ms
    assert NetworkModel(DAINT).time_s(kind, 1.9e6, (8,)) == pytest.approx(latencies * 10e-6 + factor * 1e-3)


def test_group_inside_a_node_uses_the_inner_level() -> None:
    # 2 * 7 * 2 us + 2 * 7/8 * 240 MB / 240 GB/s
    assert NetworkModel(DGX).time_s("all_reduce", 240e6, (1, 8)) == pytest.approx(28e-6 + 1.75e-3)


@pytest.mark.parametrize(("devices", "sharing"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_groups_across_nodes_share_the_link_of_the_node(devices: int, sharing: int) -> None:
    fit = NetworkModel(DGX).alpha_beta("all_gather", (2, devices))
    assert fit.beta_s_per_byte == pytest.approx(sharing / 200e9)
    assert fit.alpha_s == 5e-6 and not fit.measured


def test_two_groups_across_nodes_take_twice_as_long_as_one_would() -> None:
    # 1 * 5 us + 1/2 * 200 MB * 8 / 200 GB/s
    assert NetworkModel(DGX).time_s("reduce_scatter", 200e6, (2, 1)) == pytest.approx(5e-6 + 4e-3)


@pytest.mark.parametrize(("nodes", "devices"), [(2, 1), (2, 4), (2, 8), (4, 2), (8, 8)])
def test_all_to_all_across_nodes_takes_as_long_as_the_link_of_a_node(nodes: int, devices: int) -> None:
    """Every one of 8 devices sends (p-m)/p of its message out of the node, however the groups are formed."""
    num_ranks, message = nodes * devices, 160e6
    sent = 8 * message * (num_ranks - devices) / num_ranks
    time_s = NetworkModel(load_cluster(f"dgx-a100-80g:{nodes}")).time_s("all_to_all", message, (nodes, devices))
    assert time_s == pytest.approx((num_ranks - 1) * 5e-6 + sent / 200e9)


def test_all_to_all_over_two_whole_nodes() -> None:
    # 15 * 5 us + 8 * 1/2 * 160 MB / 200 GB/s; a ring of one stream would take 0.75 ms
    assert NetworkModel(DGX).time_s("all_to_all", 160e6, (2, 8)) == pytest.approx(75e-6 + 3.2e-3)


def test_all_to_all_inside_a_node_uses_the_links_of_the_devices() -> None:
    # 7 * 2 us + 7/8 * 240 MB / 240 GB/s
    assert NetworkModel(DGX).time_s("all_to_all", 240e6, (1, 8)) == pytest.approx(14e-6 + 0.875e-3)


@pytest.mark.parametrize(("shape", "sending"), [((4, 1), 8), ((2, 2), 4), ((4, 4), 6), ((8, 8), 7)])
def test_a_permutation_sends_what_leaves_the_node(shape: tuple[int, int], sending: int) -> None:
    """Of the m ranks that a node has in a group of m nodes, all but one exchange with another node."""
    time_s = NetworkModel(load_cluster(f"dgx-a100-80g:{shape[0]}")).time_s("p2p", 200e6, shape)
    assert time_s == pytest.approx(5e-6 + sending * 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_costs_nothing(kind: str) -> None:
    assert NetworkModel(DGX).time_s(kind, 1e9, (1, 1)) == 0.0


def calibration(alpha_s: float) -> Calibration:
    points = (Point(1024, 1e-3, 0.0, 10),)
    fit = CollectiveFit("all_reduce", (2, 1), alpha_s, 1e-9, 1.0, 0.0, 0.0, points)
    return Calibration(DGX, "nccl", "relative", (fit,))


def test_measured_fits_take_precedence_for_their_kind_and_shape() -> None:
    model = NetworkModel(DGX, calibration(1e-4))
    assert model.alpha_beta("all_reduce", (2, 1)).measured
    assert model.time_s("all_reduce", 1e6, (2, 1)) == pytest.approx(2e-4 + 1e-3)
    assert not model.alpha_beta("all_gather", (2, 1)).measured
    assert not model.alpha_beta("all_reduce", (2, 2)).measured


def test_a_negative_fitted_alpha_never_gives_a_negative_time() -> None:
    assert NetworkModel(DGX, calibration(-1e-4)).time_s("all_reduce", 1.0, (2, 1)) == 0.0


def test_plans_are_charged_with_the_first_fit_of_all_groups() -> None:
    first = calibration(1e-4).collectives[0]
    alone = replace(first, num_groups=1, beta_s_per_byte=5e-10)
    strided, contiguous = replace(first, placement="strided"), replace(first, placement="contiguous", alpha_s=5e-4)
    document = replace(calibration(1e-4), collectives=(alone, strided, contiguous))
    assert NetworkModel(DGX, document).time_s("all_reduce", 1e6, (2, 1)) == pytest.approx(2e-4 + 1e-3)


def test_arrival_delay_is_charged_only_to_collectives_on_the_program_path() -> None:
    cluster = load_cluster("local:2x2")
    fit = CollectiveFit("all_reduce", (2, 2), 1e-3, 1e-9, 1.0, 0.0, 0.0, (), waiting_s=5e-3)
    model = NetworkModel(cluster, Calibration(cluster, "gloo", "relative", (fit,)))
    sizes = np.array([0.0, 1e6])
    blocking, beside = (model.times_s("all_reduce", sizes, (2, 2), between_ops) for between_ops in (True, False))
    np.testing.assert_allclose(blocking - beside, 5e-3)
    np.testing.assert_allclose(model.shared_times_s("all_reduce", sizes, 10**6, (2, 2)), [0.0, beside[1]])


def measured(kind: str, shape: tuple[int, ...], beta: float, **more: Any) -> CollectiveFit:
    return CollectiveFit(kind, shape, 7e-6, beta, 1.0, 0.0, 0.0, (), **more)


def model_of(*fits: CollectiveFit) -> NetworkModel:
    return NetworkModel(DGX, Calibration(DGX, "nccl", "relative", fits))


def test_a_shape_that_was_not_measured_is_as_fast_as_others_across_its_level_were() -> None:
    """A data sheet beside measurements would make what nobody measured look fast."""
    near, far = measured("all_gather", (2, 4), 3e-11), measured("all_gather", (2, 1), 9e-11)
    inside = measured("all_gather", (1, 8), 1e-12)
    found = model_of(inside, far, near).alpha_beta("all_gather", (2, 8))
    # Of (2, 4) two groups share the link of a node, of (2, 8) there is one.
    assert (found.alpha_s, found.beta_s_per_byte, found.measured) == (7e-6, pytest.approx(1.5e-11), False)
    assert found.based_on == ("all_gather", (2, 4))
    assert model_of(inside, far).alpha_beta("all_gather", (2, 2)).beta_s_per_byte == pytest.approx(4.5e-11)
    assert model_of(inside).alpha_beta("all_gather", (1, 4)).based_on == ("all_gather", (1, 8))


def test_links_of_a_level_that_was_not_measured_are_as_described() -> None:
    found = model_of(measured("all_gather", (1, 8), 1e-12)).alpha_beta("all_gather", (2, 8))
    assert found.based_on is None and not found.measured
    assert found == NetworkModel(DGX).alpha_beta("all_gather", (2, 8))


def test_a_kind_that_was_not_measured_is_as_fast_as_another_over_the_same_links() -> None:
    knots = ((2**20, 6e-11),)
    found = model_of(measured("all_reduce", (2, 4), 3e-11, knots=knots, waiting_s=1e-3)).alpha_beta("p2p", (2, 4))
    # A permutation sends 3 messages out of a node for each group, a ring one stream.
    assert found.beta_s_per_byte == pytest.approx(9e-11) and found.knots == ((2**20, pytest.approx(18e-11)),)
    assert found.waiting_s == 1e-3


@pytest.mark.parametrize(("alone", "beta"), [(1e-10, 1e-10), (1e-12, 8 / 200e9)])
def test_all_groups_at_once_are_no_faster_than_one_alone_and_than_the_link_that_they_share(
    alone: float, beta: float
) -> None:
    found = model_of(measured("all_gather", (2, 1), alone, num_groups=1)).alpha_beta("all_gather", (2, 1))
    assert found.beta_s_per_byte == pytest.approx(beta) and not found.measured


def test_models_of_other_measurements_have_other_keys() -> None:
    fit = measured("all_gather", (2, 1), 1e-10)
    keys = {model_of(*fits).key for fits in ((), (fit,), (replace(fit, num_groups=1),))}
    assert len(keys) == 3
