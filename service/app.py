"""The application: routers, the edge around them, and the life of the database and the job runner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from autosbp.errors import AutosbpError
from service import handlers
from service.access.gate import Gate
from service.chores import Chores, chores_of
from service.db import Database
from service.edge import telemetry
from service.edge.metrics import Metrics
from service.edge.middleware import Edge
from service.edge.prefix import Prefix, check_apart
from service.edge.route import SCHEME
from service.hold import Hold
from service.jobs._base import Kinds
from service.jobs.feed import Feed
from service.limits import BodyLimit
from service.objects import Objects
from service.places import Places
from service.routers import (
    analyses,
    artifacts,
    audit,
    calibrations,
    clusters,
    health,
    jobs,
    keys,
    models,
    searches,
    strategies,
    trials,
)
from service.schemas import documents
from service.schemas._base import Problem
from service.services.jobs import counts
from service.settings import Settings
from service.state import State
from service.web.install import install as install_pages
from service.web.install import refusal
from service.work import runner_of

_ROUTES = (  # tried in this order: those that are asked for most come first
    *(jobs.routes, strategies.routes, searches.routes, models.routes, clusters.routes, calibrations.routes),
    *(analyses.routes, trials.routes, artifacts.routes, health.routes, health.measured, keys.routes, audit.routes),
)
API_VERSION = "1.23"
"""Of the HTTP interface: the first number grows with what breaks clients, the second with what is new."""
_TAGS = [
    {"name": "models", "description": "Model graphs, addressed by their content."},
    {"name": "clusters", "description": "Devices and network levels, addressed by their content."},
    {"name": "calibrations", "description": "Measured collectives and ops of a cluster."},
    {"name": "searches", "description": "Questions: the best strategy of a model on a cluster."},
    {"name": "strategies", "description": "Answers: plans with predicted costs, baselines and provenance."},
    {"name": "analyses", "description": "Questions about a strategy: why not another layout, what if."},
    {"name": "trials", "description": "Measured runs of strategies and baselines."},
    {"name": "artifacts", "description": "Files that trials and calibrations leave."},
    {"name": "jobs", "description": "Long work: state, progress, cancelling."},
    {"name": "keys", "description": "API keys of the caller's tenant."},
    {"name": "audit", "description": "Who did what."},
    {"name": "health", "description": "For supervisors and load balancers."},
]


def create_app(settings: Settings, kinds: Kinds | None = None) -> FastAPI:
    """The service as an ASGI application. It migrates the database and starts the job runner when it starts up.

    Args:
        settings: where data lives, and the limits.
        kinds: another table of job kinds than the service's own.
    """
    app = FastAPI(
        title="autosbp",
        version=API_VERSION,
        summary="Finds, explains and runs the fastest way to train a model on a cluster.",
        openapi_tags=_TAGS,
        lifespan=_lifespan,
        redirect_slashes=False,  # it would send clients to whatever host they named
        docs_url=None,
        redoc_url=None,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # the framework's own; see service.edge.telemetry
    )
    database = Database(settings.url, settings.lock_timeout_s)
    runner = runner_of(settings, database, kinds)
    gate = Gate(settings, database)
    feed, metrics = Feed(database, jobs.encode, gate.stands), Metrics()
    metrics.watch(lambda: counts(database), lambda: feed.num_followers)
    places = Places(settings.data_dir.resolve(), database.file, Objects(settings.artifacts_url).folder)
    app.state.service, app.state.failure = State(settings, database, runner, gate, feed, metrics, places), None
    app.state.hold = Hold(database, settings.data_dir)
    app.state.chores = Chores(database, chores_of(settings, database))
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes, answer=refusal)
    app.add_middleware(Edge, metrics=metrics, access_log=settings.access_log)
    if settings.root_path:
        app.add_middleware(Prefix, root=settings.root_path)
    handlers.install(app)
    for routes in _ROUTES:  # side by side: the framework looks through a router in another one twice for each request
        app.routes.extend(routes.routes)
    install_pages(app, settings, database)
    if settings.root_path:
        check_apart(settings.root_path, [getattr(route, "path", "/") for route in app.routes])
    _complete_document(app, settings.root_path)
    if settings.otel:
        telemetry.install(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: State = app.state.service
    try:
        to_thread.current_default_thread_limiter().total_tokens = state.settings.threads
        await run_in_threadpool(app.state.hold.take)
        await run_in_threadpool(state.database.upgrade)
        await run_in_threadpool(state.gate.check_start)
        await run_in_threadpool(state.runner.start)
        await run_in_threadpool(state.places.note)
        app.state.chores.start()
        yield
    except (AutosbpError, SQLAlchemyError) as error:
        app.state.failure = error
        raise
    finally:
        await run_in_threadpool(app.state.chores.stop)
        await run_in_threadpool(state.runner.stop)
        await state.database.leave()
        await run_in_threadpool(state.database.close)
        app.state.hold.release()


def _complete_document(app: FastAPI, root: str) -> None:
    """Put what every route refers to into the OpenAPI document: the problem schema, how a caller shows its key, and the path
    that the service is below."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document["components"]["schemas"]
        schemas[Problem.__name__] = Problem.model_json_schema()
        schemas |= documents.components()
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        document["components"]["securitySchemes"] = {SCHEME: {"type": "http", "scheme": "bearer"}}
        if root:
            document["servers"] = [{"url": root}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]
