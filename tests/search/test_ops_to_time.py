"""Which ops a calibration times first: one of every kind, so that what it has no time for is predicted from its like."""

from __future__ import annotations

import json

import pytest

from autosbp.api import PlanOptions, load_cluster, op_keys
from tests.search.plans import graph_of


@pytest.mark.parametrize("name", ["gpt2-demo", "moe-small", "resnet50-small"])
def test_one_of_every_kind_comes_before_any_other(name: str) -> None:
    keys = op_keys(graph_of(name), load_cluster("local:2x2"), PlanOptions(global_batch=16))
    kinds = [json.loads(key)["op"] for key in keys]
    count = len(set(kinds))
    assert len(set(kinds[:count])) == count < len(kinds) == len(set(keys))


def test_products_come_first_and_additions_before_the_other_products() -> None:
    """58 products of GPT-2 filled the time box, so that the optimizer was predicted from attention, five times too slow."""
    keys = op_keys(graph_of("gpt2-demo"), load_cluster("local:2x2"), PlanOptions(global_batch=16))
    kinds = [json.loads(key)["op"] for key in keys]
    assert kinds[0] == "aten.linear.default"
    assert kinds.index("aten.add.Tensor") < kinds.index("aten.linear.default", 1)
