"""The pages as HTML: each is there, is safe, leads only to what is there, and says what the interface says."""

from __future__ import annotations

import json
import re

import pytest

from autosbp.export import EXPORTERS
from autosbp.report.findings import purposes
from autosbp.service.web.number_format import seconds
from autosbp.service.web.page_route import HEADERS
from tests.service import documents
from tests.service.conftest import state_of
from tests.service.web.conftest import FORM, HOSTILE, HTML, Stored
from tests.service.web.html import Page

pytestmark = pytest.mark.integration


def pages(stored: Stored) -> list[str]:
    """Every page of what is stored, and the parts that pages fetch."""
    strategy, model = f"/strategies/{stored.strategy}", f"/models/{stored.model}"
    return [
        *("/", "/plan", "/strategies", "/models", "/clusters", "/trials", "/jobs", "/running"),
        *(strategy, f"{strategy}/sharding", f"{strategy}/sharding/0", f"{strategy}/sharding/find?text=weight"),
        *(f"{strategy}/timeline", f"{strategy}/traffic", model, f"{model}/needs"),
        *(f"/clusters/{stored.cluster}", f"/calibrations/{stored.calibration}", f"/searches/{stored.search}"),
        *(f"/jobs/{stored.job}", f"/jobs/{stored.job}/status", f"/compare?id={stored.strategy}"),
        f"/plan?model_id={stored.model}&cluster_id={stored.cluster}",
    ]


def test_every_page_is_whole_and_has_a_heading_a_title_landmarks_and_a_skip_link(stored: Stored) -> None:
    for path in pages(stored):
        answer = stored.client.get(path, headers=HTML)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        page = Page.of(answer.text)
        assert page.stray == [], path
        assert [len(page.all(tag)) for tag in ("h1", "main", "header", "footer")] == [1] * 4, path
        assert page.all("html")[0].attributes["lang"] == "en"
        assert page.all("a")[0].attributes["href"] == "#main"
        identifiers = [one.attributes["id"] for one in page.elements if "id" in one.attributes]
        assert len(identifiers) == len(set(identifiers)), path


def test_headings_of_a_page_skip_no_level(stored: Stored) -> None:
    for path in pages(stored):
        levels = [
            int(one.tag[1]) for one in Page.of(stored.client.get(path).text).elements if one.tag in ("h1", "h2", "h3")
        ]
        assert levels[0] == 1 and all(then <= one + 1 for one, then in zip(levels, levels[1:], strict=False)), path


def test_every_page_forbids_inline_scripts_and_has_none(stored: Stored) -> None:
    for path in [*pages(stored), "/nothing", "/strategies/plan-none"]:
        answer = stored.client.get(path, headers=HTML)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        for element in Page.of(answer.text).elements:
            assert not [name for name in element.attributes if name.startswith("on") or name == "style"], (
                path,
                element,
            )
            assert element.tag != "style" and "javascript:" not in element.attributes.get("href", "")
            if element.tag == "script" and "src" not in element.attributes:
                assert element.attributes["type"] == "application/json", path


def test_every_link_of_every_page_leads_somewhere(stored: Stored) -> None:
    seen = {"/sign-out"}
    for path in pages(stored):
        page = Page.of(stored.client.get(path, headers=HTML).text)
        for address in page.links():
            whole = address.partition("#")[0]
            if whole not in seen:
                seen.add(whole)
                answer = stored.client.get(whole, headers=HTML)
                refused = "/exports/" in whole and answer.status_code == 422  # tools that cannot say the plan
                assert answer.status_code == 200 or refused, (path, address)


