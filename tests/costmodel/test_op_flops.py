"""The work of a timed op is read from its key alone: right, or unknown."""

from __future__ import annotations

import pytest

from autosbp.costmodel.compute import op_key
from autosbp.costmodel.op_benchmark import prepare_op
from autosbp.costmodel.op_flops import op_work
from autosbp.sbp.rules import sharding_of
from autosbp.testing.virtual_cases import CASES, Case, op_case

KNOWN = (
    "linear.default", "mm.default", "bmm.default", "addmm.default", "matmul.default", "conv2d.default", "add.Tensor",
    "scaled_dot_product_attention.default", "layer_norm.default", "rms_norm.default", "group_norm.default",
    "batch_norm.default", "softmax.int", "log_softmax.int", "gelu.default", "silu.default", "mul.Tensor",
    "embedding.default", "sum.dim_IntList", "amax.default", "max.dim", "logsumexp.default", "max_pool2d.default",
)  # fmt: skip
"""What calibrations time."""


def key_of(op: str, case: Case) -> tuple[str, float, int]:
    """Key, FLOPs and bytes of a case."""
    graph, node = op_case(op, case)
    refs = list(node.refs())
    metas = [graph.meta(ref) for ref in refs]
    bounds = {leaf.name: leaf.high for leaf in graph.inputs}
    highs = [None if meta.is_float else bounds.get(ref.name) for ref, meta in zip(refs, metas, strict=True)]
    gradients = [graph.has_gradient(ref) for ref in refs]
    shapes, dtypes = [meta.sizes for meta in metas], [meta.dtype for meta in metas]
    key = op_key(node, shapes, node.outputs[0].sizes, dtypes, gradients, highs)
    return key, sharding_of(graph, node).flops, sum(meta.num_bytes for meta in (*metas, *node.outputs))


@pytest.mark.parametrize("op", sorted(CASES))
def test_bytes_and_flops_are_those_of_the_op_wherever_they_are_known(op: str) -> None:
    for case in CASES[op]:
        key, flops, num_bytes = key_of(op, case)
        work = op_work(key)
        if work is not None:
            assert (work.flops, work.num_bytes) == (flops, num_bytes), case


@pytest.mark.parametrize("op", KNOWN)
def test_default_calibration_ops_have_known_work_and_run(op: str) -> None:
    for case in CASES[f"aten.{op}"]:
        key, _, _ = key_of(f"aten.{op}", case)
        assert op_work(key) is not None or case.args[0].dtype.startswith("int"), case
        forward, backward = prepare_op(key)
        forward()
        backward()
