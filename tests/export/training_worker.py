"""Ranks that train exported DTensor modules; rank 0 compares with one device. ``FOLDER`` has a folder for each case."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.executor.single_device_reference import SingleDeviceReference
from autosbp.graph.serialize import from_dict
from autosbp.utils.processes import exit_rank

STEPS, LEARNING_RATE = 2, 1e-3


def train(folder: Path) -> dict[str, float]:
    """Largest relative errors of the losses and of the parameters after the steps; on rank 0 only."""
    module: dict[str, Any] = {}
    exec(compile((folder / "parallelize.py").read_text(), "parallelize.py", "exec"), module)  # noqa: S102
    graph = from_dict(json.loads((folder / "graph.json").read_text()))
    shapes, batch_size = (
        json.loads((folder / "shapes.json").read_text()),
        module["MICRO_BATCH"] * module["NUM_MICROBATCHES"],
    )
    draw = torch.Generator().manual_seed(0)
    state = {name: 0.05 * torch.randn(shape, dtype=torch.float64, generator=draw) for name, shape in shapes.items()}
    bound = graph.bind(**dict.fromkeys(graph.symbols, batch_size))
    batch = {
        leaf.name: torch.randint(0, leaf.high or 2, leaf.meta.sizes, generator=draw)
        if not leaf.meta.is_float
        else torch.randn(leaf.meta.sizes, dtype=torch.float64, generator=draw)
        for leaf in bound.inputs
    }
    mesh = module["make_mesh"]()
    parameters = module["trainable"](state, mesh)
    trained = [tensor for tensor in parameters.values() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    losses = [float(module["train_step"](parameters, optimizer, batch, mesh)) for _ in range(STEPS)]
    found = {name: tensor.full_tensor() for name, tensor in parameters.items()}
    for name, tensor in parameters.items():
        assert tensor.placements == module["PARAMETERS"][name][2], name
    if dist.get_rank():
        return {}
    whole = {leaf.name: module["parameter"](state, leaf.name).contiguous() for leaf in graph.parameters}
    reference = SingleDeviceReference(graph, whole, global_batch=batch_size, learning_rate=LEARNING_RATE)
    wanted = [float(reference.step(batch)) for _ in range(STEPS)]
    worst = max(_error(found[name], reference.parameters[name].detach()) for name in found)
    return {"loss": max(abs(one / two - 1) for one, two in zip(losses, wanted, strict=True)), "parameters": worst}


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))


def main() -> None:
    dist.init_process_group("gloo")
    folder = Path(sys.argv[1])
    errors = {case.name: train(case) for case in sorted(folder.iterdir()) if case.is_dir()}
    if dist.get_rank() == 0:
        (folder / "errors.json").write_text(json.dumps(errors))
    exit_rank()


if __name__ == "__main__":
    main()
