"""Cuts are the best of all, and those that are found among short chunks alone are those found among all."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from autosbp.search.stages import cuts
from autosbp.search.stages.cuts import Cutter, Pace, Places

PER_BYTE = 0.01


def _places(rng: np.random.Generator, most: int, kind: str, stages: int) -> Places:
    """Ops that take about as long as each other, or not at all, with ties."""
    count = int(rng.integers(1, most))
    own = rng.random(count + 1) ** rng.integers(0, 4)
    before = np.cumsum(np.round(4 * own) if rng.random() < 0.3 else own)
    crossing = rng.choice([1.0, 5.0, 50.0], count) if rng.random() < 0.5 else rng.random(count)
    names = tuple(map(str, range(count)))
    places = Places(
        names, before[:-1], crossing, float(before[-1]), tuple(range(1, count + 1)), program=("begin", *names)
    )
    if kind == "held":
        return replace(places, held=((count // 2, stages // 2),))
    if kind == "uneven":
        slower = np.linspace(1, 1.5, stages)
        seconds, totals = [before[:-1] * each for each in slower], [float(before[-1] * each) for each in slower]
        limits = tuple([int(1.4 * (count + 1) / stages)] * stages)
        own_bytes = np.arange(1.0, count + 1.0)
        return replace(places, pace=Pace(tuple(seconds), tuple(totals), own_bytes, count + 1.0, limits))
    return places


def _slowest(places: Places, picked: tuple[int, ...]) -> float:
    """Of these cuts of like stages."""
    ends = [0, *picked, len(places.names)]
    before = np.concatenate([[0.0], places.before_s[list(picked)], [places.total_s]])
    sends = PER_BYTE * np.concatenate([[0.0], places.crossing[list(picked)], [0.0]])
    assert len(ends) == len(before)
    return float((np.diff(before) + sends[1:] + sends[:-1]).max())


def test_no_other_cuts_are_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "NARROW", 1)
    rng = np.random.default_rng(0)
    for _ in range(100):
        places = _places(rng, 12, "", 1)
        # Where more crosses is cut only as long as it helps, so that all places are offered at once here.
        places = replace(places, crossing=np.full(len(places.names), 3.0))
        chunks = int(rng.integers(1, len(places.names) + 2))
        found = Cutter(places, PER_BYTE).cut(chunks)
        assert found is not None
        best = min(_slowest(places, picked) for picked in combinations(range(len(places.names)), chunks - 1))
        assert _slowest(places, tuple(map(int, found))) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("kind", ["", "held", "uneven"])
def test_long_chunks_left_out_change_no_cut(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    banded = []
    run_within = cuts._Balance._run_within

    def counted(self, *arguments):  # type: ignore[no-untyped-def]
        banded.append(len(self.chosen))
        return run_within(self, *arguments)

    monkeypatch.setattr(cuts._Balance, "_run_within", counted)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        stages = int(rng.choice([1, 2, 4, 8]))
        places = _places(rng, 200, kind, stages)
        found = []
        for narrow in (3, len(places.names) + 2):
            monkeypatch.setattr(cuts, "NARROW", narrow)
            cutter = Cutter(places, PER_BYTE, stages)
            found.append([cutter.cut(stages * virtual) for virtual in (1, 2, 4, 8, 16)])
        assert found[0] == found[1]
    assert len(banded) > 20, "short chunks alone were looked at"
