"""Turn the skeleton of an ONNX model into a training graph, through torch as for any other model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from autosbp.errors import InputError, UnsupportedError
from autosbp.graph._tracing import FakeTensors
from autosbp.graph.capture import capture
from autosbp.graph.ir import Arg, LogicalGraph, Ref
from autosbp.graph.onnx._linears import fuse_linears
from autosbp.graph.onnx._module import CROSS_ENTROPY, SQUARED_DIFFERENCE, OnnxModule
from autosbp.graph.onnx._skeleton import OnnxInput, OnnxTensor, Skeleton
from autosbp.graph.to_fx import torch_dtype
from autosbp.utils.resource_limits import memory_limit

_MOST_BYTES = 8 * 2**30
_EXAMPLE_BATCH = 4
_MOST_NAME = 200


def capture_skeleton(skeleton: Skeleton, name: str) -> LogicalGraph:
    """Implementation of ``capture_onnx``."""
    skeleton = fuse_linears(skeleton)
    with memory_limit(_MOST_BYTES):
        module = OnnxModule(skeleton)
        inputs = {f"x{at}": _example(one, at) for at, one in enumerate(skeleton.inputs)}
        names = {f"x{at}": one.name for at, one in enumerate(skeleton.inputs)}
        loss = _loss_input(module, _first_output(module, inputs))
        highs = {}
        if loss is not None:
            key = f"x{len(inputs)}"
            inputs[key], names[key], high = loss
            if high is not None:
                highs[key] = high
        provenance = {"source": f"ONNX, opset {skeleton.opset}, by {skeleton.producer}", "loss": module.loss}
        try:
            graph = capture(module, inputs, name=name, input_high=highs, provenance=provenance)
        except UnsupportedError as error:
            raise _explain_fixed_batch(skeleton, error) from error
    return _renamed(graph, module.sources, names)


def _example(one: OnnxInput, at: int) -> torch.Tensor:
    field = f"model.graph.input[{at}]"
    if not one.shape:
        raise InputError(field, one.name, "expected a tensor whose dim 0 is the batch")
    sizes = [dim for dim in one.shape[1:] if isinstance(dim, int)]
    if len(sizes) + 1 < len(one.shape):
        limit = "expected fixed sizes for all dims except the batch (dim 0); export with fixed sizes"
        raise InputError(f"{field}.shape", list(one.shape), limit)
    return torch.empty((_EXAMPLE_BATCH, *sizes), dtype=torch_dtype(one.dtype), device="meta")


def _first_output(module: OnnxModule, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A fake tensor of the model's first output, for a batch of ``_EXAMPLE_BATCH``."""
    fakes = FakeTensors()
    copy: Any = fakes.module(module)
    try:
        with fakes.mode:
            found = copy.outputs(*(fakes.tensor(tensor) for tensor in inputs.values()))[0]
    except InputError as error:
        raise _explain_fixed_batch(module.skeleton, error) from error
    if not isinstance(found, torch.Tensor):
        raise InputError("model.graph.output[0]", module.skeleton.outputs[0], "expected an output that depends on data")
    return found


def _loss_input(module: OnnxModule, found: torch.Tensor) -> tuple[torch.Tensor, str, int | None] | None:
    """Choose the loss: None for the first output, else example, name and bound of a new input to compare with."""
    if found.is_floating_point() and found.dim() == 0:
        return None
    shape = list(found.shape)
    if not found.is_floating_point() or shape[0] != _EXAMPLE_BATCH:
        limit = (
            "expected a scalar loss, or floats whose dim 0 is the batch; export the model with its loss as first output"
        )
        raise InputError("model.graph.output[0]", f"{shape} of {found.dtype} at batch {_EXAMPLE_BATCH}", limit)
    taken = {one.name for one in module.skeleton.inputs}
    if len(shape) in (2, 3) and shape[-1] > 1:
        module.loss = CROSS_ENTROPY
        labels = torch.empty(shape[:-1], dtype=torch.int64, device="meta")
        return labels, "labels" if "labels" not in taken else "labels_", shape[-1]
    module.loss = SQUARED_DIFFERENCE
    target = torch.empty(shape, dtype=found.dtype, device="meta")
    return target, "target" if "target" not in taken else "target_", None


def _explain_fixed_batch(skeleton: Skeleton, error: Exception) -> Exception:
    """The error, or, if the file fixes the batch size, an error that asks for a dynamic batch."""
    fixed = next((one for one in skeleton.inputs if isinstance(one.shape[0], int)), None)
    if fixed is None:
        return error
    limit = f"expected a named dim 0 for the batch; export with a dynamic batch dim ({error})"
    return InputError(f"model.graph.input.{fixed.name}", list(fixed.shape), limit)


def _renamed(graph: LogicalGraph, sources: Mapping[str, OnnxTensor], inputs: Mapping[str, str]) -> LogicalGraph:
    """Rename parameters and inputs ``p0``, ``x0`` and so on to the names of the file."""
    taken = {leaf.name for leaf in graph.constants} | {node.name for node in graph.nodes}
    table: dict[str, str] = {}
    parameters = []
    for leaf in graph.parameters:
        tensor = sources[leaf.source]
        stem = tensor.name + (".t" if tensor.transposed else "") + leaf.name.removeprefix(leaf.source)
        table[leaf.name] = _unused_name(stem, taken)
        transforms = ((("t",),) if tensor.transposed else ()) + leaf.transforms
        parameters.append(replace(leaf, name=table[leaf.name], source=tensor.name or "_", transforms=transforms))
    for key, name in inputs.items():
        table[key] = _unused_name(name, taken)

    def rename(arg: Arg) -> Arg:
        return Ref(table.get(arg.name, arg.name), arg.index) if isinstance(arg, Ref) else arg

    return replace(
        graph,
        parameters=tuple(parameters),
        inputs=tuple(replace(leaf, name=table[leaf.name]) for leaf in graph.inputs),
        nodes=tuple(node.map_args(rename) for node in graph.nodes),
        loss=rename(graph.loss),
    )


def _unused_name(name: str, taken: set[str]) -> str:
    """An unused IR name derived from ``name``; it is added to ``taken``."""
    stem = re.sub(r"[^A-Za-z0-9_.]", "_", name)[:_MOST_NAME]
    stem = stem if re.match(r"[A-Za-z_]", stem) else f"_{stem}"
    found, count = stem, 1
    while found in taken:
        count += 1
        found = f"{stem}_{count}"
    taken.add(found)
    return found
