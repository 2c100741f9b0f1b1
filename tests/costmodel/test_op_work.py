"""The work of a timed op is read from its key alone: right, or unknown for ops without products."""

from __future__ import annotations

import pytest

from autosbp.costmodel.compute import op_key
from autosbp.costmodel.op_bench import run_op
from autosbp.costmodel.op_work import op_work
from autosbp.sbp.rules import sharding_of
from autosbp.testing.virtual_cases import CASES, op_case


@pytest.mark.parametrize("op", sorted(CASES))
def test_bytes_and_flops_are_those_of_the_op_and_its_key_runs(op: str) -> None:
    for case in CASES[op]:
        graph, node = op_case(op, case)
        refs = list(node.refs())
        metas = [graph.meta(ref) for ref in refs]
        bounds = {leaf.name: leaf.high for leaf in graph.inputs}
        highs = [
            None if meta.is_float or meta.dtype == "bool" else bounds[ref.name]
            for ref, meta in zip(refs, metas, strict=True)
        ]
        gradients = [graph.has_gradient(ref) for ref in refs]
        key = op_key(
            node,
            [meta.sizes for meta in metas],
            node.outputs[0].sizes,
            [meta.dtype for meta in metas],
            gradients,
            highs,
        )
        work, flops = op_work(key), sharding_of(graph, node).flops
        assert work is not None or flops == 0, case
        if work is not None:
            assert work.num_bytes == sum(meta.num_bytes for meta in (*metas, *node.outputs)), case
            assert work.flops == flops, case
        forward, backward = run_op(key)
        forward()
        backward()
