"""On four real ranks: the most bytes alive in a step, and the most that autograd keeps, are the predicted ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import load_cluster
from autosbp.costmodel.recompute import with_full_checkpointing
from autosbp.graph_sources import load_model
from autosbp.plan.plan import Strategy
from autosbp.sbp.layout import P
from autosbp.testing.strategy_samples import sample_strategies
from benchmarks.lowering._strategies import data_parallel, stored_split, tensor_parallel
from benchmarks.memory.__main__ import LIMIT, measure, report
from benchmarks.memory._models import BATCHES, graph_of
from benchmarks.memory._modules import MODULES

pytestmark = [pytest.mark.slow, pytest.mark.integration]

BATCH, MESSAGE_BYTES = 16, 2**18


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    cases = {}
    for name in ("resnet50-small", "mlp-small", "moe-small"):
        graph = load_model(f"zoo:{name}")
        parallel = data_parallel(graph, 4, BATCH)
        used = stored_split(graph, 4, BATCH, "use", MESSAGE_BYTES)
        samples = sample_strategies(graph, load_cluster("local:2x2"), 2, global_batch=BATCH, micro_batch=BATCH, seed=3)
        cases[name] = (
            graph,
            {
                "data parallel, 4 microbatches": replace(parallel, global_batch=4 * BATCH),
                "gathered once a step": stored_split(graph, 4, BATCH, "step", MESSAGE_BYTES),
                "data parallel, the optimizer on the host": replace(parallel, offload=True),
                "Megatron-like": tensor_parallel(graph, "local:2x2", 1, BATCH),
                "gathered in each use, 4 microbatches": replace(used, global_batch=4 * BATCH),
                **{f"sample {at}": strategy for at, strategy in enumerate(samples)},
            },
        )
    for name in MODULES:
        graph, batch = graph_of(name), BATCHES.get(name, BATCH)
        parallel = data_parallel(graph, 4, batch)
        bound = graph.bind(**dict.fromkeys(graph.symbols, batch))
        cases[name] = (
            graph,
            {
                "data parallel, 4 microbatches": replace(parallel, global_batch=4 * batch),
                "data parallel, recomputed": with_full_checkpointing(bound, parallel),
            },
        )
    partial = {
        (name, label) for name, (_, each) in cases.items() for label, strategy in each.items() if is_partial(strategy)
    }
    return [{**row, "partial": (row["model"], row["strategy"]) in partial} for row in measure(cases)]


def is_partial(strategy: Strategy) -> bool:
    """Whether an op reads a parameter as partial sums: a copy that is masked on all ranks but one."""
    masked = [path for path in strategy.paths.values() if path[-1] != path[0] and P in path[-1]]
    return any(path[0] in strategy.parameters.values() for path in masked)


def test_peaks_are_within_5_percent_of_what_is_measured(rows: list[dict[str, Any]]) -> None:
    assert max(abs(row["peak_error"]) for row in rows) <= LIMIT, report(rows)


def test_what_autograd_keeps_is_within_5_percent_where_no_parameter_is_read_as_partial_sums(
    rows: list[dict[str, Any]],
) -> None:
    """Where one is, up to a fifth more was kept than predicted, at peaks that were right (docs/reference/limits.md)."""
    told = [row for row in rows if not row["partial"]]
    assert len(told) > len(rows) / 2
    assert max(abs(row["saved_error"]) for row in told) <= LIMIT, report(rows)


def test_memory_of_most_strategies_is_right_to_the_kilobyte(rows: list[dict[str, Any]]) -> None:
    exact = [row for row in rows if abs(row["peak"] - row["predicted_peak"]) < 1024]
    assert len(exact) >= len(rows) * 2 / 3, report(rows)


def test_a_gathered_copy_does_not_keep_the_message_it_came_in(rows: list[dict[str, Any]]) -> None:
    # The router's weight has one row a rank: as a view, it would hold the buffer of all that travels with it.
    (row,) = [row for row in rows if (row["model"], row["strategy"]) == ("moe-small", "gathered once a step")]
    assert row["saved"] <= row["predicted_saved"], report(rows)
