"""The client that does not wait: the same methods, of which the other client is made."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from autosbp.client import AsyncClient, Client, Job, NotFoundError, StillRunningError, UnreachableError
from autosbp.service.testing.sync_client import write
from tests.service import documents
from tests.service.server import ROOT, Server

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("service")) as server:
        yield server.url


def test_the_sync_client_is_generated_from_the_async_one(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "autosbp" / "client" / "_async", tmp_path / "_async")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    write(tmp_path)
    made = {path.name: path.read_text() for path in (tmp_path / "_sync").glob("*.py")}
    there = {path.name: path.read_text() for path in (ROOT / "autosbp" / "client" / "_sync").glob("*.py")}
    assert made == there, "run scripts/client"


def test_both_have_the_same_methods_with_the_same_parameters() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(each).parameters) for name, each in found if not name.startswith("_")}

    own, other = methods(AsyncClient), methods(Client)
    assert own.pop("aclose") == other.pop("close")
    assert own == other and len(own) > 50


def test_the_async_client_plans_while_other_tasks_run(url: str) -> None:
    seen: list[Job] = []

    async def planned() -> None:
        async with AsyncClient(url) as client:
            model, cluster = await client.post_model(documents.graph()), await client.post_cluster("local:2x2")
            job = await client.search(model, cluster, options=documents.OPTIONS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, client, job.id)
                done = await client.wait(job)
            assert [each.id async for each in client.jobs(kind="search")][0] == job.id
            assert (await client.get_strategy(done.result["strategy_id"]))["plan_id"] == done.result["strategy_id"]
            with pytest.raises(NotFoundError):
                await client.get_model("mod-none")
            assert (await client.metrics()) and (await client.health())["status"] == "ok"

    async def follow(client: AsyncClient, job_id: str) -> None:
        async for change in client.follow(job_id):
            seen.append(change)

    anyio.run(planned)
    assert seen and seen[-1].state == "succeeded"


def test_waiting_for_one_job_does_not_block_others() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        job = dict.fromkeys(("resource", "progress", "problem", "result"))
        job |= {"id": "job-1", "kind": "search", "state": "running", "message": "", "figures": {}}
        return httpx.Response(200, json=job)

    async def several() -> None:
        async with AsyncClient("http://there", transport=httpx.MockTransport(answer)) as client:
            job = await client.get_job("job-1")

            async def wait() -> None:
                with pytest.raises(StillRunningError):
                    await client.wait(job, timeout_s=0.3)

            with anyio.fail_after(5):
                async with anyio.create_task_group() as tasks:
                    for _ in range(100):
                        tasks.start_soon(wait)

    anyio.run(several)


def test_an_unreachable_service_raises_an_autosbp_error() -> None:
    async def ask() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            await client.health()

    with pytest.raises(UnreachableError):
        anyio.run(ask)


_ALONE = """
import sys

ALLOWED = {"autosbp", "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "sniffio", "typing_extensions", "zstandard"}

class Alone:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names and not top.startswith("_"):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Alone())
import autosbp
from autosbp.client import AsyncClient, Client
assert autosbp.__file__.startswith(sys.argv[1]), autosbp.__file__
with Client(sys.argv[2]) as client:
    print(client.post_cluster("local:3"), client.health()["status"])
"""


def test_its_own_wheel_needs_httpx_and_nothing_of_the_planner(url: str, tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "client-wheel", tmp_path / "wheels"], check=True)
    (wheel,) = (tmp_path / "wheels").glob("autosbp_client-*.whl")
    there = tmp_path / "there"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", there, wheel], check=True)
    command = [sys.executable, "-W", "ignore", "-c", _ALONE, str(there), url]
    done = subprocess.run(command, env={"PYTHONPATH": str(there)}, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("clu-") and done.stdout.endswith("ok\n")
    assert sum(path.stat().st_size for path in there.rglob("*.py")) < 200_000
