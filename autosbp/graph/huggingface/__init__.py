"""Hugging Face models from a config file, built with transformers' own classes: no remote code, no weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autosbp.errors import InputError, UnsupportedError
from autosbp.graph.ir import FLOATS, LogicalGraph
from autosbp.utils.resource_limits import memory_limit

_MOST_BYTES = 8 * 2**30

if TYPE_CHECKING:
    import torch

    from autosbp.graph.huggingface._classes import TrainingClass
    from autosbp.graph.huggingface._inputs import ExampleInputs


def capture_hf_config(
    config: Mapping[str, Any],
    seq_len: int | None = None,
    name: str | None = None,
    image_size: int | None = None,
    check: bool = True,
) -> LogicalGraph:
    """Capture the training loss of the model that ``config`` describes.

    Args:
        config: the content of a ``config.json``. ``architectures`` names the class; without it, the usual class of the
            ``model_type`` is used. ``dtype`` (or ``torch_dtype``) gives the dtype.
        seq_len: tokens per sequence; by default the config's maximum, at most ``DEFAULT_SEQ_LEN``.
        name: the graph's name; by default the model type.
        image_size: pixels per side of images; by default the config's.
        check: compare the graph with the module where that is small enough (``graph.module_check``).

    Raises:
        InputError: for an unknown model type, a class without a training loss, or a size beyond the config's limits.
        UnsupportedError: if transformers is not installed, or the model cannot be captured.
    """
    chosen, hf_config, dtype = _training_class(config)
    import transformers

    from autosbp.graph.capture import build_on_meta
    from autosbp.graph.huggingface._config import rejected_config_error
    from autosbp.graph.huggingface._experts import use_expert_op
    from autosbp.graph.huggingface._inputs import example_inputs
    from autosbp.graph.huggingface._sizes import RequestedSizes, set_image_size

    set_image_size(hf_config, image_size)
    with memory_limit(_MOST_BYTES):  # meta parameters need none, but a million layers or a large position table do
        try:
            module = build_on_meta(lambda: chosen.cls._from_config(hf_config, dtype=dtype), dtype)
        except Exception as error:  # modules check their sizes with errors of many types
            raise rejected_config_error(hf_config.model_type, error) from error
        use_expert_op(module)
        provenance = {"source": f"transformers {transformers.__version__} {type(module).__name__}"}
        if chosen.note:
            provenance["class"] = chosen.note
        return _capture_with_fallback(
            lambda full: example_inputs(
                module, hf_config, chosen, RequestedSizes(seq_len, image_size), dtype, full=full
            ),
            module,
            name or hf_config.model_type,
            provenance,
            check,
        )


def build_hf_module(config: Mapping[str, Any], image_size: int | None = None) -> torch.nn.Module:
    """The module that ``config`` describes, in training mode, with the values that transformers initialises it with."""
    chosen, hf_config, dtype = _training_class(config)
    from autosbp.graph.huggingface._sizes import set_image_size

    set_image_size(hf_config, image_size)
    module: torch.nn.Module = chosen.cls._from_config(hf_config, dtype=dtype)
    return module.train()


def _training_class(config: Mapping[str, Any]) -> tuple[TrainingClass, Any, torch.dtype]:
    """The class that trains the config, the config object, and the dtype."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UnsupportedError("a Hugging Face model requires the extra hf: pip install 'autosbp[hf]'") from error
    from autosbp.graph.huggingface._classes import training_class
    from autosbp.graph.huggingface._config import read_config

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    hf_config = read_config(config)
    return training_class(hf_config, config), hf_config, getattr(torch, _dtype(config))


def _capture_with_fallback(
    inputs: Callable[[bool], ExampleInputs], module: Any, name: str, provenance: Mapping[str, str], check: bool
) -> LogicalGraph:
    """Capture with as few inputs as possible; if that fails, with every kind of data that the model takes."""
    few = inputs(False)
    try:
        return _capture_with(few, module, name, provenance, check)
    except UnsupportedError:
        more = inputs(True)
        if more.tensors.keys() == few.tensors.keys():
            raise
        try:
            return _capture_with(more, module, name, provenance, check)
        except UnsupportedError:
            pass
        raise


def _capture_with(
    inputs: ExampleInputs, module: Any, name: str, provenance: Mapping[str, str], check: bool
) -> LogicalGraph:
    from autosbp.graph.capture import capture

    return capture(
        module,
        inputs.tensors,
        name=name,
        input_high=inputs.highs,
        settings=inputs.settings,
        provenance={**provenance, **inputs.sizes},
        check=check,
    )


def _dtype(config: Mapping[str, Any]) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in FLOATS:
        raise InputError("config.dtype", name, f"expected one of {', '.join(sorted(FLOATS))}")
    return name
