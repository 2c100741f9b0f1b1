"""The attacks; each is ten times the load that broke an earlier release."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from autosbp import api
from autosbp.client import Client
from autosbp.service.jobs._processes import descendants
from autosbp.service.strict_json import MAX_VALUES
from autosbp.zoo import zoo_names
from benchmarks.attack._client import Answers, ask, blocks, head, repeat_concurrently, run_concurrently, send, trickle
from benchmarks.attack._target import Target

_JSON = "application/json"
_FORM = {"Content_Type": "application/x-www-form-urlencoded", "Sec_Fetch_Site": "same-origin"}
_MIB = 2**20
_FLOOD_S, _PATIENCE_S = 10.0, 60.0
_OUTPUT = {"shape": [1], "dtype": "float32"}
_SEARCH: dict[str, Any] = {"global_batch": 8}
Case = Callable[[Target, Answers], Awaitable[bool]]
"""An attack; returns whether the case's own conditions hold, besides the numeric targets."""


async def sign_in_uploads(target: Target, answers: Answers) -> bool:
    """An unauthenticated client sends 600 forms of 64 MiB, and continues after the response."""
    start = head(target, "POST", "/sign-in", Content_Length=64 * _MIB, **_FORM)
    await run_concurrently(600, lambda number: send(target, answers, number, blocks(start, 64 * _MIB), 10.0))
    return set(answers.statuses) <= {413, 429}


async def large_heads(target: Target, answers: Answers) -> bool:
    """An unauthenticated client sends 40 request heads of 10 MB, almost all of it in one header."""
    start = head(target, "GET", "/healthz")[:-2] + b"X: "
    await run_concurrently(40, lambda number: send(target, answers, number, blocks(start, 10_000_000)))
    return set(answers.statuses) <= {431}


async def trickled_bytes(target: Target, answers: Answers) -> bool:
    """A tenant and an unauthenticated client send 600 bodies and heads byte by byte, for longer than allowed."""
    body = {"Content_Type": _JSON, "Content_Length": 64 * _MIB}
    starts = (
        head(target, "POST", "/v1/models", target.tenant, **body),
        head(target, "POST", "/sign-in", **{**_FORM, "Content_Length": 4000}),
        head(target, "GET", "/healthz")[:-2] + b"X: ",
    )
    await run_concurrently(
        600, lambda number: send(target, answers, number, trickle(starts[number % 3], 0.25, 25.0), 27.0)
    )
    return set(answers.statuses) <= {408, 429, 503}


async def interface_flood(target: Target, answers: Answers) -> bool:
    """An unauthenticated client requests the API document repeatedly on 640 connections of one, limited, address."""
    asked = [head(target, "GET", "/openapi.json")]
    await repeat_concurrently(640, _FLOOD_S, lambda _: send(target, answers, 0, asked))
    return set(answers.statuses) <= {200, 408, 429}


async def zoo_captures(target: Target, answers: Answers) -> bool:
    """A tenant requests every model of the zoo on 64 connections, repeatedly."""
    names = sorted(zoo_names())

    async def post(number: int) -> None:
        await ask(target, answers, number, "POST", "/v1/models", target.tenant, {"zoo": names[number % len(names)]})

    await repeat_concurrently(64, _FLOOD_S, post)
    return set(answers.statuses) <= {200, 201, 429}


