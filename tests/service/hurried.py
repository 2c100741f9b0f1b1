"""The service with deadlines of two seconds for what clients send and read; its searches wait for the file ``gate`` beside its
data."""

from __future__ import annotations

import os
from dataclasses import replace

from autosbp.service import connection_limits
from autosbp.service.app import create_app
from autosbp.service.server import serve
from autosbp.service.services.job_kinds import kinds
from autosbp.service.settings import Settings


def main() -> None:
    connection_limits.HEAD_S = connection_limits.BODY_S = connection_limits.READ_S = connection_limits.LINGER_S = 2.0
    connection_limits.MIN_BODY_BYTES_PER_S = 4000
    settings = Settings(rank_variables=["TEST_GATE"])
    os.environ["TEST_GATE"] = str(settings.data_dir.parent / "gate")
    table = dict(kinds(settings))
    table["search"] = replace(table["search"], target="tests.service.tasks:held_search")
    serve(settings, app=create_app(settings, table))


if __name__ == "__main__":
    main()
