"""The service with deadlines of two seconds for what clients send and read; its searches wait for the file ``gate`` beside its
data."""

from __future__ import annotations

import os
from dataclasses import replace

from service import connections
from service.app import create_app
from service.server import serve
from service.services.kinds import kinds
from service.settings import Settings


def main() -> None:
    connections.HEAD_S = connections.BODY_S = connections.READ_S = 2.0
    settings = Settings()
    os.environ["TEST_GATE"] = str(settings.data_dir.parent / "gate")
    table = dict(kinds(settings))
    table["search"] = replace(table["search"], target="tests.service.tasks:held_search")
    serve(settings, app=create_app(settings, table))


if __name__ == "__main__":
    main()
