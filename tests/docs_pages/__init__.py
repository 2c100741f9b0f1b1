"""What of ``docs`` is written from the code: ``scripts/docs`` writes it, and a test compares it.

Each function returns a whole file. Files hold no dates and no versions, so that the same code gives the same bytes. The page
``reference/op-rules.md`` has a program and a test of its own (``autosbp.testing.rules_document``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.docs_pages.cli import cli_page
from tests.docs_pages.configuration import configuration_page
from tests.docs_pages.file_schemas import file_schemas_page
from tests.docs_pages.http_api import http_api_page
from tests.docs_pages.schedules_picture import schedules_picture

GENERATED: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/configuration.md": configuration_page,
    "reference/file-schemas.md": file_schemas_page,
    "reference/http-api.md": http_api_page,
    "pictures/schedules.svg": schedules_picture,
}
"""Files of ``docs`` by their path."""
