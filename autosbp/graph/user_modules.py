"""``package.module:factory``: capture a user's own torch model.

The factory is called without arguments. It returns ``(module, example_inputs)``, or an object with these two attributes
and, to bound integer inputs, ``input_high``. The module's parameters stay on the meta device.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from autosbp.errors import AutosbpError, InputError
from autosbp.graph.capture import capture, meta_parameters
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.module_check import ModuleCall

_RETURNS = "the factory must return (module, example_inputs) or an object with these attributes"


def capture_factory(model: str, check: bool = True) -> LogicalGraph:
    """Import the module, call the factory and capture the returned model; see the module's docstring.

    Args:
        check: compare the graph with the model (``graph.module_check``).
    """
    call = factory_call(model)
    return capture(
        call.module,
        call.example,
        name=model.partition(":")[2],
        input_high=call.highs,
        provenance={"source": model},
        check=check,
    )


def factory_call(model: str) -> ModuleCall:
    """Import the module and call the factory: the model, in training mode, with its example inputs."""
    with meta_parameters():
        return initialised_factory_call(model)


def initialised_factory_call(model: str) -> ModuleCall:
    """Like ``factory_call``, with the parameters as the factory initialises them."""
    module, inputs, high = _unpack(model, call_named("model", model))
    return ModuleCall(module.train(), inputs, {}, dict(high or {}))


def call_named(field: str, path: str) -> Any:
    """What the callable ``package.module:name`` returns; the working directory is on the module path.

    Raises:
        InputError: ``field``, if it cannot be imported or called.
    """
    with _cwd_on_sys_path():
        factory = _find(field, path)
        try:
            return factory()
        except AutosbpError:
            raise
        except Exception as error:
            raise InputError(field, path, f"the factory raised {type(error).__name__}: {error}") from error


@contextmanager
def _cwd_on_sys_path() -> Iterator[None]:
    """Put the working directory on the module path: ``python -m`` does so, a console script does not."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _find(field: str, text: str) -> Callable[[], Any]:
    path, _, name = text.partition(":")
    try:
        factory = reduce(getattr, name.split("."), importlib.import_module(path))
    except Exception as error:
        raise InputError(field, text, f"expected an importable factory ({type(error).__name__}: {error})") from error
    if not callable(factory):
        raise InputError(field, text, f"{name} is a {type(factory).__name__}; expected a callable")
    return factory


def _unpack(
    model: str, returned: object
) -> tuple[torch.nn.Module, Mapping[str, torch.Tensor], Mapping[str, int] | None]:
    if isinstance(returned, tuple) and len(returned) == 2:
        module, inputs, high = *returned, None
    else:
        module, inputs = getattr(returned, "module", None), getattr(returned, "example_inputs", None)
        high = getattr(returned, "input_high", None)
    if not isinstance(module, torch.nn.Module):
        raise InputError(model, type(returned).__name__, f"{_RETURNS}; module must be a torch.nn.Module")
    if not isinstance(inputs, Mapping) or not inputs:
        found = type(inputs).__name__
        raise InputError(f"{model}.example_inputs", found, f"{_RETURNS}; example_inputs must be a mapping of tensors")
    for name, tensor in inputs.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
            found = type(tensor).__name__
            raise InputError(f"{model}.example_inputs", f"{name}: {found}", "expected a tensor with a batch dim")
    sizes = {name: tensor.shape[0] for name, tensor in inputs.items()}
    if len(set(sizes.values())) > 1 or min(sizes.values()) < 2:
        raise InputError(
            f"{model}.example_inputs", sizes, "expected the same batch size, at least 2, in dim 0 of all inputs"
        )
    return module, inputs, high
