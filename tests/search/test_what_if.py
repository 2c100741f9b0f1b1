"""What better hardware would buy: each change shortens what it touches, and the plan searched again is no slower."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan, what_if
from autosbp.errors import InputError
from autosbp.search.what_if import HardwareChange

pytestmark = pytest.mark.integration


@cache
def graph() -> LogicalGraph:
    return capture("zoo:gpt2-demo")


@cache
def plan(limit: int | None = None) -> Plan:
    options = PlanOptions(16, stages=1, memory_limit_bytes=limit, baselines=(), time_limit_s=4.0)
    return make_plan(graph(), load_cluster("local:2x2"), None, options)


@cache
def changes() -> dict[str, HardwareChange]:
    return {each.name: each for each in what_if(graph(), plan())}


def _sent_s(breakdown: Mapping[str, Any]) -> float:
    """How long communication takes, whether it is waited for or hidden."""
    return float(breakdown["exposed_comm_s"] + breakdown["hidden_comm_s"])


def test_there_is_a_change_for_each_link_the_device_and_its_memory() -> None:
    assert list(changes()) == ["link n", "link g", "device", "memory"]
    for each in changes().values():
        assert each.best.step_time_s <= each.same.step_time_s <= plan().document["step_time_s"] * (1 + 1e-12)


def test_a_faster_link_shortens_what_is_sent_over_it_alone() -> None:
    before = plan().document["breakdown"]
    link = changes()["link n"].same
    assert link.compute_s == pytest.approx(before["compute_s"], rel=1e-12)
    assert 0.5 * before["exposed_comm_s"] <= link.exposed_comm_s < before["exposed_comm_s"]
    assert 0.5 * _sent_s(before) <= _sent_s(link.to_dict()["breakdown"]) < _sent_s(before)


def test_beside_a_faster_device_as_much_is_sent_and_no_more_of_it_hidden() -> None:
    """Computation gets shorter up to what launching takes."""
    before = plan().document["breakdown"]
    device = changes()["device"].same
    assert 0.5 * before["compute_s"] <= device.compute_s < 0.6 * before["compute_s"]
    assert device.hidden_comm_s <= before["hidden_comm_s"] * (1 + 1e-9)
    assert _sent_s(device.to_dict()["breakdown"]) == pytest.approx(_sent_s(before), rel=1e-9)


def test_more_memory_lifts_a_limit_that_was_asked_for() -> None:
    free = plan()
    tight = plan(round(0.6 * free.document["memory_bytes_per_device"]))
    more = {each.name: each for each in what_if(graph(), tight)}["memory"]
    assert more.best.step_time_s == pytest.approx(free.document["step_time_s"], rel=1e-9)
    assert more.same.step_time_s == tight.document["step_time_s"] > more.best.step_time_s


@pytest.mark.parametrize("factor", [1.0, 0.5, float("nan"), 1e9])
def test_a_factor_is_more_than_1(factor: float) -> None:
    with pytest.raises(InputError, match="factor"):
        what_if(graph(), plan(), factor=factor)
