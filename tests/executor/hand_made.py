"""Strategies written by hand: OneFlow's section 3.3 (P kept across two matmuls) and a 2-D layout of GPT-2."""

from __future__ import annotations

from dataclasses import replace

from autosbp.api import LogicalGraph, load_cluster, load_graph
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.plan import Signature, Strategy
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.sbp.placement import parse_nd_sbp
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search._build import ProblemBuilder
from autosbp.search._clusters import OpCluster
from autosbp.search._strategy import strategy_of

FLOAT = {"dtype": "float32"}


def three_matmuls() -> LogicalGraph:
    """loss = sum((X U) V W): U S(1) x V S(0) leaves a partial sum that W: B may keep."""

    def matmul(name: str, left: str, right: str, width: int) -> dict[str, object]:
        args = [{"ref": left}, {"ref": right}]
        return {"name": name, "op": "aten.mm.default", "args": args, "outputs": [{"shape": ["batch", width], **FLOAT}]}

    return load_graph({
        "schema": "autosbp.graph/1",
        "name": "three_matmuls",
        "symbols": {"batch": 8},
        "parameters": [
            {"name": "u", "shape": [16, 32], **FLOAT},
            {"name": "v", "shape": [32, 24], **FLOAT},
            {"name": "w", "shape": [24, 16], **FLOAT},
        ],
        "inputs": [{"name": "x", "shape": ["batch", 16], **FLOAT}],
        "constants": [],
        "nodes": [
            matmul("xu", "x", "u", 32),
            matmul("uv", "xu", "v", 24),
            matmul("vw", "uv", "w", 16),
            {"name": "square", "op": "aten.pow.Tensor_Scalar", "args": [{"ref": "vw"}, 2],
             "outputs": [{"shape": ["batch", 16], **FLOAT}]},
            {"name": "loss", "op": "aten.sum.default", "args": [{"ref": "square"}], "outputs": [{"shape": [], **FLOAT}]},
        ],
        "loss": {"ref": "loss"},
    })  # fmt: skip


def three_matmuls_strategy() -> Strategy:
    """On four devices of one axis: U is S(1), V is S(0), the product stays P through W, one all-reduce at the end."""
    mesh = Mesh((Axis("g", 4, 0),), (4,))

    def signature(ins: str, outs: str) -> Signature:
        return Signature(tuple(map(parse_nd_sbp, ins.split())), tuple(map(parse_nd_sbp, outs.split())))

    partial, whole = parse_nd_sbp("P"), parse_nd_sbp("I")
    return Strategy(
        mesh,
        {
            "xu": signature("B S1", "S1"),
            "uv": signature("S1 S0", "P"),
            "vw": signature("P B", "P"),
            "square": signature("I", "I"),
            "loss": signature("I", "I"),
        },
        {"u": parse_nd_sbp("S1"), "v": parse_nd_sbp("S0"), "w": parse_nd_sbp("B")},
        {((8, 16), 8 * 16 * 4, True, partial, whole): (partial, whole)},
        global_batch=8,
        micro_batch=8,
        optimizer="adamw",
    )


def two_dimensional(graph: LogicalGraph) -> Strategy:
    """GPT-2 with every linear split along its input width on one axis and its output width on the other (2-D)."""
    cluster = load_cluster("local:2x2")
    mesh = cluster.mesh()
    bound = graph.bind(**dict.fromkeys(graph.symbols, 8))
    boxing = BoxingModel(NetworkModel(cluster), mesh)
    builder = ProblemBuilder(bound, boxing, ComputeModel(cluster.device), num_micro=1, optimizer="adamw")

    def allowed(op_cluster: OpCluster, axis: int, option: int) -> bool:
        first = op_cluster.options[option][0]
        return op_cluster.nodes[0].op != "aten.linear.default" or first.factor == ("k", "n")[axis]

    built = builder.build(None, allowed)
    result = SEARCHERS["exact"](replace(built.problem), SearchOptions())
    return strategy_of(built, result.assignment, bound, boxing, global_batch=8, micro_batch=8, optimizer="adamw")
