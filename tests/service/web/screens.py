"""Pictures of the pages into ``docs/screens``, of a running service or of one that is started and filled for them.

What to show is chosen from what the service has stored.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Browser, expect

from autosbp.client import Client
from tests.service.server import Server
from tests.service.web.browser import browser

FOLDER = Path(__file__).parents[3] / "docs" / "screens"
WIDTH, HEIGHT = 1280, 860


@dataclass(frozen=True)
class Shot:
    """One picture: a page, from the top or from the element that ``at`` names, in light or dark."""

    name: str
    path: str
    at: str = ""
    theme: Any = "light"
    height: int = HEIGHT


def shots(client: Client) -> list[Shot]:
    """What there is to see: the strategy that recomputes most, two of one model, the newest calibration, and the newest trial
    that succeeded."""
    plans = [client.get_strategy(one["id"]) for one in client.strategies()]
    plan = max(plans, key=lambda each: len(each["strategy"].get("recompute", ())))
    models = [each["model"] for each in plans]
    alike = [each["plan_id"] for each in plans if each["model"] == max(models, key=models.count)][:2]
    strategy, model = f"/strategies/{plan['plan_id']}", f"/models/mod-{plan['provenance']['graph_hash']}"
    measured = next(iter(client.calibrations()))
    trial = next(one for one in client.trials() if one["job"]["state"] == "succeeded")
    return [
        Shot("home", "/"),
        Shot("plan", "/plan", height=760),
        Shot("strategies", "/strategies", height=620),
        Shot("strategy", strategy),
        Shot("strategy-dark", strategy, theme="dark"),
        Shot("sharding", strategy, "#sharding"),
        Shot("timeline", strategy, "#timeline"),
        Shot("timeline-dark", strategy, "#timeline", theme="dark"),
        Shot("model", model),
        Shot("calibration", f"/clusters/{measured['cluster_id']}", "section[aria-labelledby=calibration]", height=720),
        Shot("compare", f"/compare?id={alike[0]}&id={alike[1]}"),
        Shot("trial", f"/trials/{trial['id']}", height=1060),
    ]


def take(opened: Browser, url: str, shot: Shot) -> None:
    """Write one picture."""
    page = opened.new_page(viewport={"width": WIDTH, "height": shot.height}, color_scheme=shot.theme)
    page.goto(url + shot.path)
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=120_000)
    page.wait_for_function("[...document.querySelectorAll('[data-chart]')].every((one) => one.dataset.drawn)")
    if shot.at:
        page.evaluate("(at) => document.querySelector(at).scrollIntoView({ behavior: 'instant' })", shot.at)
    page.wait_for_timeout(300)
    page.screenshot(path=FOLDER / f"{shot.name}.png")
    page.close()


def fill(client: Client) -> None:
    """Store two plans of a model, and a calibration, a plan and a trial of another one."""
    llama, summit = client.post_model(zoo="llama-7b"), client.post_cluster("summit:2")
    for options in ({"global_batch": 192, "precision": "fp16-mixed"}, {"global_batch": 96, "precision": "fp16-mixed"}):
        client.wait(client.search(llama, summit, options=options))
    gpt2, local = client.post_model(zoo="gpt2-demo"), client.post_cluster("local:2x2")
    options = {"global_batch": 16}
    measured = client.wait(client.calibrate(local, [gpt2], options, point_s=0.1, op_s=0.1, budget_s=90.0))
    found = client.wait(client.search(gpt2, local, measured.result["calibration_id"], options))
    client.wait(client.trial(found.result["strategy_id"], steps=10))


def take_all(url: str, *, filling: bool) -> None:
    """Write all pictures of a service."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with browser() as opened, Client(url) as client:
        if filling:
            fill(client)
        for shot in shots(client):
            take(opened, url, shot)


def main() -> None:
    if len(sys.argv) > 2:
        sys.exit("scripts/screens [URL]: expected at most the address of a running service")
    if len(sys.argv) == 2:
        take_all(sys.argv[1], filling=False)
        return
    with TemporaryDirectory() as folder, Server(Path(folder)) as service:
        take_all(service.url, filling=True)


if __name__ == "__main__":
    main()
