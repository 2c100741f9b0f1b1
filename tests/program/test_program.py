"""The program of a strategy: whole models under diverse strategies on virtual ranks, dropout, and what is refused."""

from __future__ import annotations

import gzip
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import autosbp
from autosbp.api import load_graph
from autosbp.cluster.spec import load_cluster
from autosbp.errors import GraphError, InputError
from autosbp.executor.runtime import Runtime
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Signature
from autosbp.program.program import Op, program_items
from autosbp.sbp.layout import B, I, NdSbp, S, parse_nd_sbp
from autosbp.sbp.rules import sharding_of
from autosbp.testing.strategy_samples import sample_strategies
from autosbp.testing.virtual import VirtualRanks, plain_mesh
from autosbp.testing.virtual_cases import mask, of, op_case, x
from autosbp.testing.virtual_ops import local_program
from autosbp.testing.virtual_program import check_strategy

pytestmark = pytest.mark.integration

ZOO = Path(autosbp.__file__).parent / "data" / "zoo"


def zoo(name: str) -> LogicalGraph:
    return load_graph(json.loads(gzip.decompress((ZOO / f"{name}.json.gz").read_bytes())))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("model", "spec", "batch", "count"),
    [
        ("mlp-small", "local:2x3", 6, 12),
        ("vgg13-small", "local:2x2", 4, 6),
        ("gpt2-demo", "local:2x2", 4, 3),
        ("llama-demo", "local:4", 4, 2),
    ],
)
def test_models_train_alike_under_diverse_strategies(model: str, spec: str, batch: int, count: int) -> None:
    """Loss, every gradient and the charged collectives, in float64; strategies from wild to near the optimum."""
    graph = cast_floats(zoo(model), "float32", "float64")
    for strategy in sample_strategies(graph, load_cluster(spec), count, global_batch=batch, micro_batch=batch):
        check_strategy(graph, strategy)


def dropout_parts(layout: NdSbp, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    graph, node = op_case("aten.dropout.default", of(x(8, 96), 0.5, True))
    mesh = plain_mesh(*sizes)
    programs = [local_program(graph, node, Signature((layout,), (layout,)), mesh, rank) for rank in range(mesh.size)]
    shape = [size // mesh.group_size([at for at, sbp in enumerate(layout) if sbp == S(dim)])
             for dim, size in enumerate((8, 96))]  # fmt: skip
    ones = torch.ones(shape, dtype=torch.float64)
    lock = threading.Lock()  # ranks are threads here, and threads share torch's generator

    def work(runtime: Runtime) -> torch.Tensor:
        with lock:
            return programs[runtime.rank](ones)[0]

    return VirtualRanks(mesh).run(work)


def test_replicas_drop_the_same_numbers_and_shards_different_ones() -> None:
    assert torch.equal(*dropout_parts((B,), (2,)))
    assert torch.equal(*dropout_parts((I,), (2,)))
    assert not torch.equal(*dropout_parts((S(0),), (2,)))
    parts = dropout_parts((S(1), B), (2, 2))
    assert torch.equal(parts[0], parts[1]) and torch.equal(parts[2], parts[3]) and not torch.equal(parts[0], parts[2])


@pytest.mark.parametrize("layout", ["P,B", "B,Pmax", "S5,B", "B,S0", "B", "", "S0,P"])
def test_stored_layouts_must_be_whole_or_evenly_split(layout: str) -> None:
    """Every rank would take the whole optimizer step of a stored partial sum; 3 does not divide the rows."""
    graph = zoo("mlp-small")
    (strategy,) = sample_strategies(graph, load_cluster("local:2x3"), 1, global_batch=6, micro_batch=6)
    name = graph.parameters[0].name
    assert graph.parameters[0].meta.sizes[0] % 3
    wrong = replace(strategy, parameters={**strategy.parameters, name: parse_nd_sbp(layout)})
    with pytest.raises(InputError, match=name):
        list(program_items(graph.bind(batch=6), wrong))


def test_a_value_without_gradient_is_laid_out_with_the_parameter_that_it_depends_on() -> None:
    """Computed whole on every rank, as data is, a mask made of a split value would be wrong."""
    document = {
        "schema": "autosbp.graph/1",
        "name": "hand-made relu",
        "symbols": {},
        "parameters": [{"name": "w", "shape": [4], "dtype": "float32"}],
        "inputs": [],
        "nodes": [
            {
                "name": "kept",
                "op": "aten.gt.Scalar",
                "args": [{"ref": "w"}, 0.0],
                "outputs": [{"shape": [4], "dtype": "bool"}],
            },
            {
                "name": "relu",
                "op": "aten.mul.Tensor",
                "args": [{"ref": "w"}, {"ref": "kept"}],
                "outputs": [{"shape": [4], "dtype": "float32"}],
            },
            {
                "name": "loss",
                "op": "aten.sum.default",
                "args": [{"ref": "relu"}],
                "outputs": [{"shape": [], "dtype": "float32"}],
            },
        ],
        "loss": {"ref": "loss"},
    }
    graph = load_graph(document)
    assert "kept" in graph.parameter_dependent and "kept" not in graph.differentiable
    for strategy in sample_strategies(graph, load_cluster("local:2x2"), 6, global_batch=1, micro_batch=1):
        (op,) = [item for item in program_items(graph, strategy) if isinstance(item, Op) and item.node.name == "kept"]
        assert op.signature == strategy.signatures["kept"]
        check_strategy(graph, strategy)


def test_arguments_that_rules_read_by_position_are_refused_by_name() -> None:
    query = x(2, 4, 6, 2)
    graph, node = op_case("aten.scaled_dot_product_attention.default", of(query, query, query, is_causal=True))
    with pytest.raises(GraphError, match="is_causal"):
        sharding_of(graph, node)


def test_a_rule_names_the_shape_it_refuses() -> None:
    graph, node = op_case("aten.masked_fill.Scalar", of(x(4, 6), mask(4, 6), 0))
    wrong = replace(node, outputs=(replace(node.outputs[0], shape=(4, 7)),))
    with pytest.raises(GraphError, match="shape"):
        sharding_of(graph, wrong)
