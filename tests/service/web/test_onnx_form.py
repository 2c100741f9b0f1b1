"""The form with files: an ONNX file is parsed when it is posted, captured by a job, and planned; whatever is wrong with it, the
form comes back with the reason and with all else that was filled in."""

from __future__ import annotations

from typing import Any

import pytest
from httpx import Response
from starlette.testclient import TestClient

from autosbp.service.settings import Settings
from autosbp.service.web.presenters.plan_form import max_file_bytes
from tests.service import documents, onnx_files
from tests.service.conftest import running
from tests.service.onnx_files import Refused
from tests.service.web.conftest import FORM, HOSTILE, HTML, Stored
from tests.service.web.html import Page

pytestmark = pytest.mark.integration

FILLED = {"source": "onnx", "preset": "local", "nodes": "2", "global_batch": "8", "time_limit_s": "5", "stages": "1"}
HEADERS = {**HTML, **FORM}


def send(client: TestClient, name: str, content: bytes, **changes: str) -> Response:
    """Fill in the form and choose a file."""
    files = {"onnx": (name, content, "application/octet-stream")}
    return client.post("/plan", data={**FILLED, **changes}, files=files, headers=HEADERS, follow_redirects=False)


def values(page: Page) -> dict[str, str]:
    """What fields of a page hold."""
    return {one.attributes.get("name", ""): one.attributes.get("value", "") for one in page.all("input")}


def waited(stored: Stored, answer: Response) -> dict[str, Any]:
    """The job of a capture that a form was answered with, once it has ended."""
    assert answer.status_code == 303, answer.text
    return documents.wait(stored.client, answer.headers["location"].removeprefix("/plan/captures/"))


def test_an_onnx_file_is_captured_and_planned_under_the_name_of_the_file(stored: Stored) -> None:
    answer = send(stored.client, "My perceptron (2).onnx", onnx_files.good())
    job = waited(stored, answer)  # no page is looked at
    assert job["state"] == "succeeded", job
    model = stored.client.get(job["resource"]).json()
    assert (model["name"], model["source"], model["summary"]["num_parameters"]) == ("My-perceptron-2-", "onnx", 15)
    search = stored.client.get(f"/v1/searches/{job['result']['search_id']}").json()
    assert search["model_id"] == model["id"] and search["options"]["stages"] == 1
    assert f'data-go-on href="/searches/{search["id"]}"' in stored.client.get(answer.headers["location"]).text
    stored.client.post(f"/v1/jobs/{search['job']['id']}:cancel")


@pytest.mark.parametrize("bad", onnx_files.refused(), ids=lambda bad: bad.name)
def test_a_file_that_is_no_model_is_told_of_in_the_form_and_nothing_else_is_lost(stored: Stored, bad: Refused) -> None:
    def kept() -> list[list[str]]:
        paths = ("/v1/jobs", "/v1/models", "/v1/clusters")
        return [[one["id"] for one in stored.client.get(path).json()["items"]] for path in paths]

    before = kept()
    answer = send(stored.client, bad.name, bad.content, nodes="3")
    page = Page.of(answer.text)
    assert (answer.status_code, page.stray) == (422, [])
    assert 'role="alert"' in answer.text and bad.field in answer.text and bad.words in answer.text
    file = next(one for one in page.all("input") if one.attributes.get("name") == "onnx")
    assert file.attributes["aria-invalid"] == "true" and "trouble" in file.attributes["aria-describedby"].split()
    shown = values(page)
    assert {name: shown[name] for name in ("nodes", "global_batch", "time_limit_s", "stages")} == {
        "nodes": "3", "global_batch": "8", "time_limit_s": "5", "stages": "1",
    }  # fmt: skip
    chosen = [one.attributes.get("value") for one in page.all("input") if "checked" in one.attributes]
    assert "onnx" in chosen and "choose it again" in answer.text
    assert kept() == before


@pytest.mark.parametrize(
    ("changes", "field"), [({"nodes": "two"}, "nodes"), ({"stages": "0"}, "stages"), ({"preset": "none"}, "none")]
)
def test_another_field_that_is_wrong_is_told_of_before_anything_is_captured(
    stored: Stored, changes: dict[str, str], field: str
) -> None:
    before = stored.client.get("/v1/jobs").json()["items"]
    answer = send(stored.client, "model.onnx", onnx_files.good(), **changes)
    assert answer.status_code == 422 and field in answer.text and "choose it again" in answer.text
    assert stored.client.get("/v1/jobs").json()["items"] == before


def test_no_file_is_a_missing_field(stored: Stored) -> None:
    for answer in (send(stored.client, "", b""), stored.client.post("/plan", data=FILLED, headers=HEADERS)):
        assert answer.status_code == 422 and "expected an ONNX file: choose one" in answer.text


