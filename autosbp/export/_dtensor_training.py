"""Source text of a training step in plain torch: the plan's program as data, and functions that run it on DTensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosbp.costmodel.recompute import Segments
from autosbp.graph.ir import Arg, DType, LogicalGraph, Node, Ref
from autosbp.plan.plan import Strategy
from autosbp.program.microbatch_loss import microbatch_loss_scaling
from autosbp.sbp.layout import S

_RUNTIME = '''

def place(tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """The tensor redistributed to these placements; a plain tensor counts as replicated.

    Only ops can make partial sums: where ``Partial`` is wanted, the tensor keeps its placement.
    """
    if not isinstance(tensor, DTensor):
        tensor = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return tensor.redistribute(
        mesh, [had if wanted.is_partial() else wanted for had, wanted in zip(tensor.placements, placements)]
    )


def run_op(line: tuple[Any, ...], values: dict[str, Any], mesh: DeviceMesh) -> None:
    """Run one op of the program on its inputs in the plan's placements."""
    name, op, args, kwargs = line
    wanted = iter(OPS[name][0] if name in OPS else ())

    def given(arg: Any) -> Any:
        if isinstance(arg, Value):
            found = values[arg.name]
            found = found[arg.index] if isinstance(found, (tuple, list)) else found
            return place(found, mesh, next(wanted)) if name in OPS else found
        return [given(item) for item in arg] if isinstance(arg, tuple) else arg

    args, kwargs = [given(arg) for arg in args], {key: given(arg) for key, arg in kwargs.items()}
    if name in GRADIENTS:
        gradients = iter(GRADIENTS[name])
        local = tree_map(lambda leaf: leaf.to_local(grad_placements=next(gradients)) if is_tensor(leaf) else leaf, args)
        values[name] = DTensor.from_local(op(*local, **kwargs), mesh, OPS[name][1][0], run_check=False)
        return
    try:
        values[name] = tree_map(unmasked, op(*args, **kwargs))
    except (NotImplementedError, RuntimeError, ValueError):
        if name not in OPS or not any(map(is_split, tree_leaves((args, kwargs)))):
            raise
        # DTensor has no rule for these placements, so every rank computes the whole op.
        whole = [Replicate()] * mesh.ndim
        local = tree_map(lambda leaf: whole_tensor(leaf, mesh), (args, kwargs))
        made = op(*local[0], **local[1])
        values[name] = tree_map(lambda leaf: DTensor.from_local(leaf, mesh, whole, run_check=False), made)


def unmasked(leaf: Any) -> Any:
    """The output of a lookup in a sharded embedding table, reduced immediately: its mask is valid only for this tensor."""
    if not isinstance(leaf, DTensor) or all(type(each) in (Partial, Replicate, Shard) for each in leaf.placements):
        return leaf
    known = [each if type(each) in (Partial, Replicate, Shard) else Replicate() for each in leaf.placements]
    return leaf.redistribute(leaf.device_mesh, known)


def is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, DTensor)


def is_split(leaf: Any) -> bool:
    return is_tensor(leaf) and not all(each.is_replicate() for each in leaf.placements)


def whole_tensor(leaf: Any, mesh: DeviceMesh) -> Any:
    return leaf.redistribute(mesh, [Replicate()] * mesh.ndim).to_local() if isinstance(leaf, DTensor) else leaf


def run(parameters: Mapping[str, DTensor], batch: Mapping[str, torch.Tensor], mesh: DeviceMesh) -> torch.Tensor:
    """The loss of one microbatch, replicated on every rank; ``batch`` is the whole microbatch on every rank."""
    device = next(iter(batch.values())).device
    values: dict[str, Any] = {**parameters, **{name: constant(name).to(device) for name in CONSTANTS}}
    values |= {name: batch[name] for name in INPUTS}
    at = 0
    while at < len(PROGRAM):
        stop, reads, makes = SEGMENTS.get(at, (at + 1, (), ()))
        if makes:
            made = checkpoint(run_segment, at, stop, makes, mesh, reads, *map(values.get, reads), use_reentrant=False)
            values.update(zip(makes, made))
        else:
            run_op(PROGRAM[at], values, mesh)
        at = stop
    loss = values[LOSS]
    return whole_tensor(loss[0] if isinstance(loss, (tuple, list)) else loss, mesh)


