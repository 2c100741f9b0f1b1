"""Requests that schemathesis generates from the OpenAPI document: valid, invalid, and in sequences.

They go to a real service, and every response is checked against the document: no 5xx, documented status, content type,
headers and body. Invalid requests must be refused and valid ones must not, other methods must give 405 with ``Allow``,
and nothing is served without a key.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.fuzz._server import Served

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "openapi.json"
_CONFIG = Path(__file__).parent / "schemathesis.toml"
PHASES = ("examples", "coverage", "fuzzing", "stateful")
_EXPECTED_EXITS = (0, 1)


def attack(
    service: Served, folder: Path, seed: int, num_examples: int, phases: tuple[str, ...] = PHASES
) -> dict[str, Any]:
    """Test the service with the document's examples, schema coverage, random cases, and sequences along its links.

    Args:
        folder: for files of the run.
        num_examples: random cases per operation, and sequences.
        phases: some of ``PHASES``.

    Returns:
        ``cases``; ``phases`` (each with its status, number of ``requests`` and their counts by status class); total
        ``5xx`` and ``violations``; ``failures`` (each with its kind, operations and count); ``logged_errors`` of the
        service; ``seconds``; and ``output``, where every failure comes with a request that reproduces it.
    """
    answers_file = folder / "answers"
    report, config = folder / "report.json", folder / "schemathesis.toml"
    config.write_text(_config(service.names))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", config, "run", DOCUMENT),
        *("--url", service.url, "--header", f"Authorization: Bearer {service.key}", "--no-color"),
        *("--seed", str(seed), "--max-examples", str(num_examples), "--phases", ",".join(phases)),
        *("--report", "json", "--report-json-path", report),
    ]
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FUZZ_KEY_ID": service.key_id,
        "FUZZ_ANSWERS": str(answers_file),
    }
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode not in _EXPECTED_EXITS or not report.exists():
        raise RuntimeError(f"schemathesis did not run:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    found, answers = json.loads(report.read_text()), Counter(answers_file.read_text().splitlines())
    return {
        "cases": found["test_cases"]["generated"],
        "operations": found["operations"]["tested"],
        "phases": {name: {"status": found["phases"][name]["status"], **_of_phase(answers, name)} for name in phases},
        "5xx": sum(number for line, number in answers.items() if line.endswith(" 5xx")),
        "violations": found["test_cases"]["with_failures"],
        "failures": found["failures"],
        "errors": found["errors"],
        "complete": found["complete"],
        "logged_errors": service.log.read_text().count("Traceback"),
        "seconds": round(found["running_time"], 1),
        "output": done.stdout,
    }


def _of_phase(answers: Mapping[str, int], name: str) -> dict[str, int]:
    own = {line.split()[1]: number for line, number in sorted(answers.items()) if line.split()[0] == name}
    return {"requests": sum(own.values()), **own}


def _config(names: Mapping[str, str]) -> str:
    """The configuration with ids of existing resources, so that not every request refers to a missing one."""
    lines = [_CONFIG.read_text()]
    for name, identifier in names.items():
        lines += [f"[dictionaries.{name}]", f'values = ["{identifier}"]']
    lines.append("[parameters]")
    for name in names:
        lines += [f'"{place}.{name}" = {{ dictionary = "{name}", probability = 0.5 }}' for place in ("path", "body")]
    return "\n".join(lines) + "\n"
