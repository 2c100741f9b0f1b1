"""Strategies written by hand: OneFlow's section 3.3 (P kept across two matmuls), partial maxima and minima, 2-D layouts of
GPT-2."""

from __future__ import annotations

from dataclasses import replace

from autosbp.api import LogicalGraph, load_cluster, load_graph
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.plan.plan import Signature, Strategy
from autosbp.sbp.boxing import PMAX, PMIN
from autosbp.sbp.layout import parse_nd_sbp
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.op_clusters import OpCluster
from autosbp.search.problem.strategy import strategy_of
from autosbp.testing.strategy_samples import sample_strategies

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


def rescaled() -> LogicalGraph:
    """loss = sum(tanh((h - min h) / (max h - min h)) W)^2 with h = X V; extremes over the width of h have no gradient."""
    wide, column = ["batch", 32], ["batch", 1]

    def node(name: str, op: str, args: list[object], size: list[object]) -> dict[str, object]:
        return {"name": name, "op": f"aten.{op}", "args": args, "outputs": [{"shape": size, **FLOAT}]}

    def refs(*names: str) -> list[object]:
        return [{"ref": name} for name in names]

    return load_graph({
        "schema": "autosbp.graph/1",
        "name": "rescaled",
        "symbols": {"batch": 8},
        "parameters": [{"name": "v", "shape": [16, 32], **FLOAT}, {"name": "w", "shape": [32, 8], **FLOAT}],
        "inputs": [{"name": "x", "shape": ["batch", 16], **FLOAT}],
        "constants": [],
        "nodes": [
            node("h", "mm.default", refs("x", "v"), wide),
            node("fixed", "detach.default", refs("h"), wide),
            node("high", "amax.default", [*refs("fixed"), [1], True], column),
            node("low", "amin.default", [*refs("fixed"), [1], True], column),
            node("span", "sub.Tensor", refs("high", "low"), column),
            node("shifted", "sub.Tensor", refs("h", "low"), wide),
            node("scaled", "div.Tensor", refs("shifted", "span"), wide),
            node("bent", "tanh.default", refs("scaled"), wide),
            node("out", "mm.default", refs("bent", "w"), ["batch", 8]),
            node("square", "pow.Tensor_Scalar", [*refs("out"), 2], ["batch", 8]),
            node("loss", "sum.default", refs("square"), []),
        ],
        "loss": {"ref": "loss"},
    })  # fmt: skip


def partial_extrema(graph: LogicalGraph, count: int) -> list[Strategy]:
    """Sampled strategies of ``rescaled`` that box partial maxima and partial minima."""
    found = []
    for strategy in sample_strategies(graph, load_cluster("local:2x2"), 60, global_batch=8, micro_batch=8):
        sources = [source for _, _, _, source, _ in strategy.paths]
        if all(any(partial in source for source in sources) for partial in (PMAX, PMIN)):
            found.append(strategy)
    return found[:count]


def tied_embedding(stored: str, gather: str) -> tuple[LogicalGraph, Strategy]:
    """loss = sum((relu(E[ids]) E^T)^2) over two microbatches on 2 x 2 devices: E is read S1,B by the embedding and S0,B
    by the head."""
    shape, wide = ["batch", 8], ["batch", 16]
    double = {"dtype": "float64"}

    def node(name: str, op: str, args: list[object], size: list[object]) -> dict[str, object]:
        return {"name": name, "op": f"aten.{op}", "args": args, "outputs": [{"shape": size, **double}]}

    graph = load_graph({
        "schema": "autosbp.graph/1",
        "name": "tied",
        "symbols": {"batch": 4},
        "parameters": [{"name": "e", "shape": [16, 8], **double}],
        "inputs": [{"name": "ids", "shape": ["batch"], "dtype": "int64", "high": 16}],
        "constants": [],
        "nodes": [
            node("rows", "embedding.default", [{"ref": "e"}, {"ref": "ids"}], shape),
            node("hidden", "relu.default", [{"ref": "rows"}], shape),
            node("logits", "linear.default", [{"ref": "hidden"}, {"ref": "e"}], wide),
            node("square", "pow.Tensor_Scalar", [{"ref": "logits"}, 2], wide),
            node("loss", "sum.default", [{"ref": "square"}], []),
        ],
        "loss": {"ref": "loss"},
    })  # fmt: skip

    def signature(ins: str, outs: str) -> Signature:
        return Signature(tuple(map(parse_nd_sbp, ins.split())), tuple(map(parse_nd_sbp, outs.split())))

    mesh = load_cluster("local:2x2").mesh()
    signatures = {
        "rows": signature("S1,B B,S0", "S1,S0"),
        "hidden": signature("S1,S0", "S1,S0"),
        "logits": signature("B,S0 S0,B", "S1,S0"),
        "square": signature("S1,S0", "S1,S0"),
        "loss": signature("S1,S0", "P,P"),
    }
    boxing = BoxingModel(NetworkModel(load_cluster("local:2x2")), mesh)
    layout = parse_nd_sbp(stored)
    paths = {}
    for size, src, dst in (
        ((16, 8), layout, parse_nd_sbp("S1,B")),
        ((16, 8), layout, parse_nd_sbp("S0,B")),
        ((4, 8), parse_nd_sbp("S1,S0"), parse_nd_sbp("B,S0")),
        ((), parse_nd_sbp("P,P"), parse_nd_sbp("I,I")),
    ):
        num_bytes = 8 * size[0] * size[1] if size else 8
        steps = boxing.plan(src, dst, size, num_bytes)
        paths[size, num_bytes, True, src, dst] = (src, *(step.dst for step in steps))
    strategy = Strategy(mesh, signatures, {"e": layout}, paths, 8, 4, "adamw", gather)
    return graph, strategy


def two_dimensional(graph: LogicalGraph) -> Strategy:
    """GPT-2 with every linear split along its input width on one axis and its output width on the other (2-D)."""
    return split_linears(graph, ("k",), ("n",))


def split_linears(graph: LogicalGraph, *factors: tuple[str, ...]) -> Strategy:
    """The best strategy on 2 x 2 devices that splits every linear, on each axis, along one of that axis's factors."""
    cluster = load_cluster("local:2x2")
    mesh = cluster.mesh()
    bound = graph.bind(**dict.fromkeys(graph.symbols, 8))
    boxing = BoxingModel(NetworkModel(cluster), mesh)
    builder = ProblemBuilder(bound, boxing, ComputeModel(cluster.device), num_micro=1, optimizer="adamw")

    def allowed(op_cluster: OpCluster, axis: int, option: int) -> bool:
        first = op_cluster.options[option][0]
        return op_cluster.nodes[0].op != "aten.linear.default" or first.factor in factors[axis]

    built = builder.build(None, allowed)
    result = SEARCHERS["exact"](replace(built.problem), SearchOptions())
    return strategy_of(built, result.assignment, bound, boxing, global_batch=8, micro_batch=8, optimizer="adamw")
