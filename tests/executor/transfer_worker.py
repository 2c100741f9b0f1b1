"""Rank script: every transfer between the meshes of ``PAIRS``, forward and backward, against the whole tensor.

python -m tests.executor.transfer_worker RESULT.json
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.cross_mesh_resharding import TransferModel, TransferPlan
from autosbp.costmodel.network import NetworkModel
from autosbp.executor.cross_mesh_resharding import transfer
from autosbp.executor.runtime import IssuedCollective, Runtime
from autosbp.executor.submesh_runtime import submesh_runtime
from autosbp.program.placed_mesh import PlacedMesh, placed_mesh
from autosbp.sbp.boxing import layouts_of
from autosbp.sbp.layout import NdSbp, format_nd_sbp
from autosbp.testing.virtual_layouts import assert_shards_match, gradient_layout, random_shards
from autosbp.utils.processes import exit_rank

WORLD = (2, 2)


def placed(devices: list[int], *sizes: int) -> PlacedMesh:
    return placed_mesh(devices, sizes, WORLD)


PAIRS = {
    "{0,1} -> {2,3}": (placed([0, 1], 2), placed([2, 3], 2)),
    "{0} -> {1,2,3}": (placed([0], 1), placed([1, 2, 3], 3)),
    "{0,1,2} -> {3}": (placed([0, 1, 2], 3), placed([3], 1)),
    "{0,1} -> {0,1,2,3}": (placed([0, 1], 2), placed([0, 1, 2, 3], 4)),
    "{0,1} -> {0,1|2,3}": (placed([0, 1], 2), placed([0, 1, 2, 3], 2, 2)),
    "{1,2,3} -> {0,1}": (placed([1, 2, 3], 3), placed([0, 1], 2)),
}
SHAPES = ((12, 12), (1200, 12))  # messages of 1 KB, and of 100 KB on a slow network: other middle layouts


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    here = dist.get_rank()
    results: dict[str, int] = {}
    for name, (src_mesh, dst_mesh) in PAIRS.items():
        ends = [submesh_runtime(mesh, here, torch.device("cpu"), []) for mesh in (src_mesh, dst_mesh)]
        model = TransferModel(NetworkModel(load_cluster("local:2x2")))
        count = 0
        for shape in SHAPES[:1] if dst_mesh.ndim > 1 else SHAPES:
            plans = planned(model, src_mesh, dst_mesh, shape)
            outcomes = [run(plan, ends[0], ends[1], here) for plan in plans]
            everyone: list[list[Outcome]] = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(everyone, outcomes)
            for at, plan in enumerate(plans) if here == 0 else ():
                check(plan, [outcomes[at] for outcomes in everyone])
                count += 1
        results[name] = count
    if here == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    exit_rank()


def planned(
    model: TransferModel, src_mesh: PlacedMesh, dst_mesh: PlacedMesh, shape: tuple[int, ...]
) -> list[TransferPlan]:
    """Between all pairs of layouts; every rank plans some."""
    layouts = list(product(layouts_of(shape, src_mesh, True), layouts_of(shape, dst_mesh, True)))
    mine = layouts[dist.get_rank() :: dist.get_world_size()]
    parts: list[list[TransferPlan]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, [model.plan(src, src_mesh, dst, dst_mesh, shape, "float64") for src, dst in mine])
    return [parts[at % len(parts)][at // len(parts)] for at in range(len(layouts))]


Outcome = tuple[torch.Tensor | None, torch.Tensor | None, list[tuple[int, int, int]], list[tuple[int, int, int]]]


def values(plan: TransferPlan) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """The tensor, a gradient of it, and the parts of both where they start; the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    whole, gradient = (torch.randn(plan.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    parts = random_shards(whole, plan.src, plan.src_mesh, generator)
    return whole, gradient, parts, random_shards(gradient, gradient_layout(plan.dst), plan.dst_mesh, generator)


def run(plan: TransferPlan, source: Runtime | None, target: Runtime | None, here: int) -> Outcome:
    """This rank's result, the gradient of its part, and the messages that it sent between the meshes, each way."""
    _, _, parts, incoming = values(plan)
    leaf = None if source is None else parts[source.rank].requires_grad_()
    issued: list[IssuedCollective] = []
    out, token = transfer(leaf, plan, source, target, here, torch.device("cpu"), issued)
    there = sent(issued, here)
    issued.clear()
    roots = [] if token is None else [token]
    grads = [torch.zeros(0) for _ in roots]
    if out is not None and target is not None:
        roots, grads = [out, *roots], [incoming[target.rank], *grads]
    if roots:
        torch.autograd.backward(roots, grads)
    return None if out is None else out.detach(), None if leaf is None else leaf.grad, there, sent(issued, here)


def sent(issued: list[IssuedCollective], here: int) -> list[tuple[int, int, int]]:
    assert all(call.kind == "p2p" and here in call.ranks for call in issued)
    return [(call.ranks[0], call.ranks[1], call.num_bytes) for call in issued if call.ranks[0] == here]


def check(plan: TransferPlan, outcomes: list[Outcome]) -> None:
    whole, gradient, _, _ = values(plan)
    what = (
        f"{format_nd_sbp(plan.src)} on {plan.src_mesh.devices} -> {format_nd_sbp(plan.dst)} on {plan.dst_mesh.devices}"
    )
    held([outcome[0] for outcome in outcomes], plan.dst, plan.dst_mesh, whole, what)
    held(
        [outcome[1] for outcome in outcomes], gradient_layout(plan.src), plan.src_mesh, gradient, f"gradient of {what}"
    )
    for phase, place in (("forward", 2), ("backward", 3)):
        measured = sorted(message for outcome in outcomes for message in outcome[place])  # type: ignore[union-attr]
        planned = sorted((*key, num_bytes) for key, num_bytes in plan.message_bytes(phase).items())
        assert measured == planned, f"{what}: {measured} were sent {phase}, not {planned}"


def held(parts: list[torch.Tensor | None], layout: NdSbp, mesh: PlacedMesh, whole: torch.Tensor, what: str) -> None:
    """The ranks of the mesh hold the tensor, others nothing."""
    there = [parts[device] for device in mesh.devices]
    assert all(part is not None for part in there), what
    assert all(part is None for device, part in enumerate(parts) if device not in mesh.devices), what
    assert_shards_match([part for part in there if part is not None], layout, mesh, whole, what)


if __name__ == "__main__":
    main()
