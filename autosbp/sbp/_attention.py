"""The rule of scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.sharding import FactorTable, Sharding


def attention(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """``b... q d, b... k d, b... k e, [mask] -> b... q e | whole k d e`` (and q when causal)."""
    query, key, value, out = metas[0], metas[1], metas[2], node.outputs[0]
    lead = len(query.shape) - 2
    names = [f"b{dim}" for dim in range(lead)]
    table = FactorTable(node, len(metas), 1)
    table.hold(0, [*names, "q", "d"], query, output=False)
    table.hold(1, [*names, "k", "d"], key, output=False)
    table.hold(2, [*names, "k", "e"], value, output=False)
    table.hold(0, [*names, "q", "e"], out, output=True)
    if len(metas) > 3:
        mask = metas[3]
        full = [*names, "q", "k"][lead + 2 - len(mask.shape) :]
        for dim, (name, size) in enumerate(zip(full, mask.sizes, strict=True)):
            if size != 1:
                table.set(name, size, 3, dim, output=False)
    causal = len(node.args) > 5 and bool(node.args[5])
    random = len(node.args) > 4 and bool(node.args[4])
    whole = {"k", "d", "e"} | ({"q"} if causal else set())
    flops = 2.0 * prod(out.sizes[:-1]) * key.sizes[-2] * (query.sizes[-1] + value.sizes[-1])
    return Sharding(table.factors(whole), flops=flops / 2 if causal else flops, random=random)
