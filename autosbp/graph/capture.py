"""``capture``: turn a torch module into a logical graph through ``torch.export``, without data.

No weight is ever materialised: parameters move to the meta device as they are registered, so capturing a model of any
size needs only the memory of its code. Buffers keep their values, because they become constants.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim, export
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from autosbp.errors import UnsupportedError
from autosbp.graph._capture_errors import depends_on_values, explain_failure
from autosbp.graph._exported_program import functionalize
from autosbp.graph._function_capture import OpaqueCall, functions_as_ops
from autosbp.graph._importer import BATCH, Importer
from autosbp.graph._tracing import FakeTensors, symbolic_len
from autosbp.graph._value_guards import value_guards
from autosbp.graph.huggingface._scans import loops_as_scans
from autosbp.graph.index_bounds import infer_input_bounds
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.module_check import CHECKED, ModuleCall, check_against_module
from autosbp.graph.passes import canonicalise

_log = logging.getLogger(__name__)


LARGE_BYTES = 2**30
"""Size from which a tensor is created on the meta device: far beyond the constants that a graph may hold."""


class _LargeTensorsOnMeta(TorchFunctionMode):
    """While active, tensors of at least ``LARGE_BYTES`` are created on the meta device: no machine need hold a parameter."""

    _SIZED = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in self._SIZED and given.get("device") in (None, "cpu", torch.device("cpu")) and "out" not in given:
            meta = func(*args, **{**given, "device": "meta"})
            if meta.numel() * meta.element_size() >= LARGE_BYTES:
                return meta
        return func(*args, **given)


@contextmanager
def meta_parameters() -> Iterator[None]:
    """While active, every parameter that a module registers moves to the meta device; shared ones stay shared."""
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
        with _LargeTensorsOnMeta():
            yield
    finally:
        torch.nn.Module.register_parameter = original  # type: ignore[method-assign]


def build_on_meta(factory: Callable[[], torch.nn.Module], dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Build a module in training mode, with meta-device parameters and ``dtype`` as the default dtype."""
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
    check: bool = True,
) -> LogicalGraph:
    """Capture ``module(**example_inputs)``, whose first output must be the scalar training loss.

    Args:
        module: any module; parameters may be real or on the meta device.
        example_inputs: keyword tensors whose dim 0 is the batch (of equal size, at least 2); it stays symbolic.
        name: the graph's name.
        input_high: exclusive upper bounds of integer inputs that cannot be derived from the graph
            (``graph.index_bounds``).
        settings: keyword arguments of ``module`` that are not tensors; their effect is part of the graph.
        provenance: free text kept in the document, such as the config's origin.
        check: compare the graph with the module (``graph.module_check``); the provenance says what was found.

    Raises:
        UnsupportedError: for data-dependent shapes, control flow, mutated inputs or ops that cannot be imported, and for
            a graph that is not the module.
    """
    noted = dict(provenance or {})
    program, functions = _traced_with_guards(name, module, example_inputs, settings or {}, noted)
    importer = Importer(module, program, dict(input_high or {}), functions)
    captured = infer_input_bounds(
        canonicalise(importer.run(name, noted), importer.lines), _largest_values(example_inputs)
    )
    found = "not checked against the module, as asked"
    if check:
        call = ModuleCall(module, example_inputs, dict(settings or {}), dict(input_high or {}))
        found = check_against_module(captured, call)
    captured = replace(captured, provenance={**captured.provenance, CHECKED: found})
    _log.info("captured %s: %d ops, %d parameters", name, len(captured.nodes), len(captured.parameters))
    return captured


def _traced_with_guards(
    name: str,
    module: torch.nn.Module,
    example_inputs: Mapping[str, torch.Tensor],
    settings: Mapping[str, Any],
    noted: dict[str, str],
) -> tuple[Any, Mapping[str, OpaqueCall]]:
    """Trace; where the model branches on values, once more with ``value_guards``, which ``noted`` then says."""
    failure: Exception
    try:
        return _traced(module, example_inputs, settings)
    except UnsupportedError:
        raise
    except Exception as error:  # export raises errors of many types
        failure = error
    if depends_on_values(failure):
        try:
            with value_guards() as guards:
                found = _traced(module, example_inputs, settings)
            if guards.left_out:
                noted["value_checks"] = f"left out, taken to pass: {'; '.join(guards.left_out)}"
            return found
        except Exception as error:  # as above
            error.__context__ = None  # the first failure, which is settled
            failure = error
    raise UnsupportedError(explain_failure(name, failure)) from failure


def _traced(
    module: torch.nn.Module, example_inputs: Mapping[str, torch.Tensor], settings: Mapping[str, Any]
) -> tuple[Any, Mapping[str, OpaqueCall]]:
    """The functional exported program, and the calls of autograd functions in it."""
    fakes = FakeTensors()
    inputs = {key: fakes.tensor(tensor) for key, tensor in example_inputs.items()}
    batch = Dim(BATCH, min=2)
    with warnings.catch_warnings(), symbolic_len(module), loops_as_scans(), functions_as_ops() as functions:
        warnings.simplefilter("ignore")
        arguments = {**inputs, **settings}
        shapes = {key: {0: batch} if key in inputs else None for key in arguments}
        exported = export(fakes.module(module), (), arguments, dynamic_shapes=shapes, strict=False)
        return functionalize(exported), functions.calls


def _largest_values(inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The largest value of each integer example that has values."""
    integers = {
        name: tensor for name, tensor in inputs.items() if not (tensor.is_floating_point() or tensor.is_complex())
    }
    return {
        name: int(tensor.max()) for name, tensor in integers.items() if tensor.device.type != "meta" and tensor.numel()
    }
