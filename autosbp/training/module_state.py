"""Module state: what the ``state_dict`` of a user's module holds, as far as the captured graph does not say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from autosbp.graph.ir import LogicalGraph
from autosbp.graph.to_fx import torch_dtype


@dataclass(frozen=True, slots=True)
class ModuleState:
    """State of a module besides the values of the parameters that its loss reads.

    Args:
        dtypes: of these parameters, by their names in the module.
        others: stored buffers, and parameters that the loss does not read, by name; those on the meta device are left out.
    """

    dtypes: Mapping[str, torch.dtype]
    others: Mapping[str, torch.Tensor]

    @staticmethod
    def of(graph: LogicalGraph, module: torch.nn.Module | None) -> ModuleState:
        """The state of a captured module; without the module there are no others."""
        dtypes = {leaf.source: torch_dtype(leaf.meta.dtype) for leaf in graph.parameters}
        others: dict[str, torch.Tensor] = {}
        if module is not None:
            found = module.state_dict(keep_vars=True)
            known = {id(found[name]) for name in dtypes if name in found}
            for name, tensor in found.items():
                if id(tensor) not in known and not tensor.is_meta:
                    known.add(id(tensor))
                    others[name] = tensor
        return ModuleState(dtypes, others)