def run_segment(
    first: int, stop: int, makes: Sequence[str], mesh: DeviceMesh, names: Sequence[str], *given: Any
) -> tuple[Any, ...]:
    """Outputs of a checkpointed segment that later ops read."""
    values = dict(zip(names, given))
    for line in PROGRAM[first:stop]:
        run_op(line, values, mesh)
    return tuple(values[name] for name in makes)


def gather(parameters: Mapping[str, DTensor]) -> dict[str, DTensor]:
    """Parameters in the dtype and placements of their use, as autograd leaves; ``reduce`` reduces their gradients."""
    found = {name: tensor.detach().to(DTYPES[name]) for name, tensor in parameters.items()}
    return {
        name: tensor.redistribute(tensor.device_mesh, READ[name]).requires_grad_(TRAINED[name])
        for name, tensor in found.items()
    }


def reduce(parameters: Mapping[str, DTensor], gathered: Mapping[str, DTensor]) -> None:
    """Reduce the gradients of gathered parameters and add them to those of the stored parameters."""
    for name, tensor in parameters.items():
        found = gathered[name].grad
        if found is not None:
            found = found.to(tensor.dtype).redistribute(tensor.device_mesh, tensor.placements)
            tensor.grad = found if tensor.grad is None else tensor.grad + found


def trainable(state_dict: Mapping[str, torch.Tensor], mesh: DeviceMesh) -> dict[str, DTensor]:
    """Every parameter in its stored placements, for an optimizer; float32 master weights for half precision."""
    found = {name: tensor.detach().clone() for name, tensor in distribute(state_dict, mesh).items()}
    stored = {name: tensor.float() if HAS_MASTER_WEIGHTS else tensor for name, tensor in found.items()}
    return {name: tensor.requires_grad_(TRAINED[name]) for name, tensor in stored.items()}


def train_step(
    parameters: Mapping[str, DTensor],
    optimizer: torch.optim.Optimizer,
    batch: Mapping[str, torch.Tensor],
    mesh: DeviceMesh,
) -> torch.Tensor:
    """Train one step on a global batch, which is whole on every rank; returns the loss."""
    optimizer.zero_grad()
    total, gathered = torch.zeros(()), gather(parameters)
    for at in range(NUM_MICROBATCHES):
        part = slice(at * MICRO_BATCH, (at + 1) * MICRO_BATCH)
        loss = run(gathered, {name: tensor[part] for name, tensor in batch.items()}, mesh) * LOSS_SCALE
        loss.backward()
        total = total + loss.detach().cpu()
        if GATHERED_FOR_EACH_MICROBATCH or at == NUM_MICROBATCHES - 1:
            reduce(parameters, gathered)
            gathered = gather(parameters) if at < NUM_MICROBATCHES - 1 else gathered
    optimizer.step()
    return total


def constant(name: str) -> torch.Tensor:
    dtype, shape, text = CONSTANTS[name]
    data = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(shape).clone() if data else torch.empty(shape, dtype=dtype)
