"""DTensor: a Python module in plain torch that trains the plan with DTensors in its placements."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.errors import UnsupportedError
from autosbp.export._base import checked_graph, provenance_lines, required_graph
from autosbp.export._dtensor_training import TRAINING_IMPORTS, can_train, training_lines
from autosbp.graph.ir import LogicalGraph, Node, Parameter
from autosbp.graph.precision import FP8_MIXED
from autosbp.plan.plan import Plan, Strategy
from autosbp.sbp.layout import B, NdSbp, Sbp

_IMPORTS = """from collections.abc import Mapping

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
"""

_FUNCTIONS = '''
def make_mesh(device_type: str = DEVICE_TYPE) -> DeviceMesh:
    """The plan's mesh over all ranks of the process group."""
    return init_device_mesh(device_type, MESH_SHAPE, mesh_dim_names=MESH_AXES)


def parameter(state_dict: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """A parameter of the plan, sliced from the tensor of the model that contains it."""
    source, transforms, _ = PARAMETERS[name]
    tensor = state_dict[source]
    for transform in transforms:
        if transform[0] == "slice":
            _, dim, start, stop = transform
            tensor = tensor.narrow(dim, start, stop - start)
        elif transform[0] == "blocks":  # the same slice of each of count equal blocks
            _, dim, count, start, stop = transform
            tensor = tensor.unflatten(dim, (count, -1)).narrow(dim + 1, start, stop - start).flatten(dim, dim + 1)
        else:
            tensor = tensor.t()
    return tensor
'''

_DISTRIBUTE = '''

def distribute(state_dict: Mapping[str, torch.Tensor], mesh: DeviceMesh) -> dict[str, DTensor]:
    """Every parameter of the plan as a DTensor in its stored layout."""
    return {
        name: distribute_tensor(parameter(state_dict, name).contiguous(), mesh, placements)
        for name, (_, _, placements) in PARAMETERS.items()
    }
'''

_DISTRIBUTE_STAGE = '''

def distribute(state_dict: Mapping[str, torch.Tensor], mesh: DeviceMesh) -> dict[str, DTensor]:
    """The parameters of this rank's stage, each as a DTensor on the stage's mesh in its stored layout."""
    stage, inside = mesh.get_local_rank("stage"), mesh[MESH_AXES[1:]]
    names = {name for chunk in range(stage, len(CHUNKS), MESH_SHAPE[0]) for name in CHUNKS[chunk][1]}
    return {
        name: distribute_tensor(parameter(state_dict, name).contiguous(), inside, PARAMETERS[name][2])
        for name in PARAMETERS
        if name in names
    }
'''


def export_dtensor(
    plan: Plan,
    graph: LogicalGraph | None = None,
    calibration: Calibration | None = None,  # noqa: ARG001
) -> dict[str, str]:
    """Write ``parallelize.py``: the mesh, stored placements of parameters, placements of ops, and ``train_step``.

    ``train_step`` runs the model's program on DTensors, with the inputs of every op in the plan's placements. It is
    written if the graph is given, the plan has no stages, and all ops are torch's; otherwise the module only has
    ``distribute``.

    With the graph, parameters that are parts of one model tensor (a fused QKV) are sliced from it; without it,
    parameters are looked up by their own names. A plan with stages needs the graph: ``CHUNKS`` lists the ops and
    parameters of each chunk, the mesh has an additional stage axis, and ``distribute`` returns the parameters of a
    rank's stage.
    """
    if plan.precision == FP8_MIXED:
        raise UnsupportedError(f"dtensor does not multiply in float8; the plan's precision is {FP8_MIXED}")
    strategy = plan.strategy
    trained = None if graph is None else checked_graph(plan, graph)
    if trained is not None and not can_train(trained, strategy):
        trained = None
    axes = [(axis.name, axis.size) for axis in strategy.mesh.axes] or [("device", 1)]
    if strategy.pipeline is not None:
        axes.insert(0, ("stage", strategy.num_stages))
    lines = [
        *(f"# {line}" for line in provenance_lines(plan)),
        '"""Placements of every parameter and op on a named device mesh."""',
        "",
        _IMPORTS if trained is None else TRAINING_IMPORTS,
        f"PLAN_ID = {plan.plan_id!r}",
        f"DEVICE_TYPE = {plan.cluster.device.kind!r}",
        f"MESH_AXES = ({''.join(f'{name!r}, ' for name, _ in axes)})",
        f"MESH_SHAPE = ({''.join(f'{size}, ' for _, size in axes)})",
        "",
        "# parameter: (the model's tensor, slices to take of it, stored placement on each mesh axis)",
        "PARAMETERS = {",
        *_parameters(plan, strategy, graph),
        "}",
        "",
        "# op: (placements of each tensor input, placements of each output)",
        "OPS = {",
        *(
            f"    {name!r}: ({_group(signature.ins)}, {_group(signature.outs)}),"
            for name, signature in strategy.signatures.items()
        ),
        "}",
        "",
        "# segments of activation checkpointing: (first op, last op)",
        f"RECOMPUTE = {strategy.recompute!r}",
        "",
        "# whether the optimizer's state is on the host",
        f"OFFLOAD = {strategy.offload!r}",
        "",
        *_pipeline(plan, graph),
        _FUNCTIONS + (_DISTRIBUTE if strategy.pipeline is None else _DISTRIBUTE_STAGE),
        *([] if trained is None else training_lines(trained, strategy, _read(trained, strategy))),
    ]
    return {"parallelize.py": "\n".join(lines)}


def _pipeline(plan: Plan, graph: LogicalGraph | None) -> list[str]:
    strategy = plan.strategy
    if strategy.pipeline is None:
        return []
    graph = required_graph(plan, graph, "dtensor with stages")
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    chunks = PipelineProgram(bound, strategy).chunks
    return [
        f"SCHEDULE = {strategy.pipeline.schedule.name!r}",
        *([] if (lag := strategy.pipeline.weights_lag) is None else [f"WEIGHTS_LAG = {lag}"]),
        f"NUM_MICROBATCHES = {strategy.num_micro}",
        "",
        "# (ops, parameters) of each model chunk, in order; chunk c is on stage c % MESH_SHAPE[0]",
        "CHUNKS = [",
        *(f"    ({_names(chunk.graph.nodes)!r}, {_names(chunk.graph.parameters)!r})," for chunk in chunks),
        "]",
        "",
    ]


def _read(graph: LogicalGraph, strategy: Strategy) -> dict[str, str]:
    """Source text of each parameter's layout at its first reader, with ``P`` replaced by ``B``."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.name in strategy.signatures:
            for ref, layout in zip(node.refs(), strategy.signatures[node.name].ins, strict=True):
                if ref.name in strategy.parameters:
                    found.setdefault(ref.name, _layout(tuple(B if sbp.is_partial else sbp for sbp in layout)))
    return found | {name: _layout(layout) for name, layout in strategy.parameters.items() if name not in found}


def _names(named: Sequence[Node] | Sequence[Parameter]) -> tuple[str, ...]:
    return tuple(each.name for each in named)


def _parameters(plan: Plan, strategy: Strategy, graph: LogicalGraph | None) -> list[str]:
    leaves = {leaf.name: leaf for leaf in checked_graph(plan, graph).parameters} if graph is not None else {}
    lines = []
    for name, layout in strategy.parameters.items():
        leaf = leaves.get(name)
        source, transforms = (leaf.source, leaf.transforms) if leaf is not None else (name, ())
        lines.append(f"    {name!r}: ({source!r}, {tuple(map(tuple, transforms))!r}, {_layout(layout)}),")
    return lines


def _group(layouts: tuple[NdSbp, ...]) -> str:
    return f"({''.join(f'{_layout(layout)}, ' for layout in layouts)})"


def _layout(layout: NdSbp) -> str:
    return f"({''.join(f'{_placement(sbp)}, ' for sbp in layout) or 'Replicate(), '})"


def _placement(sbp: Sbp) -> str:
    """Source text of ``sbp.layout.to_torch``: I becomes ``Replicate``, which has the same value."""
    if sbp.is_split:
        return f"Shard({sbp.dim})"
    return f"Partial({sbp.reduction!r})" if sbp.is_partial else "Replicate()"
