"""Valid seed inputs, small enough that thousands of mutations can be read in minutes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import yaml

from autosbp.cluster.spec import load_cluster, presets
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Correction, Point, Spread
from autosbp.graph.ir import LogicalGraph
from autosbp.search.plan_options import PlanOptions
from autosbp.search.planner import make_plan
from autosbp.zoo import zoo_graph

GRAPHS = (
    "mlp-small",
    "gpt2-demo",
    "llama-demo",
    "moe-small",
    "resnet50-small",
    "vgg13-small",
    "wide-deep-small",
    "faces-small",
)
CLUSTERS = ("local:4", "local:2x2", "dgx-a100-80g:2", "summit:4", "piz-daint:8", "dgx-h100:2")
_TEXT = {
    "vocab_size": 64,
    "max_position_embeddings": 16,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 64},
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        **_TEXT,
    },
    {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 1, "type_vocab_size": 2, **_TEXT},
    {
        "model_type": "mixtral",
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        **_TEXT,
    },
    {
        "model_type": "t5",
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 24,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "num_heads": 2,
        "vocab_size": 64,
    },
    {
        "model_type": "vit",
        "num_hidden_layers": 1,
        "image_size": 16,
        "patch_size": 8,
        "num_channels": 3,
        "num_labels": 4,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    },
    {"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8, "num_labels": 4},
)
"""Hugging Face configurations; each is captured in about a second."""


@cache
def graphs() -> tuple[dict[str, Any], ...]:
    """Graph documents of the zoo, with repeated blocks folded and unfolded."""
    return _plain([*(zoo_graph(name).to_dict() for name in GRAPHS), zoo_graph("gpt2-demo").to_dict(fold=False)])


@cache
def clusters() -> tuple[dict[str, Any], ...]:
    """Cluster documents, with the device given in full and by preset."""
    spelled = [load_cluster(name).to_dict() for name in CLUSTERS]
    named = [{"schema": "autosbp.cluster/1", "name": name, **spec} for name, spec in presets()["clusters"].items()]
    return _plain([*spelled, *named])


@cache
def calibrations() -> tuple[dict[str, Any], ...]:
    """Calibration documents."""
    return _plain([_calibration(name) for name in ("local:2x2", "local:4")])


@cache
def plans() -> tuple[tuple[LogicalGraph, dict[str, Any]], ...]:
    """Plans with their graphs: one with a single stage, one with two stages and activation checkpointing."""
    asked = (("mlp-small", "local:4", {}), ("gpt2-demo", "local:2x2", {"stages": 2, "recompute": 1}))
    found = []
    for model, cluster, options in asked:
        graph = zoo_graph(model)
        plan = make_plan(graph, load_cluster(cluster), options=PlanOptions(global_batch=8, **options))
        found.append((graph, _plain([plan.to_dict()])[0]))
    return tuple(found)


def configs() -> tuple[Mapping[str, Any], ...]:
    """Hugging Face configurations."""
    return CONFIGS


def _plain(documents: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The documents after a JSON round trip."""
    return tuple(json.loads(json.dumps(documents)))


