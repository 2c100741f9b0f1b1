"""What ranks do with an exported module of layouts: the begin of a program, to which a test adds what it checks."""

from __future__ import annotations

DISTRIBUTES = """
import json, sys
from pathlib import Path

import torch
import torch.distributed as dist

from autosbp.utils.processes import exit_rank

source, shapes = Path(sys.argv[1]).read_text(), json.loads(Path(sys.argv[2]).read_text())
plan = {}
exec(compile(source, "parallelize.py", "exec"), plan)
dist.init_process_group("gloo")
state = {name: torch.arange(float(torch.Size(shape).numel())).reshape(shape) for name, shape in shapes.items()}
tensors = plan["distribute"](state, plan["make_mesh"]())
for name, tensor in tensors.items():
    assert torch.equal(tensor.full_tensor(), plan["parameter"](state, name)), name
"""
"""Distributes a state dict; ``tensors`` gather to what each rank would have of it. Ends inside the loop over them."""