def test_inputs_have_labels_images_have_names_and_charts_have_tables(stored: Stored) -> None:
    for path in pages(stored):
        page = Page.of(stored.client.get(path, headers={**HTML}).text)
        labelled = {one.attributes["for"] for one in page.all("label") if "for" in one.attributes}
        text = stored.client.get(path, headers=HTML).text
        for one in [*page.all("input"), *page.all("select"), *page.all("textarea")]:
            if one.attributes.get("type") == "hidden":
                continue
            wrapped = re.search(rf"<label>[^<]*<{one.tag}[^>]*name=\"{one.attributes.get('name', '')}\"", text)
            radio = one.attributes.get("type") == "radio"
            named = "aria-label" in one.attributes or one.attributes.get("id") in labelled
            assert named or wrapped or radio, (path, one)
        for svg in page.all("svg"):
            assert "aria-hidden" in svg.attributes or "aria-label" in svg.attributes, (path, svg)
        charts = [one for one in page.elements if "data-chart" in one.attributes]
        sources = {one.attributes.get("id"): one.text for one in page.all("script")}
        for chart in charts:
            assert chart.attributes["role"] == "img" and chart.attributes["aria-label"]
            assert json.loads(sources[chart.attributes["data-source"]])
        assert text.count("Show as a table") == len(charts), path


def test_the_strategy_page_says_what_the_plan_says(stored: Stored) -> None:
    plan = stored.client.get(f"/v1/strategies/{stored.strategy}").json()
    text = stored.client.get(f"/strategies/{stored.strategy}").text
    assert seconds(plan["step_time_s"]) in text
    for words in purposes(plan["breakdown"]):
        assert f"{words[:1].upper()}{words[1:]}</th>" in text
    hidden_s = plan["breakdown"]["hidden_comm_s"]
    hidden = f"{seconds(hidden_s)} of communication, " if hidden_s else "No communication is hidden"
    assert f'<p class="note">{hidden}' in text
    for name in plan["baseline_strategies"]:
        assert f"baseline {name}" in text
    assert stored.calibration in text and "Search" in text
    downloaded = stored.client.get(f"/strategies/{stored.strategy}/plan.json")
    assert downloaded.json() == plan
    assert downloaded.headers["content-disposition"] == f'attachment; filename="{stored.strategy}.json"'
    trace = stored.client.get(f"/strategies/{stored.strategy}/exports/perfetto")
    assert trace.json()["traceEvents"] and "attachment" in trace.headers["content-disposition"]
    script = stored.client.get(f"/strategies/{stored.strategy}/exports/dtensor")
    assert script.status_code in (200, 422)


def test_a_strategy_with_stages_has_all_downloads(stored: Stored) -> None:
    options = {**documents.OPTIONS, "stages": 2, "micro_batch": 2}
    asked = {"model_id": stored.model, "cluster_id": stored.cluster, "options": options}
    job = documents.wait(stored.client, stored.client.post("/v1/searches", json=asked).json()["id"])
    strategy = job["result"]["strategy_id"]
    text = stored.client.get(f"/strategies/{strategy}", headers=HTML).text
    assert "Pipeline timeline" in text
    assert all(
        f'href="/strategies/{strategy}/exports/{target}"' in text for target in EXPORTERS if target != "accelerate"
    )
    for target in ("perfetto", "dtensor"):  # which say every plan
        assert stored.client.get(f"/strategies/{strategy}/exports/{target}").status_code == 200


def test_the_sharding_map_has_a_row_for_every_op_and_parameter(stored: Stored) -> None:
    strategy = stored.client.get(f"/v1/strategies/{stored.strategy}").json()["strategy"]
    text = stored.client.get(f"/strategies/{stored.strategy}/sharding").text
    for name in [*strategy["signatures"], *strategy["parameters"]]:
        assert name in text
    found = stored.client.get(f"/strategies/{stored.strategy}/sharding/find?text=zzz", headers={"hx-request": "true"})
    assert "No name contains “zzz”" in found.text and "<html" not in found.text
    assert stored.client.get(f"/strategies/{stored.strategy}/sharding/99").status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/strategies/plan-none", 404),
        ("/strategies/plan-none/sharding", 404),
        ("/strategies/plan-none/timeline", 404),
        ("/models/mod-none", 404),
        ("/models/mod-none/needs", 404),
        ("/clusters/clu-none", 404),
        ("/calibrations/cal-none", 404),
        ("/searches/sea-none", 404),
        ("/trials/tri-none", 404),
        ("/questions/ana-none", 404),
        ("/jobs/job-none", 404),
        ("/compare?id=plan-none", 404),
        ("/compare", 422),
        ("/compare?id=plan-1&id=plan-2&id=plan-3", 422),
        ("/strategies?cursor=nonsense", 422),
        ("/strategies/%20bad%20", 422),
        ("/nothing/at/all", 404),
    ],
)
def test_what_is_not_there_is_a_page_with_its_status_and_a_way_back(stored: Stored, path: str, status: int) -> None:
    answer = stored.client.get(path, headers=HTML)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    page = Page.of(answer.text)
    assert len(page.all("h1")) == 1 and "/" in page.links() and answer.headers["x-request-id"] in answer.text


