"""The service with searches that wait for the file ``TEST_GATE``; the URL goes to the file ``TEST_URL``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from autosbp.service.app import create_app
from autosbp.service.server import serve
from autosbp.service.services.job_kinds import kinds
from autosbp.service.settings import Settings


def main() -> None:
    settings = Settings(rank_variables=["TEST_GATE"])
    table = dict(kinds(settings))
    table["search"] = replace(table["search"], target="tests.service.tasks:held_search")
    serve(settings, on_ready=Path(os.environ["TEST_URL"]).write_text, app=create_app(settings, table))


if __name__ == "__main__":
    main()
