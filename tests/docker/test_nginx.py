"""What nginx in front of the service lets through is what the service takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autosbp.service.app import create_app
from autosbp.service.connection_limits import HEAD_BYTES
from autosbp.service.http.api_route import GuardedRoute
from autosbp.service.settings import Settings

CONFIGURATION = (Path(__file__).parents[2] / "docker" / "nginx.conf").read_text()
_UNITS = {"k": 2**10, "m": 2**20}
_LOCATION = re.compile(r"location (=|~)? ?(\S+) \{([^}]*)\}")


def size(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]]


def most_body_bytes(path: str) -> int:
    """As nginx finds it: an equal path, else the first expression that matches, else the server's."""
    general = re.search(r"client_max_body_size (\w+);", CONFIGURATION)
    assert general is not None
    locations = _LOCATION.findall(CONFIGURATION)
    found = [body for kind, where, body in locations if kind == "=" and where == path]
    found += [body for kind, where, body in locations if kind == "~" and re.search(where, path)]
    own = re.search(r"client_max_body_size (\w+);", found[0]) if found else None
    return size((own or general)[1])


def test_bodies_have_the_limits_of_their_routes(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    routes = [each for each in create_app(settings).routes if isinstance(each, GuardedRoute) and "POST" in each.methods]
    assert len(routes) > 10
    for route in routes:
        assert most_body_bytes(route.path) == route.max_body_bytes(settings), route.path
    assert most_body_bytes("/sign-in") == 4096


@pytest.mark.parametrize(
    ("pattern", "setting"),
    [
        (r"limit_conn connections (\d+);", "max_connections_of_address"),
        (r"rate=(\d+)r/s", "rate_limit_per_s"),
        (r"burst=(\d+)", "rate_limit_burst"),
    ],
)
def test_an_address_has_the_limits_of_the_settings(pattern: str, setting: str) -> None:
    found = re.search(pattern, CONFIGURATION)
    assert found is not None and int(found[1]) == Settings.model_fields[setting].default


def test_a_head_is_as_large_as_the_service_reads() -> None:
    found = re.search(r"large_client_header_buffers (\d+) (\w+);", CONFIGURATION)
    assert found is not None and int(found[1]) * size(found[2]) == HEAD_BYTES
