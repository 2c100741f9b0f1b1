"""The experts of transformers' models call an op of its own, with offsets that no rule knows the range of."""

from __future__ import annotations

import torch
import transformers.integrations.moe  # noqa: F401 - defines the op

from autosbp.discovery._call import Tensor, make_call
from autosbp.discovery._graph_rules import discover_rule
from autosbp.discovery._stand_ins import stand_in


def test_a_product_of_grouped_rows_splits_inner_and_outer_widths() -> None:
    """Mixtral's sizes: 2 slots for each of 4096 tokens, 8 experts. Rows and experts go together by values."""
    args = (
        Tensor((8192, 4096), torch.float64, tracked=True),
        Tensor((8, 4096, 14336), torch.float64, tracked=True),
        Tensor((8,), torch.int32),
    )
    op = torch.ops.transformers.grouped_mm_fallback.default
    small = stand_in(make_call(op, args, {}, lambda arg: arg), [(8192, 14336)])
    rule = discover_rule(small)
    layouts = {f"{' '.join(option.ins)} -> {' '.join(option.outs)}" for option in rule.options}
    assert layouts == {"B S2 B -> S1", "S1 S1 B -> P", "P B B -> P", "B P B -> P"}
    assert rule.flops == 2.0
    assert sorted(rule.sizes) == [(0, 0), (0, 1), (1, 2)]
