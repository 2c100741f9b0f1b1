"""The least messages of chunks that have room in a step: against all ways to cut."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from autosbp.search.bounds.min_p2p_partition import MessageCut, least_messages_s, work_between


def all_ways(work_s: NDArray[np.float64], cuts: list[MessageCut], step_s: float, in_turn: int) -> float:
    inner, least = len(work_s) - 2, np.inf
    for chosen in combinations(range(inner), len(cuts)):
        borders, total = [0, *(place + 1 for place in chosen), inner + 1], 0.0
        for at in range(len(borders) - 1):
            ahead = cuts[at].forward_s[chosen[at]] if at < len(cuts) else 0.0
            back = cuts[at - 1].backward_s[chosen[at - 1]] if at else 0.0
            own = (cuts[at].own[0] * ahead if at < len(cuts) else 0.0) + (cuts[at - 1].own[1] * back if at else 0.0)
            own += work_s[borders[at], borders[at + 1]]
            # The last stage sends nothing ahead; what it sends back is its only message.
            if own > step_s or (at < len(cuts) and in_turn * (ahead + back) > step_s):
                break
            if at < len(cuts):
                total += cuts[at].waited_counts[0] * ahead + cuts[at].waited_counts[1] * cuts[at].backward_s[chosen[at]]
        else:
            least = min(least, total)
    return float(least)


@pytest.mark.parametrize("seed", range(3))
def test_no_partition_has_less_p2p(seed: int) -> None:
    dice, proved = np.random.default_rng(seed), set()
    for _ in range(60):
        ops, number = int(dice.integers(4, 9)), int(dice.integers(1, 4))
        places = sorted(dice.choice(np.arange(1, ops), int(dice.integers(number, ops)), replace=False).tolist())
        first = dice.integers(0, ops, 5)
        last = np.minimum(first + dice.integers(0, 3, 5), ops - 1)
        work_s = work_between(first.tolist(), last.tolist(), dice.random(5), places, ops)
        cuts = [
            MessageCut(*dice.random((2, len(places))), tuple(dice.integers(0, 4, 2)), tuple(dice.integers(0, 3, 2)))
            for _ in range(number)
        ]
        step_s, in_turn = float(dice.uniform(0.5, 4)), int(dice.integers(0, 3))
        found = least_messages_s(work_s, cuts, step_s, in_turn)
        assert found == pytest.approx(all_ways(work_s, cuts, step_s, in_turn))
        proved.add(np.isfinite(found))
    assert proved == {True, False}


def test_work_lies_between_borders_whole() -> None:
    """Things of ops 0 to 1, 1 to 2, and 3, with cuts before 1 and 2."""
    work_s = work_between([0, 1, 3], [1, 2, 3], np.array([1.0, 10.0, 100.0]), [1, 2], 4)
    assert work_s[0].tolist() == [0.0, 0.0, 1.0, 111.0]  # from the start
    assert work_s[1, 3] == 110.0 and work_s[2, 3] == 100.0 and work_s[1, 2] == 0.0
