"""The planner of transfers: never dearer than the direct way or than any pair of middle layouts; links that are shared."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.cross_mesh_resharding import TransferModel, TransferPlan, _gradient, _value
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.graph.ir import DTYPE_BYTES
from autosbp.program.cross_mesh_resharding import plan_pieces
from autosbp.program.placed_mesh import PlacedMesh, placed_mesh
from autosbp.sbp.layout import NdSbp, format_nd_sbp, parse_nd_sbp
from autosbp.testing.oneflow_transfer_volume import direct_transfer
from tests.costmodel.test_boxing import RandomNetwork

pytestmark = pytest.mark.integration

CLUSTER = "local:3x4"


def placed(devices: list[int] | range, *sizes: int) -> PlacedMesh:
    return placed_mesh(list(devices), sizes, (3, 4))


PAIRS = (
    (placed(range(2), 2), placed(range(4, 8), 4)),
    (placed(range(3), 3), placed([3], 1)),
    (placed([0], 1), placed([1, 2, 3], 3)),
    (placed(range(4), 2, 2), placed(range(4, 8), 2, 2)),
    (placed(range(2), 2), placed(range(4), 2, 2)),
    (placed(range(4), 4), placed(range(2), 2)),
    (placed([0, 4], 2), placed([1, 5, 8], 3)),
    (placed(range(2, 6), 4), placed(range(6, 12), 2, 3)),
)


def through(model: TransferModel, plan: TransferPlan, sent: NdSbp, received: NdSbp) -> float:
    """Seconds by way of given middle layouts."""
    size = DTYPE_BYTES[plan.dtype]
    num_bytes = size * prod(plan.shape)
    tables = [
        model.boxing(mesh).table(plan.shape, num_bytes, plan.differentiable) for mesh in (plan.src_mesh, plan.dst_mesh)
    ]
    seconds = float(tables[0].costs_from(plan.src)[tables[0].index[sent]])
    seconds += float(tables[1].costs_to(plan.dst)[tables[1].index[received]])

    def best(src: NdSbp, src_mesh: PlacedMesh, dst: NdSbp, dst_mesh: PlacedMesh) -> float:
        ways = (plan_pieces(plan.shape, src, src_mesh, dst, dst_mesh, cut=cut) for cut in (False, True))
        return min(model.links.seconds(pieces, size, src_mesh, dst_mesh) for pieces in ways)

    seconds += best(_value(sent), plan.src_mesh, _value(received), plan.dst_mesh)
    if plan.differentiable:
        seconds += best(_gradient(received), plan.dst_mesh, _gradient(sent), plan.src_mesh)
    return seconds


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].devices}-{pair[1].devices}")
@pytest.mark.some(3)
def test_the_plan_is_the_best_of_all_middle_layouts_on_random_networks(pair: tuple[PlacedMesh, PlacedMesh]) -> None:
    src_mesh, dst_mesh = pair
    for seed in range(12):
        rng = random.Random(f"{seed} {pair}")
        model = TransferModel(RandomNetwork(load_cluster(CLUSTER), seed), 10 ** rng.uniform(8, 12))
        shape = rng.choice([(12, 24), (24,), (1200, 1200), (12, 6000)])
        differentiable = rng.random() < 0.7
        size = DTYPE_BYTES["float32"] * prod(shape)
        tables = [model.boxing(mesh).table(shape, size, differentiable) for mesh in pair]
        src, dst = (rng.choice(table.layouts) for table in tables)
        plan = model.plan(src, src_mesh, dst, dst_mesh, shape, "float32", differentiable)
        middles = (table.layouts[: table.num_sums] for table in tables)
        found = {ends: through(model, plan, *ends) for ends in product(*middles)}
        assert plan.total_s == pytest.approx(min(found.values()), rel=1e-12)
        assert found[plan.sent, plan.received] == pytest.approx(plan.total_s, rel=1e-12)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].devices}-{pair[1].devices}")
def test_the_plan_is_never_dearer_than_the_direct_way(pair: tuple[PlacedMesh, PlacedMesh]) -> None:
    src_mesh, dst_mesh = pair
    model = TransferModel(NetworkModel(load_cluster(CLUSTER)))
    for shape in ((12, 12), (1200, 1200)):
        size = 8 * prod(shape)
        tables = [model.boxing(mesh).table(shape, size, False) for mesh in pair]
        sums = (table.layouts[: table.num_sums] for table in tables)
        for src, dst in random.Random(0).sample(list(product(*sums)), 6):
            plan = model.plan(src, src_mesh, dst, dst_mesh, shape, "float64", False)
            direct = direct_transfer(shape, size, src, src_mesh, dst, dst_mesh)
            assert plan.total_s <= through(model, plan, direct.prepare, dst) * (1 + 1e-12)


def planned(src: str, dst: str, pair: tuple[PlacedMesh, PlacedMesh], shape: tuple[int, ...]) -> TransferPlan:
    network = NetworkModel(load_cluster(CLUSTER))
    return TransferModel(network).plan(parse_nd_sbp(src), pair[0], parse_nd_sbp(dst), pair[1], shape, "float32")


def test_large_replicas_are_sent_in_slices_and_gathered_where_the_network_is_fast() -> None:
    """Copies would cross the slow link between nodes four times."""
    plan = planned("S0", "B", PAIRS[0], (4096, 4096))
    assert format_nd_sbp(plan.received) in ("S0", "S1")
    assert [step.forward for step in plan.finish] == ["all_gather"]
    assert (
        sum(plan.message_bytes("forward").values()) == 4 * 4096 * 4096 == sum(plan.message_bytes("backward").values())
    )


def test_small_replicas_are_sent_in_few_messages() -> None:
    plan = planned("S0", "B", PAIRS[0], (4, 4))
    assert len(plan.message_bytes("forward")) == 1


def test_partial_sums_are_reduced_before_they_are_sent() -> None:
    plan = planned("P", "S0", PAIRS[0], (4096, 4096))
    assert [step.forward for step in plan.prepare] == ["reduce_scatter"]
    assert sum(plan.message_bytes("forward").values()) == 4 * 4096 * 4096


def test_replicas_send_evenly() -> None:
    plan = planned("B", "B", (placed(range(4), 4), placed([4], 1)), (4096, 4096))
    assert set(plan.message_bytes("forward").values()) == {4096 * 4096}


def test_messages_over_one_link_wait_for_each_other() -> None:
    """Two nodes of four: all that leaves a node shares its link; inside, every device has its own."""
    cluster = load_cluster(CLUSTER)
    links = TransferModel(NetworkModel(cluster)).links
    size = 4 * 2**20
    whole = parse_nd_sbp("B")

    def seconds(devices: list[int], num_elements: int = size) -> float:
        src_mesh, dst_mesh = placed([0], 1), placed(devices, len(devices))
        pieces = plan_pieces((num_elements,), whole, src_mesh, whole, dst_mesh, cut=False)
        copies = (len(pieces) + 1) * (links.overhead_s + 8 * num_elements / links.copy_bytes_per_s)
        return links.seconds(pieces, 4, src_mesh, dst_mesh) - copies

    node, device = cluster.levels
    assert seconds([4]) == pytest.approx(node.latency_s + 4 * size / node.bandwidth_bytes_per_s)
    assert seconds([4, 8]) == pytest.approx(2 * seconds([4]))
    assert seconds([1]) == pytest.approx(device.latency_s + 4 * size / device.bandwidth_bytes_per_s)
    assert seconds([1, 4]) == pytest.approx(max(seconds([1]), seconds([4])))
    assert seconds([0]) == pytest.approx(0.0)


def test_values_without_a_gradient_have_no_backward_messages() -> None:
    network = NetworkModel(load_cluster(CLUSTER))
    src_mesh, dst_mesh = PAIRS[0]
    for dtype, differentiable in (("int64", True), ("float32", False)):
        plan = TransferModel(network).plan(
            parse_nd_sbp("S0"), src_mesh, parse_nd_sbp("B"), dst_mesh, (8, 4), dtype, differentiable
        )
        assert not plan.backward and not plan.message_bytes("backward")


def test_partial_maxima_are_joined_before_they_are_sent() -> None:
    network = NetworkModel(load_cluster(CLUSTER))
    ends = (parse_nd_sbp("Pmax"), PAIRS[0][0], parse_nd_sbp("B"), PAIRS[0][1])
    plan = TransferModel(network).plan(*ends, (64, 8), "int64")
    assert plan.prepare[0].forward in ("all_reduce", "reduce_scatter") and plan.prepare[0].reduction == "max"
    with pytest.raises(InputError, match="without a gradient"):
        TransferModel(network).plan(*ends, (64, 8), "float32")


def test_uneven_layouts_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="S1"):
        planned("S0", "S1", PAIRS[0], (8, 6))
    with pytest.raises(InputError, match="S1"):
        planned("S1", "S0", PAIRS[0], (8, 5))
