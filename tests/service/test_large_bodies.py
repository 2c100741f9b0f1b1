"""Bodies that take long to read, or much memory, stop no other request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from autosbp.service.schemas.searches import SearchRequest
from autosbp.service.strict_json import MAX_VALUES
from autosbp.utils.json_io import canonical
from benchmarks.search_growth._measure import gpt3
from tests.service.server import Server, rss_mib

JSON = {"content-type": "application/json"}
MIB = 2**20
MOST_GROWTH_MIB = 1024


def bodies() -> Iterator[tuple[str, bytes, int]]:
    """By name, each with the status of its answer; made one after the other, as they are large."""
    yield "too many lists", b'{"a":[' + b"[]," * 20_000_000 + b"[]]}", 422
    yield "lists", b'{"a":[' + b"[]," * (MAX_VALUES // 2 - 4) + b"[]]}", 422
    yield "members", b'{"a":{' + b",".join(b'"%d":"%d"' % (i, i) for i in range(MAX_VALUES // 2 - 4)) + b"}}", 422
    yield "top members", b"{" + b",".join(b'"%d":"%d"' % (i, i) for i in range(MAX_VALUES // 2 - 4)) + b"}", 422
    yield "objects", b'{"a":[' + b'{"a":{}},' * (MAX_VALUES // 4 - 4) + b"1]}", 422
    yield "text", b'{"a":"' + b"\\u00e9" * 9_000_000 + b'"}', 422
    yield "a graph of 1,536 layers", canonical(gpt3(1536).to_dict()), 201


@dataclass
class Seen:
    """The longest that a request beside them took, and by how much the process grew."""

    slowest_s: float = 0.0
    growth_mib: float = 0.0


@contextmanager
def beside(server: Server) -> Iterator[Seen]:
    seen, stopping, before_mib = Seen(), threading.Event(), rss_mib(server.pid)

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not stopping.wait(0.02):
                begun_s = time.monotonic()
                assert client.get("/healthz").status_code == 200
                seen.slowest_s = max(seen.slowest_s, time.monotonic() - begun_s)
                seen.growth_mib = max(seen.growth_mib, rss_mib(server.pid) - before_mib)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seen
    finally:
        stopping.set()
        thread.join()


@pytest.mark.parametrize("where", ["", "options", "pins", "stage_of"])
def test_of_many_members_that_are_wrong_one_is_looked_at(where: str) -> None:
    """Pydantic would make an error of each, which takes seconds and holds the interpreter's lock."""
    many = {f"x{number}": [] for number in range(5000)}
    options = many if where == "options" else {where: many} if where else {}
    body = {"model_id": "m", "cluster_id": "c", "options": {"global_batch": 8, **options}, **({} if where else many)}
    with pytest.raises(ValidationError) as refused:
        SearchRequest.model_validate(body)
    (error,) = refused.value.errors()
    assert ".".join(map(str, error["loc"])) == {"": "x0", "options": "options.x0"}.get(where, f"options.{where}")


def test_a_body_of_many_top_members_is_refused_before_they_are_copied(client: TestClient) -> None:
    body = b"{" + b",".join(b'"member-%d":1' % i for i in range(5000)) + b"}"
    for path in ("/v1/models", "/v1/searches"):
        answer = client.post(path, content=body, headers=JSON)
        assert (answer.status_code, answer.json()["value"]) == (422, "5000 members")


@pytest.mark.clock
def test_large_bodies_stop_no_other_request_and_take_no_more_than_a_gib(tmp_path: Path) -> None:
    found: dict[str, Seen] = {}
    with Server(tmp_path / "data") as server:
        httpx.post(f"{server.url}/v1/clusters", json={"preset": "local:2"})
        for name, body, status in bodies():
            with beside(server) as found[name]:
                answer = httpx.post(f"{server.url}/v1/models", content=body, headers=JSON, timeout=120)
                assert answer.status_code == status, (name, answer.text[:300])
                time.sleep(0.1)
    print(found)  # noqa: T201
    assert all(each.slowest_s < 1.0 for each in found.values()), found
    assert all(each.growth_mib < MOST_GROWTH_MIB for each in found.values()), found
