"""The load benchmark of the service, in small."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.service.__main__ import run
from benchmarks.service._load import Series, percentile
from tests.service.postgres import Postgres, programs

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.some(2)
def test_every_request_of_the_load_is_answered_and_every_stream_sees_the_last_event(
    tmp_path: Path, processes: int
) -> None:
    if processes == 1:
        found = run(tmp_path, None, num_strategies=60, seconds=2.5, share=0.1)
    else:
        with Postgres(programs()) as server:
            url = server.database()
            found = run(tmp_path, url, num_strategies=60, seconds=2.5, processes=2, share=0.1, server=server.pid)
        assert 0 < found["database_cores"] < found["service_cores"]
    assert found["ready_after"] and found["strategies"] == 60
    for name, one in found["results"].items():
        assert (one["errors"], one["first_errors"]) == (0, []), name
        assert 0 < one["p50_ms"] <= one["p99_ms"] <= one["max_ms"], name
    counts = {name: one["requests"] for name, one in found["results"].items()}
    assert (counts["reads"], counts["posts"]) == (50 * processes, 5)
    assert counts["events"] >= 10


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert [percentile([3.0, 1.0, 2.0, 4.0], share) for share in (25, 50, 99)] == [1.0, 2.0, 4.0]
    assert math.isnan(percentile([], 50))
    assert Series([0.1], ["x"]).to_dict(5.0)["errors"] == 1
