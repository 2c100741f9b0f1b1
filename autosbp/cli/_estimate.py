"""``autosbp estimate``: what a model needs, counted from its graph without a search."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._files import ModelSizes, read_calibration, read_model
from autosbp.cli._format import count, num_bytes, seconds, table
from autosbp.cli._options import AsJson, Calibration, ImageSize, Model, Optimizer, SeqLen
from autosbp.cli._run import console, print_json
from autosbp.errors import InputError
from autosbp.jsonio import check_integer

if TYPE_CHECKING:
    from autosbp.cluster import Cluster
    from autosbp.costmodel import calibration as costs
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Strategy

ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="CLUSTER", help="Also what its devices would hold and take.")
]
Batch = Annotated[int, typer.Option("--micro-batch", help="Samples that activations are counted for.")]
_OPTIMIZERS = ("adamw", "sgd")


def estimate(
    model: Model,
    cluster: ClusterOption = None,
    calibration: Calibration = None,
    micro_batch: Batch = 1,
    optimizer: Optimizer = "adamw",
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    as_json: AsJson = False,
) -> None:
    """Count parameters, FLOPs and memory of a model, without a search."""
    from autosbp.cluster import load_cluster

    if optimizer not in _OPTIMIZERS:
        raise InputError("optimizer", optimizer, f"one of {', '.join(_OPTIMIZERS)} is expected")
    check_integer("micro_batch", micro_batch, 1, 2**30)
    found_cluster = load_cluster(cluster) if cluster is not None else None
    measured = read_calibration(calibration)
    found = _Estimate(read_model(model, ModelSizes(seq_len, image_size)), micro_batch, optimizer)
    document = found.document(found_cluster, measured)
    if as_json:
        print_json(document)
    else:
        _show(document)


@dataclass(frozen=True)
class _Estimate:
    graph: LogicalGraph
    micro_batch: int
    optimizer: str

    def document(self, cluster: Cluster | None, measured: costs.Calibration | None) -> dict[str, Any]:
        from autosbp.costmodel.memory import memory_bytes
        from autosbp.sbp.rules import sharding_of

        bound = self.graph.bind(**dict.fromkeys(self.graph.symbols, self.micro_batch))
        memory = memory_bytes(bound, self._undivided(bound))
        flops = sum(sharding_of(bound, node).flops for node in bound.nodes if node.name in bound.computed)
        document = {
            **self.graph.summary(),
            "micro_batch": self.micro_batch,
            "optimizer": self.optimizer,
            "flops_per_sample_forward": flops / self.micro_batch,
            "memory_breakdown": memory,
            "memory_bytes_one_device": sum(memory.values()),
        }
        return document if cluster is None else {**document, "cluster": self._on(cluster, measured, bound, memory)}

    def _undivided(self, bound: LogicalGraph) -> Strategy:
        """The strategy of one device: a mesh without axes."""
        from autosbp.plan import Signature, Strategy
        from autosbp.sbp.mesh import Mesh

        signatures = {
            node.name: Signature(((),) * len(list(node.refs())), ((),) * len(node.outputs))
            for node in bound.nodes
            if node.name in bound.computed
        }
        parameters = {leaf.name: () for leaf in bound.parameters}
        return Strategy(Mesh((), (1,)), signatures, parameters, {}, self.micro_batch, self.micro_batch, self.optimizer)

    def _on(
        self, cluster: Cluster, measured: costs.Calibration | None, bound: LogicalGraph, memory: dict[str, int]
    ) -> dict[str, Any]:
        """Bounds that no strategy can beat: training state split over all devices, time without communication."""
        from autosbp.costmodel.boxing import BoxingModel
        from autosbp.costmodel.compute import ComputeModel
        from autosbp.costmodel.evaluate import evaluate
        from autosbp.costmodel.network import NetworkModel

        strategy, compute = self._undivided(bound), ComputeModel(cluster.device, measured)
        alone = evaluate(bound, strategy, BoxingModel(NetworkModel(cluster, measured), strategy.mesh), compute)
        gradients = sum(leaf.meta.num_bytes for leaf in bound.trained)
        state = memory["parameters"] + gradients + memory["optimizer"]
        limit = cluster.device.memory_bytes
        return {
            "name": cluster.name,
            "num_devices": cluster.num_devices,
            "memory_limit_bytes": limit,
            "fits_one_device": sum(memory.values()) <= limit,
            "least_memory_bytes_per_device": ceil(state / cluster.num_devices),
            "least_num_devices": ceil(state / limit),
            "one_device_step_time_s": alone.step_time_s,
            "one_device_compute_s": alone.compute_s,
        }


def _show(document: dict[str, Any]) -> None:
    out = console()
    memory, batch = document["memory_breakdown"], document["micro_batch"]
    rows = [
        ("parameters", f"{document['num_parameters']:,}"),
        ("parameter bytes", num_bytes(document["parameter_bytes"])),
        ("forward pass of a sample", f"{count(document['flops_per_sample_forward'])}FLOP"),
        (f"optimizer state ({document['optimizer']})", num_bytes(memory["optimizer"])),
        (f"gradients, at the fullest moment of a step of batch {batch}", num_bytes(memory["gradients"])),
        ("activations kept for backward, then", num_bytes(memory["activations"])),
        ("all of it on one device, then", num_bytes(document["memory_bytes_one_device"])),
    ]
    out.print(table(f"{document['name']} (graph {document['graph_hash']})", ("", "value"), rows))
    if "cluster" not in document:
        return
    there = document["cluster"]
    rows = [
        ("devices", f"{there['num_devices']:,}"),
        ("memory of a device", num_bytes(there["memory_limit_bytes"])),
        ("fits on one device", "yes" if there["fits_one_device"] else "no"),
        ("least memory per device: state over all devices", num_bytes(there["least_memory_bytes_per_device"])),
        ("least devices of that memory", f"{there['least_num_devices']:,}"),
        (f"step of batch {batch} on one device, memory aside", seconds(there["one_device_step_time_s"])),
    ]
    out.print(table(f"on {there['name']}", ("", "value"), rows))
