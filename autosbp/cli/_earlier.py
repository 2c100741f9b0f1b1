"""What a trial is compared with: the report of another one, or the last ones of its kind that passed in a service."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.cli._gates import Earlier, Nothing
from autosbp.errors import InputError
from autosbp.jsonio import Fields, read_file

if TYPE_CHECKING:
    from autosbp.client import Client

NUM_COMPARED = 5
"""So many trials make a baseline: one that was fast or slow by chance does not."""
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


def passed_trials(
    client: Client, trial: Mapping[str, Any], plan: Mapping[str, Any], label: str | None
) -> Earlier | Nothing:
    """The median of the newest passed trials with this label before this one: of the same strategy, or else of a model of the
    same name on the same cluster (a changed model has other strategies); of the same baseline, where it is one of a
    baseline. Trials that failed a gate, or that nobody judged, are none to compare with. Without a label, of any."""
    before = datetime.fromisoformat(trial["created_at"])

    def alike(**which: Any) -> Iterator[Mapping[str, Any]]:
        found = client.trials(passed=True, label=label, created_before=before, limit=100, **which)
        for other in islice(found, _NEWEST_TRIALS):
            if other["baseline"] == trial["baseline"] and other["id"] != trial["id"]:
                yield other

    labelled = "" if label is None else f" labelled {label}"
    name, cluster = plan["model"], plan["cluster"]["name"]
    if found := list(islice(alike(strategy_id=trial["strategy_id"]), NUM_COMPARED)):
        return _median(found, f"{labelled} of this strategy")
    known = set(_strategies(client, plan))
    if found := list(islice((other for other in alike() if other["strategy_id"] in known), NUM_COMPARED)):
        return _median(found, f"{labelled} of {name} on {cluster} (none of this strategy)")
    return Nothing(
        f"no earlier trial{labelled} of {name} on {cluster} has passed its gates: there is none to compare with"
    )


def _median(found: Sequence[Mapping[str, Any]], which: str) -> Earlier:
    ids = tuple(str(other["id"]) for other in found)
    what = (
        f"the last passed trial{which}" if len(ids) == 1 else f"the median of the last {len(ids)} passed trials{which}"
    )
    step_time_s = statistics.median(float(other["measured_step_time_s"]) for other in found)
    return Earlier(step_time_s, f"{what}: {', '.join(ids)}", ids)


def _strategies(client: Client, plan: Mapping[str, Any]) -> Iterator[str]:
    """The newest strategies of models of the plan's name on its cluster."""
    cluster_id = f"clu-{plan['provenance']['cluster_hash']}"
    for model in islice(client.models(name=plan["model"]), _NEWEST_MODELS):
        found = client.strategies(model_id=model["id"], cluster_id=cluster_id)
        yield from (strategy["id"] for strategy in islice(found, _NEWEST_STRATEGIES))
