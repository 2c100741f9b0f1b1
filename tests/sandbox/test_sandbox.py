"""What confined ranks can reach: real processes that try."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosbp.errors import InputError
from autosbp.launch.local import RankOutcome, run_ranks
from autosbp.sandbox import Sandbox, bubblewrap_unavailable_reason, limits_unavailable_reason
from autosbp.sandbox import confinement as module
from autosbp.utils.processes import start_ticks

pytestmark = pytest.mark.integration

RANK = "tests.sandboxed_rank"
SECRETS = {"PGPASSWORD": "hush-1", "AWS_SECRET_ACCESS_KEY": "hush-2", "AUTOSBP_DATABASE_URL": "hush-3"}
LIMITS = {"RLIMIT_CORE": 0, "RLIMIT_AS": 8 * 2**30, "RLIMIT_FSIZE": 2**24}
LACKS = {
    "bubblewrap": limits_unavailable_reason() or bubblewrap_unavailable_reason(),
    "limits": limits_unavailable_reason(),
    "none": None,
}
SANDBOX = Sandbox(memory_bytes=LIMITS["RLIMIT_AS"], file_bytes=LIMITS["RLIMIT_FSIZE"])
ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the user")


def of(way: str) -> Sandbox:
    """Skips the test where the way does not work; in CI it has to."""
    if LACKS[way] is not None and not os.environ.get("CI"):
        pytest.skip(str(LACKS[way]))
    return replace(SANDBOX, way=way)


def run(folder: Path, sandbox: Sandbox, **asked: Any) -> RankOutcome:
    path = folder / "asked.json"
    path.write_text(json.dumps({"told": str(folder / "told.json"), **asked}))
    return run_ranks(RANK, [str(path)], 1, folder / "ranks.log", timeout_s=100, sandbox=sandbox)


def found_by_rank(tmp_path: Path, sandbox: Sandbox) -> dict[str, Any]:
    """What a rank tells of its surroundings. It is beside the data of a service in ``data``."""
    job = tmp_path / "data" / "job"
    job.mkdir(parents=True)
    (tmp_path / "data" / "autosbp.db").write_text("everything")
    (job.parent / "other").mkdir()
    (job.parent / "other" / "result.json").write_text("another tenant's")
    named = [*map(str, (tmp_path / "data" / "autosbp.db", job.parent / "other" / "result.json")), "/etc/shadow"]
    mark = f"MARK_OF_THE_SERVICE={tmp_path.name}"
    outside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=dict([mark.split("=")]))
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            asked = {"limits": list(LIMITS), "read": named, "write": named[:2], "words": [mark]}
            hidden = (str(tmp_path / "data"),)
            outcome = run(job, replace(sandbox, hidden=hidden), port=listening.getsockname()[1], **asked)
    finally:
        outside.kill()
        outside.wait()
    assert outcome.reason == "", outcome.log_tail
    found: dict[str, Any] = json.loads((job / "told.json").read_text())
    return found


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("way", ["bubblewrap", "limits"])
def test_a_rank_has_no_secret_no_privilege_and_limits(tmp_path: Path, way: str) -> None:
    found = found_by_rank(tmp_path, of(way))
    assert not [text for text in found["environ"] if "hush" in text]
    assert {text.partition("=")[0] for text in found["environ"]} >= {"PATH", "PYTHONPATH", "GLOO_SOCKET_IFNAME"}
    assert found["no_new_privileges"] == "1"
    assert found["oom_score_adj"] > int(Path("/proc/self/oom_score_adj").read_text())
    assert found["limits"] == LIMITS
    assert found["temporary"] == found["home"]
    assert not Path(found["temporary"], "mine").exists(), "what it keeps in its temporary folder goes with it"


@pytest.mark.parametrize("user", [None, pytest.param("nobody", marks=ROOT_ALONE)])
def test_bubblewrap_leaves_nothing_of_the_machine_but_the_jobs_folder(tmp_path: Path, user: str | None) -> None:
    found = found_by_rank(tmp_path, replace(of("bubblewrap"), user=user))
    assert set(found["read"].values()) == {"No such file or directory"}
    # It may have written a file of that name, which nobody but itself has seen.
    assert (tmp_path / "data" / "autosbp.db").read_text() == "everything"
    assert (tmp_path / "data" / "other" / "result.json").read_text() == "another tenant's"
    assert (found["others"], found["capabilities"]) == ([], 0)
    assert found["connected"] == "Connection refused", "the loopback interface is its own"
    assert found["user"] == (os.getuid() if user is None else 65534)


@ROOT_ALONE
def test_another_user_reads_nothing_of_the_services_with_limits_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    sandbox = replace(of("limits"), user="nobody")
    before = os.umask(0o077)  # as a service has it
    try:
        found = found_by_rank(tmp_path, sandbox)
    finally:
        os.umask(before)
    assert set(found["read"].values()) == {"Permission denied"}
    assert not set(found["write"].values()) & {"done"}
    assert (found["others"], found["capabilities"], found["user"]) == ([], 0, 65534)


@pytest.mark.parametrize("way", ["bubblewrap", "limits"])
def test_endless_output_of_a_rank_is_cut_in_the_middle(tmp_path: Path, way: str) -> None:
    outcome = run(tmp_path, replace(of(way), log_bytes=2**20), flood=50_000_000)
    assert outcome.reason == ""
    log = (tmp_path / "ranks.log").read_text()
    assert log.startswith("the first line\n") and log.endswith("the last line\n")
    assert 2**20 <= len(log) < 2**20 + 100
    assert f"[{50_000_000 + 29 - 2**20} bytes of the log omitted]" in log


@pytest.mark.parametrize("way", ["bubblewrap", "limits"])
def test_no_process_is_left_of_ranks_that_are_ended(tmp_path: Path, way: str) -> None:
    path, told = tmp_path / "asked.json", tmp_path / "told"
    path.write_text(json.dumps({"told": str(told), "hang": True}))
    seen: list[int] = []

    def stop_once_up() -> bool:
        if told.exists():
            seen.extend(running(str(path)))
        return not told.exists()

    outcome = run_ranks(RANK, [str(path)], 2, tmp_path / "log", timeout_s=60, poll=stop_once_up, sandbox=of(way))
    assert outcome.reason == "cancelled" and len(seen) >= 3
    deadline_s = time.monotonic() + 10
    while (running(str(path)) or any(map(start_ticks, seen))) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not running(str(path)) and not any(map(start_ticks, seen))


def test_a_rank_killed_in_its_sandbox_is_reported(tmp_path: Path) -> None:
    path, told = tmp_path / "asked.json", tmp_path / "told"
    path.write_text(json.dumps({"told": str(told), "hang": True}))
    killed: list[int] = []

    def kill_it() -> bool:
        if told.exists() and not killed:
            killed.append(max(running(str(path))))
            os.kill(killed[0], 9)
        return True

    sandbox = of("bubblewrap")
    outcome = run_ranks(RANK, [str(path)], 1, tmp_path / "log", timeout_s=60, poll=kill_it, sandbox=sandbox)
    assert outcome.reason == "a rank failed" and outcome.log_tail.endswith("was killed by SIGKILL")


def running(word: str) -> list[int]:
    """Processes of this machine that have the word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_links_that_a_rank_leaves_are_gone_before_anybody_follows_them(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("everything")
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "users").symlink_to(secret)
    command = ["/bin/sh", "-c", f"ln -s {secret} {folder}/result.json; mkfifo {folder}/ranks.node1.log"]
    with of("bubblewrap").confined(command, folder, os.environ) as (confined, env):
        subprocess.run(confined, env=env, check=True)
        assert len(list(folder.iterdir())) == 3
    assert [path.name for path in folder.iterdir()] == ["users"], "what was there before stays"


