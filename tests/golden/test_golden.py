"""No change makes a plan of ``rows.json`` slower, or its bound lower."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.golden import ROUNDING, name_of, plan_of, read_rows

pytestmark = pytest.mark.integration


@pytest.mark.some(16)
@pytest.mark.parametrize("row", [pytest.param(row, id=name_of(row)) for row in read_rows()])
def test_no_plan_is_slower_and_no_bound_is_lower_than_recorded(row: dict[str, Any]) -> None:
    document = plan_of(row).document
    assert document["step_time_s"] <= row["step_time_s"] * (1 + ROUNDING)
    assert document["lower_bound_s"] >= row["lower_bound_s"] * (1 - ROUNDING)


@pytest.mark.parametrize("row", [pytest.param(row, id=name_of(row)) for row in read_rows() if "before_s" in row])
def test_recorded_plans_are_not_slower_than_those_of_the_sum_were(row: dict[str, Any]) -> None:
    """``before_s`` is what those plans take today, as messages are charged in full since."""
    assert row["step_time_s"] <= row["before_s"] * (1 + 1e-3)
    assert row["lower_bound_s"] <= row["step_time_s"]
