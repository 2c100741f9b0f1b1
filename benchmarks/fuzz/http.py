"""Requests that schemathesis makes up from the OpenAPI document, to a real service: valid, invalid, and in sequences.

Every answer is held to the document: no 5xx, a documented status, content type, headers and body; invalid requests are
refused and valid ones are not, other methods are 405 with ``Allow``, and nothing is answered without a key.
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
    """Try the service: the examples of the document, what covers its schemas, random cases, and sequences along its links.

    Args:
        folder: for files of the run.
        num_examples: random cases of each operation, and sequences.
        phases: some of ``PHASES``.

    Returns:
        ``cases``, ``phases`` (of each how it ended, its ``requests`` and these by the kind of answer), ``5xx`` and
        ``violations`` in all, ``failures`` (each with its kind, operations and count), ``logged_errors`` of the service,
        ``seconds``, and ``output``, where every failure comes with a request that shows it.
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
    variables = {**os.environ, "FUZZ_KEY_ID": service.key_id, "FUZZ_ANSWERS": str(answers_file)}
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
    """The configuration with ids of real resources, so that not every request is about one that does not exist."""
    lines = [_CONFIG.read_text()]
    for name, identifier in names.items():
        lines += [f"[dictionaries.{name}]", f'values = ["{identifier}"]']
    lines.append("[parameters]")
    for name in names:
        lines += [f'"{place}.{name}" = {{ dictionary = "{name}", probability = 0.5 }}' for place in ("path", "body")]
    return "\n".join(lines) + "\n"