'''

TRAINING_IMPORTS = """import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint
"""


def can_train(graph: LogicalGraph, strategy: Strategy) -> bool:
    """Whether plain torch can run the plan: no stages, and no ops that are defined by autosbp or the model."""
    return strategy.pipeline is None and not any(
        node.op.split(".")[0] in ("autosbp", "function") for node in graph.nodes
    )


def training_lines(graph: LogicalGraph, strategy: Strategy, read: dict[str, str]) -> list[str]:
    """Source lines of a training step: the program of one microbatch as data, then the functions that run it.

    Args:
        graph: the graph in the plan's precision, with a symbolic batch.
        strategy: the plan's strategy, without stages.
        read: source text of the placements in which each parameter is used, by name.
    """
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    scale = microbatch_loss_scaling(graph, strategy.global_batch, strategy.micro_batch).scale
    has_master_weights = any(leaf.meta.dtype in ("bfloat16", "float16") for leaf in bound.trained)
    return [
        "",
        "class Value(NamedTuple):",
        '    """Output of an op, or a parameter, input or constant."""',
        "",
        "    name: str",
        "    index: int = 0",
        "",
        "",
        "# parameter: placements at its use",
        f"READ = {{{', '.join(f'{name!r}: {text}' for name, text in read.items())}}}",
        f"DTYPES = {{{', '.join(f'{leaf.name!r}: torch.{leaf.meta.dtype}' for leaf in bound.parameters)}}}",
        f"TRAINED = {{{', '.join(f'{leaf.name!r}: {leaf.trained}' for leaf in bound.parameters)}}}",
        f"HAS_MASTER_WEIGHTS = {has_master_weights}",
        f"INPUTS = {tuple(leaf.name for leaf in bound.inputs)!r}",
        f"LOSS = {bound.loss.name!r}",
        f"NUM_MICROBATCHES, MICRO_BATCH, LOSS_SCALE = {strategy.num_micro}, {strategy.micro_batch}, {scale!r}",
        f"GATHERED_FOR_EACH_MICROBATCH = {strategy.gather == 'use'}",
        "CONSTANTS = {",
        *(
            f"    {each.name!r}: (torch.{each.meta.dtype}, {each.meta.sizes!r}, {each.data!r}),"
            for each in bound.constants
        ),
        "}",
        "",
        "# (op's name, op, arguments), in order",
        "PROGRAM = [",
        *(f"    {_line(node)}," for node in bound.nodes),
        "]",
        "",
        "# convolutions that only split the batch run on local tensors: placements of the gradients of their inputs",
        f"GRADIENTS = {{{', '.join(f'{name!r}: {text}' for name, text in _local_gradients(bound, strategy).items())}}}",
        "",
        "# checkpointed segments, by index of the first op: (end, values that it reads, values that later ops read)",
        f"SEGMENTS = {_segments(bound, strategy.recompute)!r}",
        _RUNTIME,
    ]


def _local_gradients(bound: LogicalGraph, strategy: Strategy) -> dict[str, str]:
    """Source text of the placements of convolutions' gradients, for which DTensor has no rule on several mesh axes.

    On an axis that splits the batch, a replicated input has a partial gradient.
    """
    found = {}
    for node in bound.nodes:
        signature = strategy.signatures.get(node.name)
        if signature is None or not node.op.startswith("aten.conv") or len(node.outputs) != 1:
            continue
        data, *others = signature.ins
        splits_batch_alone = all(sbp.is_replicated or sbp == S(0) for sbp in (*data, *signature.outs[0]))
        if splits_batch_alone and all(sbp.is_replicated for layout in others for sbp in layout):
            whole = ", ".join("Partial()" if sbp.is_split else "Replicate()" for sbp in signature.outs[0])
            first = ", ".join("Shard(0)" if sbp.is_split else "Replicate()" for sbp in data)
            found[node.name] = f"({', '.join([f'({first},)', *[f'({whole},)'] * len(others)])},)"
    return found


def _line(node: Node) -> str:
    args = f"({''.join(f'{_source(arg)}, ' for arg in node.args)})"
    kwargs = ", ".join(f"{key!r}: {_source(arg)}" for key, arg in node.kwargs.items())
    return f"({node.name!r}, torch.ops.{node.op}, {args}, {{{kwargs}}})"


def _source(arg: Arg) -> str:
    """Source text of an argument of a bound graph."""
    if isinstance(arg, Ref):
        return f"Value({arg.name!r}, {arg.index})"
    if isinstance(arg, DType):
        return f"torch.{arg.name}"
    if isinstance(arg, tuple):
        return f"({''.join(f'{_source(item)}, ' for item in arg)})"
    if isinstance(arg, float):
        return f"float({str(arg)!r})"
    return repr(arg)


def _segments(bound: LogicalGraph, recompute: Segments) -> dict[int, tuple[int, tuple[str, ...], tuple[str, ...]]]:
    """Checkpointed segments by index of the first op: end index, values read from outside, and values read later.

    Ops between the first and the last one that depend on no parameter belong to the segment.
    """
    at = {node.name: place for place, node in enumerate(bound.nodes)}
    found: dict[int, tuple[int, tuple[str, ...], tuple[str, ...]]] = {}
    for first, last in recompute:
        start, stop = at[first], at[last] + 1
        inside = {node.name for node in bound.nodes[start:stop]}
        reads = _names(bound.nodes[start:stop], lambda name, inside=inside: name not in inside)
        makes = _names(bound.nodes[stop:], lambda name, inside=inside: name in inside)
        found[start] = (stop, reads, (*makes, *({bound.loss.name} & inside - set(makes))))
    return found


def _names(nodes: Sequence[Node], wanted: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ref.name for node in nodes for ref in node.refs() if wanted(ref.name)))
