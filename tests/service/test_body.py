"""Bodies are read strictly: what one reader would refuse or read another way is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from autosbp.errors import InputError
from service.body import parse
from service.settings import Settings
from tests.service import documents
from tests.service.conftest import running

JSON = {"content-type": "application/json"}
BAD = {
    "syntax": b'{"a": }',
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": [-Infinity]}',
    "overflow": b'{"a": 1e999}',
    "surrogate": b'{"a": "\\ud800"}',
    "surrogate in a key": b'{"\\udfff": 1}',
    "nul": b'{"a": "\\u0000"}',
    "not utf-8": b'{"a": "\xff"}',
    "deep": b"[" * 200_000 + b"]" * 200_000,
    "long number": b'{"a": ' + b"9" * 10_000 + b"}",
    "nothing": b"",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_bad_body_is_an_input_error(body: bytes) -> None:
    with pytest.raises(InputError):
        parse(body)


@pytest.mark.parametrize("body", [b'{"a": [1, -2.5e3, "\\u00e9\\ud83d\\ude00", null, true]}', b"[]", b'"\\\\u0000"'])
def test_a_good_body_is_read(body: bytes) -> None:
    parse(body)


@pytest.mark.parametrize("path", ["models", "clusters", "calibrations", "searches", "trials"])
@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_every_route_answers_a_bad_body_with_422(shared: TestClient, path: str, body: bytes) -> None:
    answer = shared.post(f"/v1/{path}", content=body, headers=JSON)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["limit"]


@pytest.mark.parametrize("path", ["models", "clusters", "calibrations", "searches", "trials"])
@pytest.mark.parametrize("body", [b"[]", b"3", b"null", b'"x"', b"{}"])
def test_every_route_answers_another_kind_of_document_with_422(shared: TestClient, path: str, body: bytes) -> None:
    answer = shared.post(f"/v1/{path}", content=body, headers=JSON)
    assert answer.status_code == 422
    assert {"field", "value", "limit"} <= answer.json().keys()


def test_a_body_that_does_not_say_it_is_json_is_refused(shared: TestClient) -> None:
    answer = shared.post("/v1/clusters", content=b'{"preset": "local:2"}', headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.headers["accept"]) == (415, "application/json")
    assert answer.headers["content-type"] == "application/problem+json"


def chunks() -> list[bytes]:
    return [b'{"a": "', b"x" * 3000, b"x" * 3000, b'"}']


@pytest.mark.parametrize("content", [lambda: b"".join(chunks()), lambda: iter(chunks())], ids=["declared", "chunked"])
def test_a_body_over_the_limit_is_413_and_one_under_it_is_read(
    settings: Settings, content: Callable[[], bytes]
) -> None:
    with running(settings.model_copy(update={"max_body_bytes": 4096})) as client:
        answer = client.post("/v1/clusters", content=content(), headers=JSON)
        assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
        assert answer.json()["instance"] == "/v1/clusters"
        assert "4096" in answer.json()["detail"]
        assert client.post("/v1/clusters", json=documents.cluster()).status_code == 201
        assert len(client.get("/v1/clusters").json()["items"]) == 1
