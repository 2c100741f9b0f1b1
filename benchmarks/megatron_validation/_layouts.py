"""Megatron-LM's layouts of a GPT on the devices of one node, said as pins; search fills in the rest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from autosbp.api import capture_hf_config
from autosbp.cluster import Cluster
from autosbp.costmodel.blocks import find_blocks, sections
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.op_work import ELEMENTWISE
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan import Strategy
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.analysis import Analysis
from autosbp.search.problem.build import ProblemBuilder
from autosbp.search.problem.pinned import read_pins
from autosbp.search.problem.strategy import strategy_of
from autosbp.search.problem.views import tensor_parallel_view
from benchmarks.megatron_validation._rows import Row

VOCABULARY = 51200
CAPTURED_LAYERS = 2
"""Blocks are alike: two are captured, the row's number of them is counted."""
WEIGHTS = {
    "transformer.wte.weight": "S0",
    "*.attn.c_attn.weight*": "S0",
    "*.attn.c_attn.bias*": "S0",
    "*.attn.c_proj.weight*": "S1",
    "*.mlp.c_fc.weight*": "S0",
    "*.mlp.c_fc.bias": "S0",
    "*.mlp.c_proj.weight*": "S1",
}
"""Columns of the first product of a pair are split, rows of the second (Shoeybi et al. 2019, section 3)."""


@cache
def gpt(hidden: int, ffn: int, heads: int, seq_len: int) -> LogicalGraph:
    """The training graph with its attention spelled out, as these runs had it: scores, softmax and dropout in memory."""
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
    """The layout of activations between blocks: whole on every device, or split along the sequence (Korthikanti et al.
    2022, section 4.2.2)."""
    return "S1" if row.sequence_parallel else "I"


def megatron_strategy(graph: LogicalGraph, node: Cluster, row: Row) -> Strategy:
    """``graph`` is bound at the row's microbatch; ``node`` has the devices of one tensor-parallel group."""
    pins = {**WEIGHTS, **dict.fromkeys(_stream_ops(graph), stream(row))}
    mesh = node.mesh()
    view, _ = tensor_parallel_view(mesh, mesh.ndim)
    found = read_pins(graph, view, pins)
    boxing = BoxingModel(NetworkModel(node), view)
    builder = ProblemBuilder(
        graph, boxing, ComputeModel(node.device), num_micro=1, optimizer="adamw",
        analysis=Analysis(graph, found.names, frozenset(found.stored)),
    )  # fmt: skip
    built = builder.build(None, found)
    result = SEARCHERS["exact"](built.problem, SearchOptions(seed=0))
    return strategy_of(
        built, result.assignment, graph, boxing,
        global_batch=row.micro_batch, micro_batch=row.micro_batch, optimizer="adamw",
    )  # fmt: skip


def _stream_ops(graph: LogicalGraph) -> Iterator[str]:
    """The ops outside the split products: of each section up to the last block, the norm that begins it, and the
    dropout and residual sum that end it."""
    after = frozenset(find_blocks(graph).after)
    for section in sections(graph):
        if section[-1].name in after:
            return
        if section[-1].op in ELEMENTWISE:
            yield section[-1].name
            yield from (node.name for node in section if _feeds(node, section[-1]))
        if "norm" in section[0].op:
            yield section[0].name


def _feeds(node: Node, last: Node) -> bool:
    return node.op in ELEMENTWISE and node.name in {ref.name for ref in last.refs()}
