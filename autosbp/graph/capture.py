"""``capture``: a torch module becomes a logical graph through ``torch.export``, without data (DESIGN section 4).

No weight is ever materialised: parameters are put on the meta device as they are registered, so a model of any size is
captured in the memory of its code. Buffers keep their values, because they become constants.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.export import Dim, export
from torch.utils.weak import WeakIdKeyDictionary

from autosbp.errors import UnsupportedError
from autosbp.graph._importer import BATCH, Importer
from autosbp.graph._program import prepared
from autosbp.graph._refusals import explain_failure
from autosbp.graph._tracing import Fakes, symbolic_len
from autosbp.graph.bounds import with_bounds
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.passes import canonicalise


@contextmanager
def meta_parameters() -> Iterator[None]:
    """Within, every parameter that a module registers is moved to the meta device; shared ones stay shared."""
    original = torch.nn.Module.register_parameter
    moved = WeakIdKeyDictionary()

    def register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            if param not in moved:
                moved[param] = torch.nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            param = moved[param]
        original(module, name, param)

    torch.nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = original  # type: ignore[method-assign]


def build_on_meta(factory: Callable[[], torch.nn.Module], dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Call ``factory`` with parameters on the meta device and ``dtype`` as the default; training mode."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with meta_parameters():
            return factory().train()
    finally:
        torch.set_default_dtype(previous)


def capture(
    module: torch.nn.Module,
    example_inputs: Mapping[str, torch.Tensor],
    *,
    name: str,
    input_high: Mapping[str, int] | None = None,
    settings: Mapping[str, bool | int | float | str | None] | None = None,
    provenance: Mapping[str, str] | None = None,
) -> LogicalGraph:
    """Capture ``module(**example_inputs)``, whose first output must be the scalar training loss.

    Args:
        module: any module; parameters may be real or on the meta device.
        example_inputs: keyword tensors whose dim 0 is the batch (of equal size, at least 2); kept symbolic.
        name: the graph's name.
        input_high: exclusive upper bounds of integer inputs, where the graph does not tell (``graph.bounds``).
        settings: keyword arguments of ``module`` that are no tensors; their effect is part of the graph.
        provenance: free text kept in the document, such as the config's origin.

    Raises:
        UnsupportedError: for data-dependent shapes, control flow, changed inputs or ops that cannot be imported.
    """
    fakes = Fakes()
    inputs = {key: fakes.tensor(tensor) for key, tensor in example_inputs.items()}
    batch = Dim(BATCH, min=2)
    try:
        with warnings.catch_warnings(), symbolic_len(module):
            warnings.simplefilter("ignore")
            arguments = {**inputs, **(settings or {})}
            shapes = {key: {0: batch} if key in inputs else None for key in arguments}
            program = prepared(export(fakes.module(module), (), arguments, dynamic_shapes=shapes, strict=False))
    except Exception as error:  # export fails with errors of many types
        raise UnsupportedError(explain_failure(name, error)) from error
    graph = Importer(module, program, dict(input_high or {})).run(name, dict(provenance or {}))
    return with_bounds(canonicalise(graph))
