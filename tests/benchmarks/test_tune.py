"""What ``benchmarks.tune`` says of trials: ranking accuracy on those of another search, and its pictures."""

from __future__ import annotations

import math
from random import Random

from autosbp.api import PlanOptions, capture, load_cluster
from autosbp.tuning.sampler import Sampler
from autosbp.tuning.strategy_space import StrategySpace
from autosbp.tuning.summary import tuning_summary
from autosbp.tuning.trial_store import Trial
from benchmarks.tune.__main__ import chart
from benchmarks.tune._accuracy import BUCKETS, PHASES, accuracy_by_trials


def test_accuracy_on_other_trials_rises_with_the_trials_seen_and_is_drawn() -> None:
    space = StrategySpace(capture("zoo:mlp-small"), load_cluster("local:2x2"), None, PlanOptions(global_batch=8))
    trials = []
    for each in Sampler(space).sample(60, Random(2), set()):
        strategy, costs = each.candidate.strategy, each.candidate.costs
        seconds = costs.step_time_s * 2 ** math.log2(strategy.num_micro)  # dearer than the cost model says
        trials.append(Trial("sampled", strategy.to_dict(), costs.to_dict(), each.choices, step_time_s=seconds))
    rows = accuracy_by_trials(space, trials[:35], trials[35:])
    assert [row["trials"] for row in rows] == [round(35 * phase / PHASES) for phase in range(PHASES + 1)]
    assert all(len(row["buckets"]) == BUCKETS for row in rows)
    assert rows[0]["accuracy"] < 0.9 < rows[-1]["accuracy"]
    baseline = Trial("data_parallel", trials[0].strategy, trials[0].predicted, step_time_s=trials[0].step_time_s)
    summary = tuning_summary([baseline, *trials[1:]])
    picture = chart([{"pair": "mlp@<2x2>", "searches": {"ranked": summary}, "held_out_accuracy": rows}])
    assert picture.count("<svg") == picture.count("</svg>") == 4 and "mlp@&lt;2x2&gt;: hit rate" in picture
