"""/v1/clusters"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.cluster.spec import Cluster, load_cluster
from tests.service import documents

pytestmark = pytest.mark.integration


def test_a_spec_is_stored_under_its_hash_and_read_back(client: TestClient) -> None:
    answer = client.post("/v1/clusters", json=documents.cluster())
    cluster = Cluster.from_dict(documents.cluster())
    body = answer.json()
    assert answer.status_code == 201
    assert body["id"] == f"clu-{cluster.content_hash[:32]}"
    assert (body["name"], body["num_devices"]) == ("local:2x2", 4)
    assert answer.headers["location"] == f"/v1/clusters/{body['id']}"
    assert client.get(answer.headers["location"]).json() == body
    assert Cluster.from_dict(body["document"]) == cluster


def test_the_same_cluster_again_is_200_with_the_same_id(client: TestClient) -> None:
    first = client.post("/v1/clusters", json={"preset": "local:2x2"})
    again = client.post("/v1/clusters", json=load_cluster("local:2x2").to_dict())
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert len(client.get("/v1/clusters").json()["items"]) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (documents.cluster(levels=[]), "levels"),
        (documents.cluster(schema="autosbp.cluster/9"), "schema"),
        (documents.cluster(extra=1), "extra"),
        (documents.cluster(device="abacus"), "device"),
        (documents.cluster(levels=[{**documents.cluster()["levels"][0], "count": 0}]), "levels[0].count"),
        (documents.cluster(levels=[{**documents.cluster()["levels"][0], "latency_s": 10**400}]), None),
        ({"preset": "nonsense:4"}, "preset"),
        ({"preset": "/etc/passwd"}, "preset"),
        ({"preset": "x.yaml"}, "preset"),
        ({"preset": 3}, "preset"),
        ({"preset": "local:2", "extra": 1}, "extra"),
        ({"preset": "local:999999999"}, None),
        ({"preset": "local:0"}, None),
    ],
)
def test_a_bad_cluster_is_422_and_stores_nothing(client: TestClient, body: dict[str, Any], field: str | None) -> None:
    answer = client.post("/v1/clusters", json=body)
    assert answer.status_code == 422
    if field is not None:
        assert answer.json()["field"] == field
    assert client.get("/v1/clusters").json() == {"items": [], "next_cursor": None}


def test_equal_posts_at_once_make_one_cluster(client: TestClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/clusters", json=documents.cluster()), range(24)))
    assert sorted(answer.status_code for answer in answers) == [200] * 23 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(client.get("/v1/clusters").json()["items"]) == 1


def test_lists_are_paged_newest_first_without_gaps_or_repeats(client: TestClient) -> None:
    posted = [client.post("/v1/clusters", json={"preset": f"local:{count}"}).json()["id"] for count in range(1, 8)]
    seen, cursor = [], None
    while True:
        query = {"limit": 3} if cursor is None else {"limit": 3, "cursor": cursor}
        page = client.get("/v1/clusters", params=query).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == posted[::-1]
