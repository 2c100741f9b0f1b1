"""What the README shows of the service, as it is written there: requests become a plan in less than a minute."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.server import ROOT, Server

pytestmark = pytest.mark.integration

SECONDS = 60


def commands() -> str:
    """The block behind "Over HTTP", without its indentation."""
    text = (ROOT / "README.md").read_text().partition("\nOver HTTP")[2]
    found = re.search(r"\n\n((?:    .*\n)+)\n", text)
    assert found is not None
    return "".join(line.removeprefix("    ") for line in found[1].splitlines(keepends=True))


def test_the_readme_turns_requests_into_a_plan_in_less_than_a_minute(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        script = commands().replace("localhost:8000", server.url.removeprefix("http://"))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    *events, plan = [line for line in done.stdout.splitlines() if line]
    assert "event: end" in events
    found = json.loads(plan)
    assert (found["model"], found["cluster"]["name"]) == ("gpt2-demo", "local:2x2")
    assert found["step_time_s"] > 0 and found["baselines"]