async def model_flood(target: Target, answers: Answers) -> bool:
    """A tenant posts 600 models of 60 MiB at once, and then 40 with the maximum number of values."""
    more = {"Content_Type": _JSON, "Content_Length": 60 * _MIB}
    start = head(target, "POST", "/v1/models", target.tenant, **more)
    await run_concurrently(600, lambda number: send(target, answers, number, blocks(start, 60 * _MIB), 30.0))
    members = b'{"a":{' + b",".join(b'"%d":"%d"' % (at, at) for at in range(MAX_VALUES // 2 - 4)) + b"}}"
    start = head(target, "POST", "/v1/models", target.tenant, **{**more, "Content_Length": len(members)})
    await run_concurrently(40, lambda number: send(target, answers, number, [start, members], _PATIENCE_S))
    return set(answers.statuses) <= {422, 429, 503, 408}


async def log_bombs(target: Target, answers: Answers) -> bool:
    """A tenant posts a model that prints a megabyte per step and, if accepted, runs it for 1,000 steps."""
    model = api.capture("zoo:mlp-small").to_dict()
    said = {"name": "print_0", "op": "aten._print.default", "args": ["x" * 10**6], "outputs": [_OUTPUT]}
    model["nodes"] = [said, *model["nodes"]]
    answer = await ask(target, answers, 0, "POST", "/v1/models", target.tenant, model)
    if answer[9:12] not in (b"200", b"201"):
        return answer[9:12] == b"422"
    found = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
    await asyncio.to_thread(_trial, target, found)
    return True  # the disk usage is checked elsewhere


def _trial(target: Target, model: str) -> None:
    with Client(target.url, key=target.tenant) as client:
        job = client.wait(client.search(model, client.post_cluster("local:2"), options=_SEARCH))
        if job.result:
            client.wait(client.trial(job.result["strategy_id"], steps=1000))


async def queued_searches(target: Target, answers: Answers) -> bool:
    """A tenant queues 600 searches; another tenant's only search must end within 15 s, the time of about two searches."""
    body = await asyncio.to_thread(_question, target, target.tenant)

    async def search(number: int) -> None:
        await ask(target, answers, number, "POST", "/v1/searches", target.tenant, _seeded(body, number))

    await run_concurrently(600, search)
    waited_s = await asyncio.to_thread(_time_of_first_search, target)
    answers.notes.append(f"the other tenant's search ended after {waited_s:.1f} s")
    await asyncio.to_thread(_cancel_all, target)
    return waited_s < 15.0


def _question(target: Target, key: str) -> dict[str, Any]:
    with Client(target.url, key=key) as client:
        return {
            "model_id": client.post_model(zoo="gpt2"),
            "cluster_id": client.post_cluster("local:2x2"),
            "options": _SEARCH,
        }


def _seeded(body: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {**body, "options": {**body["options"], "seed": number}}


def _time_of_first_search(target: Target) -> float:
    body = _question(target, target.owner)
    with Client(target.url, key=target.owner) as client:
        begun_s = time.monotonic()
        job = client.search(body["model_id"], body["cluster_id"], options=body["options"]).id
        while time.monotonic() - begun_s < _PATIENCE_S:
            if client.get_job(job).state not in ("queued", "running"):
                return time.monotonic() - begun_s
            time.sleep(0.1)
    return _PATIENCE_S


def _cancel_all(target: Target) -> None:
    headers = {"authorization": f"Bearer {target.tenant}"}
    with httpx.Client(base_url=target.url, headers=headers, timeout=60) as client:
        for state in ("queued", "running"):
            while found := client.get("/v1/jobs", params={"state": state, "limit": 100}).json()["items"]:
                for job in found:
                    client.post(f"/v1/jobs/{job['id']}:cancel")
                time.sleep(0.2)


async def dead_idle_workers(target: Target, answers: Answers) -> bool:
    """Every child process of the service is killed while nothing runs; later searches must succeed."""
    body = await asyncio.to_thread(_question, target, target.tenant)
    states = []
    for number in range(3):
        for pid in descendants(target.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        answer = await ask(target, answers, 0, "POST", "/v1/searches", target.tenant, _seeded(body, 1000 + number))
        job = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
        states.append(await asyncio.to_thread(_state, target, job))
    answers.notes.append(f"searches after it: {', '.join(states)}")
    return set(states) == {"succeeded"}


def _state(target: Target, job: str) -> str:
    with Client(target.url, key=target.tenant) as client:
        end_s = time.monotonic() + _PATIENCE_S
        while (state := str(client.get_job(job).state)) in ("queued", "running") and time.monotonic() < end_s:
            time.sleep(0.1)
        return state


async def wrong_keys(target: Target, answers: Answers) -> bool:
    """An unauthenticated client guesses keys on 100 connections; a valid, so far unseen key works from the same address."""
    wrong = head(target, "GET", "/v1/models", "asbp_" + "a" * 8 + "_" + "A" * 43)
    good = Answers()

    async def share() -> None:
        for _ in range(20):
            await send(target, good, 0, [head(target, "GET", "/v1/models", target.fresh)])
            await asyncio.sleep(_FLOOD_S / 40)

    flood = repeat_concurrently(100, _FLOOD_S, lambda number: send(target, answers, number, [wrong]))
    await asyncio.gather(flood, share())
    answers.notes.append(f"good keys from the same address: {dict(good.statuses)}")
    return set(good.statuses) == {200} and set(answers.statuses) <= {401, 429}


CASES: Mapping[str, Case] = {
    each.__name__.replace("_", " "): each
    for each in (
        *(sign_in_uploads, large_heads, trickled_bytes, interface_flood, zoo_captures, model_flood, log_bombs),
        *(dead_idle_workers, wrong_keys, queued_searches),
    )
}