@cache
def onnx_models() -> tuple[bytes, ...]:
    """ONNX files: MLPs (plain, with a branch, with a function), convolutions, and attention with computed shapes."""
    from onnx import TensorProto, helper

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def tensor(name: str, *shape: int) -> Any:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, np.full(shape, 0.5, np.float32).tobytes(), raw=True)

    def floats(name: str, *shape: int | str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def ints(name: str, *values: int) -> Any:
        return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)

    def model(name: str, nodes: list[Any], x: Any, tensors: list[Any], functions: list[Any] | None = None) -> bytes:
        graph = helper.make_graph(nodes, name, [x], [floats("y", "batch", 3)], tensors)
        used = opsets if functions else opsets[:1]
        return bytes(helper.make_model(graph, opset_imports=used, functions=functions or []).SerializeToString())

    op, x, weights = helper.make_node, floats("x", "batch", 4), [tensor("w", 3, 4), tensor("b", 3)]
    gemm = op("Gemm", ["x", "w", "b"], ["h"], transB=1)
    branches = [
        helper.make_graph([op(kind, ["h"], ["z"])], kind, [], [floats("z", "batch", 3)]) for kind in ("Relu", "Neg")
    ]
    choice = op("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    act = helper.make_function("own", "Act", ["i"], ["o"], [op("Relu", ["i"], ["o"])], opsets[:1])
    convolutions = [
        op("Conv", ["x", "k"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        op("BatchNormalization", ["c", "s", "s", "m", "m"], ["n"]),
        op("Relu", ["n"], ["r"]),
        op("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        op("GlobalAveragePool", ["p"], ["g"]),
        op("Flatten", ["g"], ["f"]),
        op("Gemm", ["f", "w"], ["y"], transB=1),
    ]
    attention = [
        op("LayerNormalization", ["x", "s", "s"], ["n"]),
        *(op("MatMul", ["n", f"w{at}"], [f"a{at}"]) for at in "qkv"),
        op("Shape", ["n"], ["size"]),
        op("Gather", ["size", "first"], ["rows"], axis=0),
        op("Concat", ["rows", "rest"], ["split"], axis=0),
        *(op("Reshape", [f"a{at}", "split"], [f"r{at}"]) for at in "qkv"),
        op("Transpose", ["rq"], ["tq"], perm=[0, 2, 1, 3]),
        op("Transpose", ["rk"], ["tk"], perm=[0, 2, 3, 1]),
        op("Transpose", ["rv"], ["tv"], perm=[0, 2, 1, 3]),
        op("MatMul", ["tq", "tk"], ["scores"]),
        op("Mul", ["scores", "scale"], ["scaled"]),
        op("Softmax", ["scaled"], ["shares"], axis=-1),
        op("MatMul", ["shares", "tv"], ["seen"]),
        op("Transpose", ["seen"], ["back"], perm=[0, 2, 1, 3]),
        op("Reshape", ["back", "whole"], ["joined"]),
        op("Add", ["joined", "x"], ["more"]),
        op("Tanh", ["more"], ["active"]),
        op("ReduceMean", ["active"], ["mean"], axes=[1], keepdims=0),
        op("MatMul", ["mean", "wo"], ["out"]),
        op("Add", ["out", "b"], ["y"]),
    ]
    squares = [tensor(f"w{at}", 8, 8) for at in "qkv"]
    constants = [ints("first", 0), ints("rest", 6, 2, 4), ints("whole", 0, 0, -1), tensor("scale")]
    return (
        model("perceptron", [gemm, op("Relu", ["h"], ["y"])], x, weights),
        model("branch", [gemm, choice], x, [*weights, helper.make_tensor("c", TensorProto.BOOL, [], [True])]),
        model("called", [gemm, op("Act", ["h"], ["y"], domain="own")], x, weights, [act]),
        model(
            "convolutions", convolutions, floats("x", "batch", 3, 16, 16),
            [tensor("k", 4, 3, 3, 3), tensor("s", 4), tensor("m", 4), tensor("w", 3, 4)],
        ),
        model(
            "attention", attention, floats("x", "batch", 6, 8),
            [*squares, *constants, tensor("s", 8), tensor("wo", 8, 3), tensor("b", 3)],
        ),
    )  # fmt: skip


def as_yaml(document: Any, rng: random.Random) -> bytes:
    """The document as YAML in a random style."""
    style = rng.choice((None, True, False))
    return yaml.safe_dump(document, default_flow_style=style, sort_keys=False, allow_unicode=True).encode()


def _calibration(name: str) -> dict[str, Any]:
    there = load_cluster(name)
    shapes = ((1, 2), (2, 1), (2, 2)) if len(there.levels) > 1 else ((there.num_devices,),)
    spread = Spread(1e-5, (1e-4,) * 7)
    points = (Point(1024, 1e-4, 1e-5, 5, spread), Point(2**20, 1e-3, 1e-4, 5))
    fits = tuple(
        CollectiveFit(kind, shape, 1e-4, 1e-9, 0.99, 0.01, 0.1, points, ((4096, 2e-9),), (0.0, 2e-4), None, (1024,))
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
        for shape in shapes
    )
    return Calibration(there, "gloo", "relative", fits, corrections=(Correction(1.1, 0.9, 1e-5, 2),)).to_dict()
