"""What lists of strategies and trials show that their rows do not hold: names, batch, and the best baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, select

from autosbp.plan.plan import predicted_step_s
from autosbp.service.models import ClusterRow, ModelRow, StrategyRow, TrialRow
from autosbp.service.request_state import AppState

_CHUNK = 500


@dataclass(frozen=True, slots=True)
class StrategyDetails:
    """Names of a strategy's model and cluster, samples per step, and step time relative to the best feasible baseline.

    ``gain`` is the best baseline's step time divided by the strategy's; None without a feasible baseline.
    """

    model: str
    cluster: str
    global_batch: int
    gain: float | None


def strategy_details(state: AppState, ids: Iterable[str]) -> Mapping[str, StrategyDetails]:
    """Details of strategies by id."""
    plan = StrategyRow.plan
    query = (
        select(
            *(StrategyRow.id, ModelRow.name.label("model"), ClusterRow.name.label("cluster")),
            plan["strategy"]["global_batch"].as_integer().label("global_batch"),
            plan["step_time_s"].as_float().label("step_time_s"),
            plan["simulated_step_time_s"].as_float().label("simulated_step_time_s"),
            plan["baselines"].label("baselines"),
        )
        .join(ModelRow, and_(ModelRow.id == StrategyRow.model_id, ModelRow.tenant == StrategyRow.tenant))
        .join(ClusterRow, and_(ClusterRow.id == StrategyRow.cluster_id, ClusterRow.tenant == StrategyRow.tenant))
    )
    wanted, found = sorted(set(ids)), dict[str, StrategyDetails]()
    with state.database.read() as session:
        for at in range(0, len(wanted), _CHUNK):
            for row in session.execute(query.where(StrategyRow.id.in_(wanted[at : at + _CHUNK]))):
                own_s = row.step_time_s if row.simulated_step_time_s is None else row.simulated_step_time_s
                gain = _gain(row.baselines or {}, own_s)
                found[row.id] = StrategyDetails(row.model, row.cluster, row.global_batch, gain)
    return found


def _gain(baselines: Mapping[str, Any], own_s: float) -> float | None:
    times = [predicted_step_s(entry) for entry in baselines.values() if entry["feasible"]]
    return min(times) / own_s if times and own_s else None


def failed_gates(state: AppState, job_ids: Iterable[str]) -> frozenset[str]:
    """Those of the jobs whose trial failed a gate."""
    query = select(TrialRow.job_id).where(TrialRow.job_id.in_(sorted(set(job_ids))), TrialRow.passed.is_(False))
    with state.database.read() as session:
        return frozenset(session.scalars(query))
