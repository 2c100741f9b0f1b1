"""Megatron-LM's layouts of a small GPT: its collectives, what of them is hidden, and what recomputation repeats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosbp.cluster.hardware import EfficiencyCurves
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.block_structure import find_blocks
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.recompute import recomputed_ops
from autosbp.costmodel.stage_times import PassTimeModel, PassTimes
from autosbp.costmodel.step_collectives import StepCollectives
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.program.parameter_flow import parameter_flow
from benchmarks.megatron_validation._layouts import gpt, megatron_strategy
from benchmarks.megatron_validation._rows import Row, published_rows

BATCH, SEQ_LEN, HIDDEN = 2, 32, 64
ACTIVATION = 2 * BATCH * SEQ_LEN * HIDDEN
NODE = load_cluster("dgx-a100-80g:1x4")
SMALL = replace(
    published_rows()[0], hidden=HIDDEN, ffn=4 * HIDDEN, heads=4, head_dim=16, layers=2, seq_len=SEQ_LEN, tp=4,
    micro_batch=BATCH, global_batch=BATCH,
)  # fmt: skip
ROWS = {mode: replace(SMALL, mode=mode) for mode in ("full", "selective")}
Made = tuple[LogicalGraph, Strategy, PassTimeModel]


@pytest.fixture(scope="module")
def made() -> dict[str, Made]:
    return {mode: _made(row, _curves(0.0)) for mode, row in ROWS.items()}


def _curves(contention: float) -> EfficiencyCurves:
    assert NODE.device.curves is not None
    return replace(NODE.device.curves, contention=contention)


def _made(row: Row, curves: EfficiencyCurves) -> Made:
    symbolic = gpt(row.hidden, row.ffn, row.heads, row.seq_len)
    graph = symbolic.bind(**dict.fromkeys(symbolic.symbols, row.micro_batch))
    strategy = megatron_strategy(graph, NODE, row)
    return graph, strategy, PassTimeModel(graph, strategy, BoxingModel(NetworkModel(NODE), strategy.mesh), curves)


def block_times(made: Made, mode: str) -> PassTimes:
    graph, _, model = made
    return model.times(find_blocks(graph).blocks[-1], recomputed_ops(graph, mode))


def block_collectives(made: Made) -> list[tuple[str, str, int]]:
    """(phase, kind, bytes) of those that the last block's boxes cause."""
    graph, strategy, _ = made
    inside = set(find_blocks(graph).blocks[-1])
    flow = StepCollectives(graph, strategy, parameter_flow(graph, strategy))
    calls = [*flow.forward(True), *flow.backward(False, False)]
    return [(call.phase, call.kind, call.num_bytes) for call in calls if call.cause in inside]


def seconds(kind: str) -> float:
    return NetworkModel(NODE).time_s(kind, ACTIVATION, (1, 4))


def test_tensor_parallelism_reduces_twice_forward_and_twice_backward(made: dict[str, Made]) -> None:
    both = [(phase, "all_reduce", ACTIVATION) for phase in ("forward", "forward", "backward", "backward")]
    assert block_collectives(made["full"]) == both


def test_sequence_parallelism_gathers_before_each_pair_of_products_and_scatters_after(made: dict[str, Made]) -> None:
    forward = [("forward", kind, ACTIVATION) for kind in ("all_gather", "reduce_scatter") * 2]
    backward = [("backward", kind, ACTIVATION) for kind in ("all_gather", "reduce_scatter") * 2]
    assert block_collectives(made["selective"]) == [*forward, *backward]


def test_forward_waits_for_its_collectives_and_full_recomputation_repeats_all_of_forward(made: dict[str, Made]) -> None:
    times = block_times(made["full"], "full")
    assert times.forward_comm_s == pytest.approx(2 * seconds("all_reduce"))
    assert times.recompute_comm_s == times.forward_comm_s
    assert times.recompute_s == pytest.approx(times.forward_s)


def test_selective_recomputation_repeats_attention_without_collectives(made: dict[str, Made]) -> None:
    times = block_times(made["selective"], "selective")
    assert times.forward_comm_s == pytest.approx(2 * (seconds("all_gather") + seconds("reduce_scatter")))
    assert times.recompute_comm_s == 0.0 and 0.0 < times.recompute_s < times.forward_s


def test_nothing_is_recomputed_unless_asked(made: dict[str, Made]) -> None:
    times = block_times(made["full"], "none")
    assert times.recompute_s == times.recompute_comm_s == 0.0


def test_backward_overlaps_a_reduction_with_weight_gradients() -> None:
    """Large enough products hide it whole; what contention costs remains: here half of two reductions."""
    large = replace(ROWS["full"], hidden=1024, ffn=4096, seq_len=512)
    hidden, contended = (block_times(_made(large, _curves(part)), "none") for part in (0.0, 0.5))
    assert hidden.backward_comm_s == 0.0
    assert contended.backward_comm_s > 0.0
    assert contended.backward_comm_s == pytest.approx(0.5 * contended.forward_comm_s)


def test_regathering_in_backward_adds_only_the_exposed_part() -> None:
    large = replace(ROWS["selective"], hidden=1024, ffn=4096, seq_len=512)
    times = block_times(_made(large, _curves(0.0)), "none")
    gathered = 2 * NetworkModel(NODE).time_s("all_gather", 2 * BATCH * 512 * 1024, (1, 4))
    # Gradients of row-parallel results are gathered, which nothing hides; inputs are gathered beside products.
    assert times.backward_comm_s == pytest.approx(gathered)
