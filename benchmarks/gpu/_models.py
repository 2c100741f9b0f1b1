"""Models on one device, and the description of that device."""

from __future__ import annotations

from dataclasses import replace

import torch

from autosbp.api import Cluster, LogicalGraph, load_cluster
from autosbp.cluster.spec import Level
from autosbp.graph.dtype_cast import cast_floats
from autosbp.graph_sources import load_model


def one_device(kind: str, preset: str, *, curves: bool) -> Cluster:
    """Cluster with one device of a preset (one CPU rank if ``kind`` is ``cpu``) by its data sheet.

    ``curves`` selects whether its kernels have efficiency curves.
    """
    found = load_cluster("local:1" if kind == "cpu" else f"{preset}:1")
    device = found.device if curves else replace(found.device, curves=None)
    return Cluster(f"one {device.name}", (Level("g", 1, 0.0, 1e9),), device, host=found.host)


def model(name: str, dtype: str = "float32") -> LogicalGraph:
    """A model of the zoo with all its floating-point tensors in ``dtype``."""
    graph = load_model(f"zoo:{name}")
    return graph if dtype == "float32" else cast_floats(graph, "float32", dtype)


def random_parameters(graph: LogicalGraph, device: torch.device) -> dict[str, torch.Tensor]:
    """Initial parameters, drawn on the device; their values affect neither time nor memory."""
    generator = torch.Generator(device).manual_seed(0)
    found = {}
    for leaf in graph.parameters:
        sizes, dtype = leaf.meta.sizes, getattr(torch, leaf.meta.dtype)
        if len(sizes) < 2 or not dtype.is_floating_point:
            found[leaf.name] = torch.ones(sizes, dtype=dtype, device=device)
        else:
            found[leaf.name] = torch.randn(sizes, dtype=dtype, device=device, generator=generator).mul_(0.02)
    return found