def test_programs_get_problems_where_browsers_get_pages(stored: Stored) -> None:
    for path, accept in (("/nothing", "*/*"), ("/v1/nothing", "text/html"), ("/v1/models/mod-none", "text/html")):
        answer = stored.client.get(path, headers={"accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path


def test_an_unforeseen_error_is_an_opaque_page(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("autosbp.service.services.models.listing", fail)
    answer = stored.client.get("/models", headers=HTML)
    assert answer.status_code == 500 and "secret" not in answer.text and "Internal error" in answer.text


def test_hostile_names_are_text_everywhere(stored: Stored) -> None:
    find = f"/strategies/{stored.strategy}/sharding/find"
    searched = stored.client.get(find, params={"text": HOSTILE}, headers=HTML).text
    body = {"source": "zoo", "zoo": HOSTILE, "preset": HOSTILE, "global_batch": HOSTILE}
    refused = stored.client.post("/plan", data=body, headers={**HTML, **FORM})
    assert refused.status_code == 422
    texts = [stored.client.get(path, headers=HTML).text for path in pages(stored)]
    assert sum("&lt;script&gt;alert(1)" in text for text in texts) >= 10
    for text in [*texts, searched, refused.text]:
        assert "<script>alert" not in text and "<img src=x" not in text


def test_lists_are_paged_by_cursor_and_keep_their_filters(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosbp.service.web.routers.jobs._PAGE", 1)
    stored.client.post("/v1/models:capture", json={"hf_config": {"model_type": "abacus"}})
    first = stored.client.get("/jobs", headers=HTML)
    older = next(link for link in Page.of(first.text).links() if "cursor=" in link)
    second = stored.client.get(older, headers=HTML)
    assert second.status_code == 200 and stored.job not in first.text
    filtered = stored.client.get("/jobs?state=succeeded&kind=search", headers=HTML).text
    assert "Search" in filtered and "abacus" not in filtered


def test_a_form_of_another_site_changes_nothing(stored: Stored) -> None:
    state = state_of(stored.client)
    body = {"strategy_id": stored.strategy}
    for headers in (
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", **FORM},
    ):
        answer = stored.client.post("/trials", data=body, headers={**HTML, **headers})
        assert answer.status_code == 403, headers
        assert "Cross-site form rejected" in answer.text
    assert stored.client.post("/trials", json=body, headers=FORM).status_code == 415
    assert state.settings.require_keys is False
    assert stored.client.get("/v1/trials").json()["items"] == []


def test_bad_fields_of_the_form_come_back_with_what_was_filled_in(stored: Stored) -> None:
    cases = (
        ({"source": "zoo", "zoo": "gpt2-demo"}, "preset"),
        ({"source": "zoo", "zoo": "none", "preset": "local", "nodes": "2"}, "none"),
        ({"source": "config", "hf_config": "{", "preset": "local"}, "hf_config"),
        ({"source": "config", "hf_config": "[1]", "preset": "local"}, "hf_config"),
        ({"source": "config", "preset": "local"}, "hf_config"),
        ({"source": "zoo", "zoo": "mlp-small", "preset": "local", "nodes": "two"}, "nodes"),
        ({"source": "zoo", "zoo": "mlp-small", "preset": "local", "nodes": "2", "stages": "0"}, "stages"),
        ({"source": "zoo", "zoo": "mlp-small", "preset": "local", "global_batch": "0"}, "global_batch"),
        ({"source": "stored", "model_id": "mod-none", "preset": "local"}, "model_id"),
        ({"source": "elsewhere", "preset": "local"}, "source"),
    )
    for fields, named in cases:
        answer = stored.client.post("/plan", data=fields, headers={**HTML, **FORM})
        page = Page.of(answer.text)
        assert answer.status_code == 422, fields
        assert named in answer.text and 'role="alert"' in answer.text, fields
        values = {one.attributes.get("name"): one.attributes.get("value") for one in page.all("input")}
        for name in ("nodes", "stages", "global_batch"):
            assert name not in fields or values[name] == fields[name]


def test_the_form_searches_and_the_plan_appears(stored: Stored) -> None:
    fields = {"source": "stored", "model_id": stored.model, "where": "stored", "cluster_id": stored.cluster}
    fields |= {"global_batch": "8", "time_limit_s": "5", "calibration_id": stored.calibration}
    answer = stored.client.post("/plan", data=fields, headers={**HTML, **FORM}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/searches/{stored.search}")
    shown = stored.client.get(f"{answer.headers['location']}/outcome", headers={"hx-request": "true"}).text
    assert "The plan is ready" in shown and "hx-get" not in shown and "<html" not in shown


def test_a_configuration_is_captured_before_it_is_searched(stored: Stored) -> None:
    fields = {"source": "config", "hf_config": '{"model_type": "abacus"}', "preset": "local", "nodes": "2"}
    answer = stored.client.post("/plan", data=fields, headers={**HTML, **FORM}, follow_redirects=False)
    assert answer.status_code == 303
    path = answer.headers["location"]
    assert "is being captured" in stored.client.get(path).text
    stored.client.post(f"/v1/jobs/{path.rsplit('/', 1)[1]}:cancel")
    ended = stored.client.get(path, headers={"hx-request": "true"})
    assert ended.status_code == 200 and "data-go-on" not in ended.text
    assert stored.client.get(f"/plan/captures/{stored.job}").status_code == 404


def test_questions_and_trials_are_asked_from_the_page_and_can_be_cancelled(stored: Stored) -> None:
    path = f"/strategies/{stored.strategy}"
    first = next(iter(stored.client.get(f"/v1/strategies/{stored.strategy}").json()["strategy"]["parameters"]))
    asked = stored.client.post(f"{path}/why", data={"op": first}, headers=FORM, follow_redirects=False)
    question = asked.headers["location"]
    again = stored.client.post(f"{path}/why", data={"op": first}, headers=FORM, follow_redirects=False)
    assert (asked.status_code, again.headers["location"]) == (303, question)
    analysis = stored.client.get(f"/v1/analyses/{question.rsplit('/', 1)[1]}").json()
    assert documents.wait(stored.client, analysis["job"]["id"])["state"] == "succeeded"
    for address in (question, f"{question}/answer"):
        for headers in (HTML, {"hx-request": "true"}):
            answer = stored.client.get(address, headers=headers)
            assert answer.status_code == 200 and "the plan’s" in answer.text and "hx-get" not in answer.text
    better = stored.client.post(f"{path}/what-if", data={"factor": "2"}, headers=FORM)
    assert better.status_code == 200 and "2.0 × better hardware" in better.text
    assert stored.client.post(f"{path}/what-if", data={"factor": "1"}, headers=FORM).status_code == 422
    tried = stored.client.post(
        "/trials",
        data={"strategy_id": stored.strategy, "steps": "3", "warmup": "1"},
        headers=FORM,
        follow_redirects=False,
    )
    trial = stored.client.get(f"/v1{tried.headers['location']}").json()
    for address in (tried.headers["location"], f"{tried.headers['location']}/live"):
        page = stored.client.get(address, headers=HTML)
        assert page.status_code == 200 and f"/jobs/{trial['job']['id']}/cancel" in page.text
    assert stored.client.post(f"/jobs/{trial['job']['id']}/cancel", headers=FORM).status_code in (200, 415)


def test_pages_are_no_part_of_the_interface_document(stored: Stored) -> None:
    paths = stored.client.get("/openapi.json").json()["paths"]
    assert all(path.startswith(("/v1/", "/healthz", "/readyz", "/metrics")) for path in paths)
