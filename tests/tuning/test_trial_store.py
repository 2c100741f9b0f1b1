"""The file of trials: it resumes, it belongs to one search, and a line that a crash cut short is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosbp.api import Plan
from autosbp.errors import InputError
from autosbp.tuning.strategy_space import Choices
from autosbp.tuning.trial_store import TRIALS_FILE, Trial, TrialStore, read_trials

ABOUT = {"model": "mlp", "seed": 0}


def trials_of(plan: Plan) -> list[Trial]:
    document = plan.document
    costs = {name: document[name] for name in ("step_time_s", "breakdown")}
    choices = Choices("1 stage, n0:2", 1, "use", False, 2**20, "1f1b", True, "parallax", (3, 5))
    return [
        Trial("plan", document["strategy"], costs, step_time_s=0.25, measured={"times_s": [0.25, 0.26]}),
        Trial("sampled", document["strategy"], costs, choices, -3.5, error="a rank failed\nlog"),
    ]


def test_a_later_search_goes_on_with_all_trials(tmp_path: Path, plan: Plan) -> None:
    wanted = trials_of(plan)
    for at in range(2):
        with TrialStore(tmp_path, ABOUT) as store:
            assert list(store.trials) == wanted[:at]
            store.append(wanted[at])
    assert read_trials(tmp_path) == wanted
    assert wanted[0].strategy_id == wanted[1].strategy_id


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_line_that_a_crash_cut_short_is_dropped(tmp_path: Path, plan: Plan, kept: float) -> None:
    first, second = trials_of(plan)
    with TrialStore(tmp_path, ABOUT) as store:
        store.append(first)
        size = store.path.stat().st_size
        store.append(second)
        whole = store.path.read_bytes()
    (tmp_path / TRIALS_FILE).write_bytes(whole[: size + int(kept * (len(whole) - size))])
    with TrialStore(tmp_path, ABOUT) as store:
        assert list(store.trials) == [first]
        store.append(second)
    assert read_trials(tmp_path) == [first, second]


def test_trials_of_another_search_are_refused(tmp_path: Path) -> None:
    TrialStore(tmp_path, ABOUT).__exit__(None, None, None)
    with pytest.raises(InputError, match="of another search, with seed 0"):
        TrialStore(tmp_path, {**ABOUT, "seed": 1})
    with TrialStore(tmp_path, ABOUT), pytest.raises(InputError, match="no other search uses"):
        TrialStore(tmp_path, ABOUT)
    with pytest.raises(InputError, match="expected the folder of a search"):
        read_trials(tmp_path / "none")
