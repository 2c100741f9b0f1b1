"""Megatron-LM's layouts of a GPT on the devices of one node, as pins; search chooses the rest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from autosbp.api import capture_hf_config
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.block_structure import find_blocks, single_activation_sections
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.op_flops import ELEMENTWISE
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan.plan import Strategy
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.graph_analysis import GraphAnalysis
from autosbp.search.problem.mesh_views import tensor_parallel_view
from autosbp.search.problem.pins import read_pins
from autosbp.search.problem.strategy import strategy_of
from benchmarks.megatron_validation._rows import Row

VOCABULARY = 51200
CAPTURED_LAYERS = 2
"""Blocks are identical: two are captured, and times are multiplied up to the row's number of layers."""
WEIGHTS = {
    "transformer.wte.weight": "S0",
    "*.attn.c_attn.weight*": "S0",
    "*.attn.c_attn.bias*": "S0",
    "*.attn.c_proj.weight*": "S1",
    "*.mlp.c_fc.weight*": "S0",
    "*.mlp.c_fc.bias": "S0",
    "*.mlp.c_proj.weight*": "S1",
}
"""Of a pair of products, the first is split by columns and the second by rows (Shoeybi et al. 2019, section 3)."""


@cache
def gpt(hidden: int, ffn: int, heads: int, seq_len: int) -> LogicalGraph:
    """Training graph with unfused attention, as in these runs: scores, softmax and dropout are in memory."""
    config = {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_positions": seq_len,
        "n_embd": hidden,
        "n_inner": ffn,
        "n_head": heads,
        "n_layer": CAPTURED_LAYERS,
        "activation_function": "gelu_pytorch_tanh",
        "attn_implementation": "eager",
        "use_cache": False,
        "dtype": "bfloat16",
    }
    return capture_hf_config(config, seq_len)


def stream(row: Row) -> str:
    """Layout of activations between blocks: replicated, or split along the sequence.

    Source: Korthikanti et al. 2022, section 4.2.2.
    """
    return "S1" if row.sequence_parallel else "I"


def megatron_strategy(graph: LogicalGraph, node: Cluster, row: Row) -> Strategy:
    """Strategy of a tensor-parallel group.

    Args:
        graph: bound at the row's microbatch.
        node: cluster with the devices of the group.
    """
    pins = {**WEIGHTS, **dict.fromkeys(_stream_ops(graph), stream(row))}
    mesh = node.mesh()
    view, _ = tensor_parallel_view(mesh, mesh.ndim)
    found = read_pins(graph, view, pins)
    boxing = BoxingModel(NetworkModel(node), view)
    builder = ProblemBuilder(
        graph, boxing, ComputeModel(node.device), num_micro=1, optimizer="adamw",
        analysis=GraphAnalysis(graph, found.names, frozenset(found.stored)),
    )  # fmt: skip
    built = builder.build(None, found)
    result = SEARCHERS["exact"](built.problem, SearchOptions(seed=0))
    return strategy_of(
        built, result.assignment, graph, boxing,
        global_batch=row.micro_batch, micro_batch=row.micro_batch, optimizer="adamw",
    )  # fmt: skip


def _stream_ops(graph: LogicalGraph) -> Iterator[str]:
    """Ops outside the split products, which have the layout of ``stream``.

    In each section up to the last block: the norm that begins it, and the dropout and residual sum that end it.
    """
    after = frozenset(find_blocks(graph).after)
    for section in single_activation_sections(graph):
        if section[-1].name in after:
            return
        if section[-1].op in ELEMENTWISE:
            yield section[-1].name
            yield from (node.name for node in section if _feeds(node, section[-1]))
        if "norm" in section[0].op:
            yield section[0].name


def _feeds(node: Node, last: Node) -> bool:
    return node.op in ELEMENTWISE and node.name in {ref.name for ref in last.refs()}
