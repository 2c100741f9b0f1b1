"""Generates the synchronous client from the asynchronous one: ``python -m autosbp.service.testing.sync_client FOLDER``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from unasync import Rule, unasync_files

_NAMES = {
    "_async": "_sync",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncConnection": "Connection",
    "aclose": "close",
    "aiter_lines": "iter_lines",
    "aread": "read",
    "async_pause": "pause",
}


def write(folder: Path) -> None:
    """Write ``FOLDER/_sync`` from ``FOLDER/_async``."""
    source, target = folder / "_async", folder / "_sync"
    rule = Rule(f"{source}/", f"{target}/", additional_replacements=_NAMES)
    unasync_files([str(path) for path in sorted(source.glob("*.py"))], [rule])
    ruff = [sys.executable, "-m", "ruff"]
    own = 'lint.isort.known-first-party = ["autosbp"]'  # sorts imports the same in any folder
    subprocess.run([*ruff, "check", "--quiet", "--select", "I", "--fix", "--config", own, str(target)], check=True)
    subprocess.run([*ruff, "format", "--quiet", str(target)], check=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
