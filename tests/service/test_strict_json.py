"""Bodies are read strictly: what one reader would refuse or read another way is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from autosbp.errors import InputError
from autosbp.service.settings import Settings
from autosbp.service.strict_json import parse
from autosbp.utils.json_io import canonical
from autosbp.zoo import zoo_graph, zoo_names
from benchmarks.search_growth._measure import gpt3
from tests.service import documents
from tests.service.conftest import running

pytestmark = pytest.mark.integration

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
    "a name twice": b'{"zoo": "gpt2-demo", "zoo": "mlp"}',
    "a name twice, written differently": b'{"a": [{"b": 1, "\\u0062": 2}]}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_bad_body_is_an_input_error(body: bytes) -> None:
    with pytest.raises(InputError):
        parse(body)


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_bad_body_is_an_input_error_among_many_values_too(body: bytes) -> None:
    """Those are read by another reader."""
    many = b"[" + b"[]," * 2**17
    with pytest.raises(InputError):
        parse(many + body + b"]")
    assert parse(many + b'{"b": [1.5, "\\u00e9", null]}]')[-1] == {"b": [1.5, "\u00e9", None]}


def test_a_member_twice_is_refused_by_its_name() -> None:
    with pytest.raises(InputError, match="body: 'zoo' is invalid: duplicate name"):
        parse(BAD["a name twice"])


@pytest.mark.parametrize("unit", [b"[],", b'{"a":1},', b'"x",', b"[[[[]]]],"])
def test_documents_of_many_values_are_refused_before_they_are_read(unit: bytes) -> None:
    num = sum(map(unit.count, (b",", b":", b"[", b"{")))
    assert len(parse(b'["' + unit.replace(b'"', b"") * 10 + b'"]', max_values=10 * num + 1)) == 1
    parse(b"[" + unit * 10 + b"1]", max_values=10 * num + 1)
    large = b"[" + unit * 1_000_000 + b"1]"
    tracemalloc.start()
    with pytest.raises(InputError, match="at most 1000 commas"):
        parse(large, max_values=1000)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_the_largest_graphs_are_read() -> None:
    """As they are captured, and with every one of as many ops as there may be."""
    captured = max((zoo_graph(name).to_dict() for name in zoo_names()), key=lambda document: len(document["nodes"]))
    assert parse(canonical(captured)) == captured
    ops = captured["nodes"] * (Settings().max_ops // len(captured["nodes"]))
    assert len(parse(canonical({**captured, "nodes": ops}))["nodes"]) == len(ops)
    deep = gpt3(1536).to_dict()
    assert parse(canonical(deep)) == deep


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
