"""``keys``: made, listed, rotated and revoked on the machine of the service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Run
from tests.cli.processes import autosbp
from tests.service.server import Server

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def own_mask() -> Iterator[None]:
    """Commands of the service close what they make to other users, for good; these run in the tests' process."""
    mask = os.umask(0o022)
    yield
    os.umask(mask)


def test_a_key_is_made_listed_rotated_and_revoked(run: Run, tmp_path: Path) -> None:
    there = ("--data-dir", tmp_path)
    made = json.loads(run("keys", "create", "--tenant", "lab", "--scopes", "read,admin", *there, "--json").stdout)
    assert made["secret"].startswith(f"asbp_{made['prefix']}_") and made["scopes"] == "read admin"
    rotated = run("keys", "rotate", made["key"], "--grace-s", 0, *there)
    assert rotated.stdout.startswith("asbp_") and made["secret"] != rotated.stdout.strip()
    listed = json.loads(run("keys", "list", *there, "--json").stdout)["keys"]
    assert [(key["tenant"], key["state"]) for key in listed] == [("lab", "expired"), ("lab", "valid")]
    assert made["secret"] not in run("keys", "list", *there).stdout
    assert run("keys", "revoke", listed[1]["key"], *there).exit_code == 0
    assert json.loads(run("keys", "list", *there, "--json").stdout)["keys"][1]["state"] == "revoked"
    assert run("keys", "rotate", listed[1]["key"], *there).exit_code == 2


def test_the_first_key_requires_the_admin_scope(run: Run, tmp_path: Path) -> None:
    there = ("--data-dir", tmp_path)
    refused = run("keys", "create", *there)
    assert refused.exit_code == 2 and "scopes" in refused.stderr and "admin" in refused.stderr
    assert run("keys", "create", "--scopes", "admin", *there).exit_code == 0
    assert run("keys", "create", "--tenant", "lab", *there).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("create", "--scopes", "root"), "scopes"),
        (("create", "--tenant", "../x"), "tenant"),
        (("create", "--name", ""), "name"),
        (("revoke", "key-none"), "key-none"),
        *((("create", "--days", days), "days") for days in ("99999999", "1e308", "inf", "nan")),
        *((("rotate", "key-none", "--grace-s", seconds), "grace") for seconds in ("1e308", "nan")),
    ],
)
def test_bad_input_exits_with_2(run: Run, tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    done = run("keys", *arguments, "--data-dir", tmp_path)
    assert (done.exit_code, word in done.stderr) == (2, True)


def test_what_the_command_line_does_with_keys_is_in_the_audit_log(run: Run, tmp_path: Path) -> None:
    there = ("--data-dir", tmp_path)
    made = json.loads(run("keys", "create", "--tenant", "lab", "--scopes", "admin", *there, "--json").stdout)["key"]
    run("keys", "rotate", made, *there)
    run("keys", "revoke", made, *there)
    run("keys", "create", "--tenant", "other", *there)
    found = json.loads(run("audit", "--tenant", "lab", *there, "--json").stdout)["entries"]
    assert [(one["method"], one["path"], one["status"]) for one in found] == [
        ("DELETE", f"/v1/keys/{made}", 200),
        ("POST", f"/v1/keys/{made}:rotate", 201),
        ("POST", "/v1/keys", 201),
    ]
    assert found[2]["location"] == f"/v1/keys/{made}"
    assert {(one["tenant"], one["address"], one["caller"]) for one in found} == {("lab", "command line", None)}
    assert len(json.loads(run("audit", *there, "--json").stdout)["entries"]) == 4
    assert len(json.loads(run("audit", "--last", 1, *there, "--json").stdout)["entries"]) == 1
    assert json.loads(run("audit", "--strangers", *there, "--json").stdout)["entries"] == []
    assert "command line" in run("audit", *there).stdout
    both = run("audit", "--strangers", "--tenant", "lab", *there)
    assert (both.exit_code, "tenant" in both.stderr) == (2, True)


@pytest.mark.parametrize("command", [("keys", "list"), ("serve", "--port", 0), ("work",)], ids=lambda words: words[0])
@pytest.mark.some(3)
def test_an_impossible_database_location_is_refused_in_one_line(tmp_path: Path, command: tuple[object, ...]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "autosbp.db").write_text("no database " * 100)
    tmp_path.joinpath("autosbp.db").chmod(0o600)
    cases = (
        (2, "data_dir: ", "--data-dir", tmp_path / "file"),
        (2, "data_dir: ", "--data-dir", "/proc/none"),
        (2, "database_url: ", "--data-dir", tmp_path, "--database", f"sqlite:///{tmp_path}/file/x.db"),
        (5, "not a database", "--data-dir", tmp_path),
    )
    for code, word, *options in cases:
        done = autosbp(*command, *options)
        (error,) = (line for line in done.stderr.splitlines() if not line.startswith("INFO:"))
        assert (done.returncode, error[:7], word in error) == (code, "error: ", True), error


def test_the_audit_log_is_escaped_for_terminals(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("--data-dir", tmp_path)
    keys = [
        run("keys", "create", "--tenant", tenant, "--scopes", "admin", *there).stdout.strip()
        for tenant in ("default", "lab")
    ]
    with Server(tmp_path) as server:
        assert httpx.get(f"{server.url}/v1/models/%1b[31m").status_code == 401
        asked = ("audit", "--server", server.url, "--strangers")
        monkeypatch.setenv("AUTOSBP_API_KEY", keys[0])
        shown = run(*asked).stdout
        assert r"/v1/models/\x1b[31m" in shown and "\x1b" not in shown
        (entry,) = json.loads(run(*asked, "--status", 401, "--last", 5, "--json").stdout)["entries"]
        (here,) = json.loads(run("audit", "--strangers", *there, "--json").stdout)["entries"]
        assert {name: here[name] for name in entry if name != "time"} == {k: v for k, v in entry.items() if k != "time"}
        assert run("audit", "--server", server.url, "--tenant", "lab").exit_code == 2
        monkeypatch.setenv("AUTOSBP_API_KEY", keys[1])
        refused = run(*asked)
        assert refused.exit_code == 5 and "admins of the operating tenant" in refused.stderr
        assert run("audit", "--server", server.url).exit_code == 0
