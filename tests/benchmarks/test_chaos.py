"""The account of the chaos benchmark: which runs of a job count as faults."""

from pathlib import Path

import pytest

from benchmarks.chaos._fleet import JobRecord


@pytest.mark.parametrize(
    ("words", "twice", "repeated"),
    [
        ("begin 1, end 1, kept 1", 0, 0),
        ("begin 1, end 1, begin 2, end 2, kept 2", 0, 1),
        ("begin 1, begin 2, end 2, kept 2", 0, 0),
        ("begin 1, begin 2, end 1, end 2, kept 2", 1, 1),
        ("begin 1, end 1, kept 1, begin 2, end 2", 1, 1),
    ],
)
def test_concurrent_runs_and_runs_after_a_stored_outcome_are_faults(
    tmp_path: Path, words: str, twice: int, repeated: int
) -> None:
    lines = [word.split() for word in words.split(", ")]
    (tmp_path / "runs").write_text("".join(f"{word} trial job-1 {attempt} 0.0\n" for word, attempt in lines))
    account = JobRecord(tmp_path / "runs", {"job-1": "trial"})
    assert (account.num_twice(), account.num_repeated()) == (twice, repeated)
