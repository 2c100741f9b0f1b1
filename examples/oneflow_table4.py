"""OneFlow's programming interface, Table 4 (arXiv 2110.15032, section 3.4), written with ``autosbp.eager``.

    python examples/oneflow_table4.py

The first product is data parallel on ranks 0 and 1, the second model parallel on ranks 2 and 3, with boxing from one
placement to the other between them. Exits with 1 if anything differs from the paper or from one device.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from common import Report, print_flush, run_on_ranks, table

from autosbp import eager
from autosbp.eager import PlacedTensor, Placement
from autosbp.sbp.layout import format_nd_sbp

PAPER = {
    "A0": ((0, 1), "S0", "line 9: split(0)"),
    "B0": ((0, 1), "B", "line 10: broadcast"),
    "Y0": ((0, 1), "S0", "line 11: inferred, split(0)"),
    "Y0 on P1": ((2, 3), "B", "line 13: to_consistent, broadcast"),
    "B1": ((2, 3), "S1", "line 14: split(1)"),
    "Y2": ((2, 3), "S1", "line 15: Table 1, split(1)"),
}


def program() -> Report:
    """Table 4, line by line, on one rank."""
    torch.manual_seed(0)
    p0, p1 = Placement([0, 1]), Placement([2, 3])
    a0 = eager.randn(4, 5, placement=p0, sbp="S0", requires_grad=True)
    b0 = eager.randn(5, 8, placement=p0, sbp="B", requires_grad=True)
    y0: Any = torch.matmul(a0, b0)
    with eager.recording() as sent:
        moved = y0.to_layout(p1, "B")
    b1 = eager.randn(8, 6, placement=p1, sbp="S1", requires_grad=True)
    y2: Any = torch.matmul(moved, b1)
    loss: Any = y2.square().sum()
    loss.backward()
    values = {"A0": a0, "B0": b0, "Y0": y0, "Y0 on P1": moved, "B1": b1, "Y2": y2}

    torch.manual_seed(0)
    whole = [torch.randn(shape, requires_grad=True) for shape in ((4, 5), (5, 8), (8, 6))]
    result = whole[0] @ whole[1] @ whole[2]
    torch.autograd.backward(result.square().sum())
    errors = {"Y2": error(y2.detach(), result.detach())}
    for name, leaf, one in zip(("A0", "B0", "B1"), (a0, b0, b1), whole, strict=True):
        errors[f"gradient of {name}"] = error(leaf.grad, one.grad)
    messages = [(call.kind, call.num_bytes, call.ranks) for call in sent]
    rows = [
        (name, list(value.placement.ranks), format_nd_sbp(value.layout), *everyone(shape_of(value)), PAPER[name][2])
        for name, value in values.items()
    ]
    head = ["value", "ranks", "layout", *(f"on rank {rank}" for rank in range(4)), "the paper's Table 4"]
    moves = {call for calls in everyone(messages) for call in calls}
    text = (
        table(head, rows)
        + "\nto_layout from S0 on ranks 0, 1 to B on ranks 2, 3; the paper's Table 2: p2 |T| = 256 bytes\n"
    )
    text += "".join(
        f"  {kind} of {num_bytes} bytes among ranks {list(ranks)}\n" for kind, num_bytes, ranks in sorted(moves)
    )
    worst = {name: max(found) for name, found in ((name, everyone(each)) for name, each in errors.items())}
    text += "\ndifference from one device: " + ", ".join(f"{name} {each:.0e}" for name, each in worst.items())
    as_printed = all(
        (value.placement.ranks, format_nd_sbp(value.layout)) == PAPER[name][:2] for name, value in values.items()
    )
    return Report(text, as_printed and max(worst.values()) < 1e-5)


def shape_of(value: PlacedTensor) -> str:
    """Shape of this rank's part."""
    return "-" if value.local is None else " x ".join(map(str, value.local.shape))


def error(value: PlacedTensor | None, wanted: torch.Tensor | None) -> float:
    """Largest difference, relative to the largest value; 0 on ranks without the value."""
    full = None if value is None else value.full()
    return 0.0 if full is None or wanted is None else float((full - wanted).abs().max() / wanted.abs().max())


def everyone(mine: Any) -> list[Any]:
    """Gather a value from every rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


if __name__ == "__main__":
    report = run_on_ranks("oneflow_table4", program)
    print_flush(report.text)
    print_flush("\nas in the paper, and as on one device" if report.right else "\nDIFFERENT")
    sys.exit(0 if report.right else 1)
