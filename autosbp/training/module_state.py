"""Module state: entries of a module's ``state_dict`` other than the parameters that its loss reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from autosbp.executor.running_statistics import BATCHES, MEAN, VARIANCE, batch_norm_layers
from autosbp.graph.ir import LogicalGraph, Ref
from autosbp.graph.to_fx import torch_dtype


@dataclass(frozen=True, slots=True)
class ModuleState:
    """State of a module, except the values of the parameters that its loss reads.

    Args:
        dtypes: dtypes of the parameters that the loss reads, by their names in the module.
        statistics: initial running statistics of batch norm layers, by name; training updates them.
        others: persistent buffers, and parameters that the loss does not read, by name; without those on the meta device.
    """

    dtypes: Mapping[str, torch.dtype]
    statistics: Mapping[str, torch.Tensor]
    others: Mapping[str, torch.Tensor]

    @staticmethod
    def of(
        graph: LogicalGraph, module: torch.nn.Module | None, weights: Mapping[str, torch.Tensor] | None
    ) -> ModuleState:
        """State of a captured module, with values from ``weights`` where these have them.

        Args:
            graph: the captured graph.
            module: the module; None if only the graph is available, then ``others`` is empty.
        """
        found = {} if module is None else module.state_dict(keep_vars=True)
        dtypes = {leaf.source: torch_dtype(leaf.meta.dtype) for leaf in graph.parameters}
        statistics = _initial_statistics(graph, None if module is None else found, weights or {})
        known = {id(found[name]) for name in (*dtypes, *statistics) if name in found}
        others: dict[str, torch.Tensor] = {}
        for name, tensor in found.items():
            if id(tensor) not in known and not tensor.is_meta:
                known.add(id(tensor))
                others[name] = tensor
        return ModuleState(dtypes, statistics, others)


def _initial_statistics(
    graph: LogicalGraph, module: Mapping[str, torch.Tensor] | None, weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Whole running statistics by name; those without a given value are initialised as in a new layer."""
    found: dict[str, torch.Tensor] = {}
    nodes = {node.name: node for node in graph.nodes}
    for node, layer in batch_norm_layers(graph).items():
        if module is not None and layer + MEAN not in module:
            continue
        weight = nodes[node].args[1]
        assert isinstance(weight, Ref)
        meta = graph.meta(weight)
        made = torch.zeros(meta.sizes, dtype=torch_dtype(meta.dtype))
        for name, default in ((MEAN, made), (VARIANCE, made + 1), (BATCHES, torch.tensor(0))):
            given = weights.get(layer + name, (module or {}).get(layer + name))
            found[layer + name] = default if given is None or given.is_meta else given.detach()
    return found
