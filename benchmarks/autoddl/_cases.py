"""AutoDDL's results in Figures 9 and 10 and Table 3: relative savings of its strategy against the best baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autosbp.api import LogicalGraph
from benchmarks.autoddl._models import transformer, vgg13


@dataclass(frozen=True, slots=True)
class Case:
    """One bar group of a figure, or two rows of the table.

    Args:
        rivals: baselines; the comparison is with the fastest that fits.
        traffic, step: the paper's savings against its best baseline. None for ``traffic`` alone if the paper does not
            give it; None for both if the paper says that the two are equal.
        communication: the paper's saving in communication time, where it gives that instead of traffic.
        data_parallel: the paper's step time of data parallelism relative to its strategy, if given.
        pins: layouts that the paper does not search.
        beside: additional baselines to show, which the paper lacks.
        stages: stages of the paper's best pipelines, Megatron's and its own; None if it has no pipelines.
    """

    name: str
    cluster: str
    batch: int
    model: Callable[[], LogicalGraph]
    rivals: tuple[str, ...]
    traffic: float | None
    step: float | None
    data_parallel: float | None = None
    optimizer: str = "adamw"
    pins: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    stages: int | None = None
    communication: float | None = None


VGG_PINS = {"features.*": "B"}
"""Convolutions are data parallel (section 5.1.1)."""
VGG_RIVALS = ("data_parallel", "one_weird_trick")
RIVALS = ("data_parallel", "megatron", "summa_2d")
TIED = ("autoddl_tied",)
"""Baseline that shows the cost of one shared choice for all repeated layers."""


def _vgg(nodes: int, communication: float, step: float) -> Case:
    name, cluster = f"Fig. 9 VGG13, {nodes} nodes", f"piz-daint:{nodes}"
    return Case(
        name, cluster, 8 * nodes, vgg13, VGG_RIVALS, None, step, 4.0, "sgd", VGG_PINS, communication=communication
    )


def _wide(nodes: int, layers: int, traffic: float, step: float) -> Case:
    name = f"Fig. 9 Transformer, {layers} layers, {nodes} nodes"
    return Case(
        name, f"piz-daint:{nodes}", 1024, lambda: transformer(layers, 8192, 64), RIVALS, traffic, step, beside=TIED
    )


def _staged(kind: str, nodes: int, stages: int, megatron_s: float, autoddl_s: float) -> Case:
    """Table 3; section 5.4 explains why SUMMA is not in it."""
    layers, width, heads = {"wide": (20, 8192, 64), "deep": (36, 4096, 32)}[kind]
    name, model = f"Table 3 {kind}, {nodes} nodes", lambda: transformer(layers, width, heads)
    saved = 1 - autoddl_s / megatron_s
    return Case(name, f"piz-daint:{nodes}", 8 * nodes, model, ("megatron",), None, saved, stages=stages)


def _cloud_vgg(devices: int, batch: int, traffic: float, step: float) -> Case:
    """Figure 10, VGG13.

    The paper keeps Megatron's products within a node, which makes it slowest; our best grid has no such rule.
    """
    name = f"Fig. 10 VGG13, 2 x {devices} A100"
    return Case(
        name, f"gcp-a100-16:2x{devices}", batch, lambda: vgg13("bfloat16"), ("data_parallel",), traffic, step,
        None, "sgd", VGG_PINS, ("one_weird_trick",),
    )  # fmt: skip


CASES = (
    _vgg(16, 0.10, 0.03),
    _vgg(32, 0.18, 0.088),
    _vgg(64, 0.29, 0.177),
    _wide(64, 8, 0.239, 0.12),
    _wide(128, 20, 0.464, 0.361),
    _wide(256, 44, 0.353, 0.311),
    _staged("wide", 64, 1, 533, 335),
    _staged("wide", 128, 1, 503, 315),
    _staged("deep", 64, 2, 710, 443),
    _staged("deep", 128, 2, 807, 508),
    _cloud_vgg(4, 128, 0.847, 0.715),
    _cloud_vgg(8, 256, 0.777, 0.635),
    Case(
        "Fig. 10 Transformer small, 2 x 16 A100", "gcp-a100-16:2", 2048, lambda: transformer(24, 1024, 16, "bfloat16"),
        RIVALS, None, None, 1.0, beside=TIED,
    ),
    Case(
        "Fig. 10 Transformer large, 2 x 16 A100", "gcp-a100-16:2", 2048, lambda: transformer(28, 4096, 32, "bfloat16"),
        RIVALS, 0.216, 0.10, beside=TIED,
    ),
)  # fmt: skip
