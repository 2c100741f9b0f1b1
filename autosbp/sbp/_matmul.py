"""Sharding rules of matrix products that factor notation cannot express: broadcasts and einsum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.factor_notation import FactorTable, Rule, Sharding, notation


def matmul(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule ``[b...] m k, [b...] k n -> [b...] m n`` with broadcast batch dims; both operands have at least 2 dims."""
    left, right, out = metas[0], metas[1], node.outputs[0]
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise GraphError(f"{node.name}.shape", list(left.shape), "expected matmul operands of at least 2 dims")
    table = FactorTable(node, 2, 1)
    lead = len(out.shape) - 2
    for dim in range(lead):
        table.set(f"b{dim}", out.sizes[dim], 0, dim, output=True)
    for index, meta in enumerate((left, right)):
        shift = lead - (len(meta.shape) - 2)
        for dim in range(len(meta.shape) - 2):
            if meta.sizes[dim] != 1 or out.sizes[dim + shift] == 1:
                table.set(f"b{dim + shift}", meta.sizes[dim], index, dim, output=False)
    for name, index, dim in (("m", 0, -2), ("k", 0, -1), ("k", 1, -2), ("n", 1, -1)):
        meta = (left, right)[index]
        table.set(name, meta.sizes[dim], index, len(meta.shape) + dim, output=False)
    table.set("m", out.sizes[-2], 0, lead, output=True)
    table.set("n", out.sizes[-1], 0, lead + 1, output=True)
    factors = table.factors(set())
    flops = 2.0 * prod(out.sizes) * left.sizes[-1]
    return Sharding(factors, linear=(frozenset((0,)), frozenset((1,))), flops=flops)


def addmm_rule(product: str) -> Rule:
    """Rule of ``beta x + alpha product`` (addmm, baddbmm, addmv), with x broadcast to the product's shape."""
    left, _, right = product.partition("->")
    names = right.split()

    def rule(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
        ndim = len(metas[0].shape)
        sizes = metas[0].sizes
        # A broadcast dim of size 1 has no factor; give it a name that no other tensor holds.
        own = [
            name if size == out else f"x{at}"
            for at, (name, size, out) in enumerate(
                zip(names[len(names) - ndim :], sizes, node.outputs[0].sizes[len(names) - ndim :], strict=True)
            )
        ]
        text = f"+{' '.join(own)}, {left} -> {right}" if own else f"+, {left} -> {right}"
        found = notation(text, linear="1; 2", flops=2)(node, metas)
        kept = tuple(factor for factor in found.factors if not factor.name.startswith("x"))
        return replace(found, factors=kept)

    return rule


def einsum(node: Node, metas: Sequence[TensorMeta]) -> Sharding:
    """Rule of ``einsum("bij,bjk->bik", ...)``, read from its equation; none with an ellipsis or repeated letters."""
    equation = node.args[0].replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if "." in equation or not arrow or any(len(set(term)) != len(term) for term in (*terms, right)):
        return Sharding(())
    table = FactorTable(node, len(metas), 1)
    letters: dict[str, int] = {}
    for position, (term, meta) in enumerate(zip(terms, metas, strict=True)):
        for dim, (letter, size) in enumerate(zip(term, meta.sizes, strict=True)):
            letters[letter] = max(size, letters.get(letter, 1))
            if size > 1:
                table.set(letter, size, position, dim, output=False)
    for dim, (letter, size) in enumerate(zip(right, node.outputs[0].sizes, strict=True)):
        table.set(letter, size, 0, dim, output=True)
    flops = 2.0 * prod(letters.values()) if len(terms) > 1 else 0.0
    return Sharding(table.factors(set()), linear=tuple(frozenset((at,)) for at in range(len(metas))), flops=flops)