def test_hidden_folders_are_empty_even_inside_the_python_prefix(tmp_path: Path) -> None:
    around, folder = tmp_path / "library", tmp_path / "library" / "data" / "job"
    folder.mkdir(parents=True)
    (around / "module.py").write_text("known = 1\n")
    (around / "store.db").write_text("everything")
    (folder.parent / "secret").write_text("everything")
    (folder / "request.json").write_text("own")
    sandbox = replace(of("bubblewrap"), hidden=(str(folder.parent), str(around / "store.db")))
    command = ["/bin/sh", "-c", f"cat {around}/*.* {folder.parent}/secret; cat {folder}/*; touch {around}/new"]
    with sandbox.confined(command, folder, {**os.environ, "PYTHONPATH": str(around)}) as (confined, env):
        told = subprocess.run(confined, env=env, capture_output=True, text=True)
    assert told.stdout == "known = 1\nown"
    assert "secret: No such file" in told.stderr and "Read-only file system" in told.stderr


def test_an_unavailable_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "limits_unavailable_reason", lambda: None)
    monkeypatch.setattr(module, "bubblewrap_unavailable_reason", lambda *_: "bubblewrap is not installed")
    with pytest.raises(InputError, match="sandbox: 'bubblewrap'.*bubblewrap is not installed"):
        Sandbox("bubblewrap").resolved_way()
    assert Sandbox().resolved_way() == "limits"
    assert "bubblewrap is not installed" in Sandbox().weakness
    for wrong in (Sandbox("none", user="nobody"), Sandbox(user="nobody at all"), Sandbox("jail")):
        with pytest.raises(InputError):
            wrong.resolved_way()


def test_a_lower_limit_that_is_there_already_stays(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with of("limits").confined(["/bin/sh", "-c", "ulimit -n"], tmp_path, os.environ) as (command, env):
        told = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert int(told) <= min(soft, hard)