def test_a_model_that_cannot_be_captured_leads_back_to_the_form_as_it_was(stored: Stored) -> None:
    job = waited(stored, send(stored.client, "wide.onnx", onnx_files.of_any_width(), memory_gib="1.5"))
    assert job["state"] == "failed" and "fixed sizes for all dims except the batch" in job["problem"]["detail"]
    shown = stored.client.get(f"/plan/captures/{job['id']}", headers={"hx-request": "true"}).text
    back = next(one for one in Page.of(shown).all("a") if "Back to the form" in one.text)
    answer = stored.client.get(back.attributes["href"])
    again = Page.of(answer.text)
    assert answer.status_code == 200 and "fixed sizes for all dims except the batch" in answer.text
    kept = {"stages": "1", "global_batch": "8", "time_limit_s": "5", "memory_gib": "1.5"}
    assert {name: values(again)[name] for name in kept} == kept
    chosen = [one.attributes.get("value") for one in again.all("input") if "checked" in one.attributes]
    assert {"onnx", "stored"} <= set(chosen)


def test_a_configuration_that_cannot_be_captured_comes_back_too(stored: Stored) -> None:
    fields = {**FILLED, "source": "config", "hf_config": '{"model_type": "abacus"}'}
    fields["seq_len"] = "64"
    job = waited(stored, stored.client.post("/plan", data=fields, headers=HEADERS, follow_redirects=False))
    answer = stored.client.get(f"/plan?capture_id={job['id']}")
    assert answer.status_code == 200 and "&#34;model_type&#34;: &#34;abacus&#34;" in answer.text
    assert values(Page.of(answer.text))["seq_len"] == "64"
    for unknown, status in (("job-none", 404), ("%00", 422), (stored.job, 404)):
        assert stored.client.get(f"/plan?capture_id={unknown}", headers=HTML).status_code == status, unknown


def test_a_configuration_file_is_read_where_no_script_has_read_it(stored: Stored) -> None:
    def chosen(content: bytes) -> Response:
        fields = {**FILLED, "source": "config"}
        files = {"hf_config_file": ("c.json", content)}
        return stored.client.post("/plan", data=fields, files=files, headers=HEADERS, follow_redirects=False)

    job = waited(stored, chosen(b'{"model_type": "abacus"}'))
    assert "abacus" in str(job["problem"])
    job = waited(stored, chosen(b'\xef\xbb\xbf{"model_type": "abacus"}'))
    assert "abacus" in str(job["problem"])
    refused = {b"\xff\xfe": "UTF-8", b"{": "JSON", b"[1]": "object", b" " * (2**20 + 1): "at most 1048576 bytes"}
    for content, words in refused.items():
        answer = chosen(content)
        assert answer.status_code == 422 and words in answer.text, content[:10]
        (field,) = Page.of(answer.text).all("textarea")
        assert field.attributes["aria-invalid"] == "true"


def test_names_of_files_are_text(stored: Stored) -> None:
    answer = send(stored.client, f"{HOSTILE}.onnx", b"nothing")
    assert answer.status_code == 422 and "&lt;img src=x" in answer.text
    assert "<script>alert" not in answer.text and "<img src=x" not in answer.text


def plain(boundary: bytes, *parts: bytes) -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b"no parts"),
        ("multipart/form-data; boundary=x", plain(b"x", b"Content-Disposition: form-data\r\n\r\nvalue")),
        ("multipart/form-data; boundary=x", plain(b"x", *[b'Content-Disposition: form-data; name="a"\r\n\r\nb'] * 201)),
        ("multipart/form-data; boundary=x; charset=undefined", plain(b"x")),
        ("multipart/form-data; boundary=x; charset=unicode_escape", plain(b"x")),
    ],
)
def test_what_no_browser_sends_is_a_page_about_the_form(stored: Stored, kind: str, body: bytes) -> None:
    answer = stored.client.post("/plan", content=body, headers={**HEADERS, "content-type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8"), answer.text
    assert "form" in answer.text and len(Page.of(answer.text).all("h1")) == 1


def test_a_file_that_is_too_large_is_told_of_with_the_limit(settings: Settings) -> None:
    limit = 100_000
    most = max_file_bytes(limit)
    with running(settings.model_copy(update={"max_body_bytes": limit})) as client:
        form = client.get("/plan", headers=HTML).text
        assert f'data-most-bytes="{most}"' in form
        answer = send(client, "large.onnx", bytes(most + 1))
        assert answer.status_code == 422 and "global_batch" in answer.text
        assert f"large.onnx, {most + 1} bytes" in answer.text and f"at most {most} bytes" in answer.text
        answer = send(client, "larger.onnx", bytes(limit))
        page = Page.of(answer.text)
        assert (answer.status_code, answer.headers["content-type"]) == (413, "text/html; charset=utf-8")
        assert f"{limit} bytes: it has" in answer.text and "Go back" in answer.text and page.stray == []
        assert "content-security-policy" in answer.headers
        refused = client.post("/v1/models", content=bytes(limit + 1), headers={"content-type": "application/json"})
        assert (refused.status_code, refused.headers["content-type"]) == (413, "application/problem+json")
        assert client.get("/v1/jobs").json()["items"] == []


def test_a_file_can_be_as_large_as_the_form_says(settings: Settings) -> None:
    for limit in (1024, 65_536, 200_000, 64 * 2**20, 2**40):
        assert limit // 2 <= max_file_bytes(limit) < limit or max_file_bytes(limit) == 256 * 2**20
    with running(settings.model_copy(update={"max_body_bytes": 100_000})) as client:
        answer = send(client, "most.onnx", bytes(max_file_bytes(100_000)))
        assert answer.status_code == 422 and "expected an ONNX file" in answer.text
