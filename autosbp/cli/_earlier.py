"""What a trial is compared with: the report of another one, or the last one of its kind that a service has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.cli._gates import Earlier
from autosbp.errors import InputError
from autosbp.jsonio import Fields, read_file

if TYPE_CHECKING:
    from autosbp.client import Client

_NEWEST_MODELS, _NEWEST_STRATEGIES, _NEWEST_TRIALS = 20, 20, 200


def read_report(path: Path, report: Mapping[str, Any]) -> Earlier:
    """The trial of ``--baseline-report``, which must be one of the same model on the same cluster."""
    document = read_file(path)
    fields = Fields(document, "baseline_report", document if isinstance(document, Mapping) else ())
    for name in ("model", "cluster"):
        there = fields.text(name)
        if there != report[name]:
            raise InputError(f"baseline_report.{name}", there, f"a report of {name} {report[name]} is expected")
    step = Fields(fields.mapping("step_time_s"), "baseline_report.step_time_s", fields.mapping("step_time_s"))
    return Earlier(step.positive("median"), f"{fields.text('plan_id')} in {path}")


def last_trial(client: Client, trial: Mapping[str, Any], plan: Mapping[str, Any]) -> Earlier | None:
    """The newest successful trial before this one: of the same strategy, or else of a model of the same name on the
    same cluster (a changed model has other strategies); of the same baseline, where it is one of a baseline."""
    begun = datetime.fromisoformat(trial["created_at"])

    def alike(**which: Any) -> Iterator[Mapping[str, Any]]:
        for other in islice(client.trials(state="succeeded", limit=100, **which), _NEWEST_TRIALS):
            is_before = datetime.fromisoformat(other["created_at"]) < begun and other["id"] != trial["id"]
            if is_before and other["baseline"] == trial["baseline"]:
                yield other

    for other in alike(strategy_id=trial["strategy_id"]):
        return Earlier(other["measured_step_time_s"], f"the last trial of this strategy ({other['id']})")
    known = set(_strategies(client, plan))
    name, cluster = plan["model"], plan["cluster"]["name"]
    for other in alike():
        if other["strategy_id"] in known:
            source = f"the last trial of {name} on {cluster} ({other['id']} of {other['strategy_id']})"
            return Earlier(other["measured_step_time_s"], source)
    return None


def _strategies(client: Client, plan: Mapping[str, Any]) -> Iterator[str]:
    """The newest strategies of models of the plan's name on its cluster."""
    cluster_id = f"clu-{plan['provenance']['cluster_hash']}"
    for model in islice(client.models(name=plan["model"]), _NEWEST_MODELS):
        found = client.strategies(model_id=model["id"], cluster_id=cluster_id)
        yield from (strategy["id"] for strategy in islice(found, _NEWEST_STRATEGIES))
