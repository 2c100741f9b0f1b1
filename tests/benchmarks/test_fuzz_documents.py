"""Changed documents are refused or accepted; and what watches over that sees crashes, hangs and greed. More: ``make fuzz``."""

from __future__ import annotations

import random

import pytest

from benchmarks.fuzz import _corpus
from benchmarks.fuzz._mutate import as_json, mutated_bytes, mutated_tree
from benchmarks.fuzz._targets import TARGETS
from benchmarks.fuzz._worker import generator
from benchmarks.fuzz.documents import MOST_BYTES, read_mutated

pytestmark = [pytest.mark.slow, pytest.mark.integration]

SHARE = {
    "graphs": 80, "clusters": 100, "calibrations": 50, "cluster files": 50, "plans": 80, "onnx files": 12, "configurations": 8,
}  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize(("name", "count"), SHARE.items())
def test_changed_documents_are_read_or_refused(name: str, count: int) -> None:
    found = read_mutated(name, 1, count)
    assert not found.findings
    assert sum(found.outcomes.values()) == count
    assert found.outcomes["accepted"] and found.outcomes["refused"], "some are still valid, some are not"
    assert 0 < found.peak_bytes <= MOST_BYTES


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("accept", "accepted"),
        ("refuse", "refused"),
        ("unclear", "unclear"),
        ("crash", "crash"),
        ("die", "crash"),
        ("compute", "hang"),
        ("wait", "hang"),
        ("greedy", "crash"),
    ],
)
def test_the_harness_reports_failures(name: str, outcome: str) -> None:
    found = read_mutated(name, 1, 2, "tests.benchmarks.misbehaving")
    assert found.outcomes == {outcome: 2}
    assert len(found.findings) == (0 if outcome in ("accepted", "refused") else 2)


def test_an_input_is_a_function_of_the_seed_and_its_number() -> None:
    for name in SHARE:
        made = [TARGETS[name].make(generator(name, *of)) for of in ((1, 0), (1, 0), (1, 1), (2, 0))]
        assert made[0] == made[1] and len(set(made)) == 3


def test_changes_leave_the_corpus_as_it_is() -> None:
    rng, documents = random.Random(0), _corpus.clusters()
    before = [as_json(one, random.Random(0)) for one in documents]
    for _ in range(200):
        mutated_tree(rng.choice(documents), documents, rng)
        mutated_bytes(before[0], before, rng, yaml=True)
    assert [as_json(one, random.Random(0)) for one in documents] == before
