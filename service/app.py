"""The ASGI application: routers, middleware, and the lifespan of the database and the job runner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from autosbp.errors import AutosbpError
from autosbp.service import database_damage, error_handlers
from autosbp.service.artifact_storage import ArtifactStorage
from autosbp.service.auth.authentication import Authentication
from autosbp.service.db import Database
from autosbp.service.http import opentelemetry_setup
from autosbp.service.http.api_route import SCHEME
from autosbp.service.http.metrics import Metrics
from autosbp.service.http.middleware import OuterMiddleware
from autosbp.service.http.root_path import RootPath, check_no_route_conflict
from autosbp.service.jobs._base import Kinds
from autosbp.service.jobs.change_feed import ChangeFeed
from autosbp.service.maintenance import Maintenance, maintenance_tasks
from autosbp.service.process_lock import ProcessLock
from autosbp.service.request_limits import AddressLimit, BodyLimits, body_budget
from autosbp.service.request_state import AppState
from autosbp.service.routers import (
    analyses,
    artifacts,
    audit,
    calibrations,
    clusters,
    health,
    jobs,
    keys,
    models,
    openapi_document,
    searches,
    strategies,
    trials,
)
from autosbp.service.schemas import documents
from autosbp.service.schemas._base import Problem
from autosbp.service.services.jobs import counts
from autosbp.service.settings import Settings
from autosbp.service.storage_health import StorageHealth
from autosbp.service.web.app_setup import install as install_pages
from autosbp.service.web.app_setup import refusal
from autosbp.service.worker_main import make_runner

_ROUTES = (  # the router tries them in this order: most requested first
    *(jobs.routes, strategies.routes, searches.routes, models.routes, clusters.routes, calibrations.routes),
    *(
        analyses.routes,
        trials.routes,
        artifacts.routes,
        health.routes,
        health.metrics_routes,
        openapi_document.routes,
        keys.routes,
        audit.routes,
    ),
)
API_VERSION = "2.1"
"""Version of the HTTP API: the first number grows with breaking changes, the second with additions."""
_TAGS = [
    {"name": "models", "description": "Model graphs, content-addressed."},
    {"name": "clusters", "description": "Devices and network levels, content-addressed."},
    {"name": "calibrations", "description": "Measured collectives and ops of a cluster."},
    {"name": "searches", "description": "Searches for the best strategy of a model on a cluster."},
    {"name": "strategies", "description": "Plans found by searches, with predicted costs, baselines and provenance."},
    {"name": "analyses", "description": "What-if and why-not analyses of a strategy."},
    {"name": "trials", "description": "Measured runs of strategies and baselines."},
    {"name": "artifacts", "description": "Files produced by trials and calibrations."},
    {"name": "jobs", "description": "Long-running work: state, progress, cancellation."},
    {"name": "keys", "description": "API keys of the caller's tenant."},
    {"name": "audit", "description": "Audit log."},
    {"name": "health", "description": "Health checks for supervisors and load balancers."},
]


def create_app(settings: Settings, kinds: Kinds | None = None) -> FastAPI:
    """Build the service as an ASGI application. On startup it migrates the database and starts the job runner.

    Args:
        settings: where data lives, and the limits.
        kinds: job kinds to use in place of the service's own.

    Returns:
        The application; ``app.state`` holds what its parts share.
    """
    app = FastAPI(
        title="autosbp",
        version=API_VERSION,
        summary="Finds, explains and runs the fastest way to train a model on a cluster.",
        openapi_url=None,  # ``autosbp.service.routers.openapi_document`` serves it
        openapi_tags=_TAGS,
        lifespan=_lifespan,
        redirect_slashes=False,  # redirects would trust the Host header of the client
        docs_url=None,
        redoc_url=None,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # disables the framework's own telemetry; see autosbp.service.http.opentelemetry_setup
    )
    database = Database(settings.url, settings.lock_timeout_s)
    runner = make_runner(settings, database, kinds)
    gate = Authentication(settings, database)
    feed, metrics = ChangeFeed(database, jobs.format_event, gate.is_still_admitted), Metrics()
    metrics.add_gauges(lambda: counts(database), lambda: feed.num_followers)
    places = StorageHealth(settings.data_dir.resolve(), database.file, ArtifactStorage(settings.artifacts_url).folder)
    app.state.service, app.state.failure = AppState(settings, database, runner, gate, feed, metrics, places), None
    app.state.interface = openapi_document.OpenApiDocument(app)
    app.state.hold = ProcessLock(database, settings.data_dir)
    app.state.chores = Maintenance(database, maintenance_tasks(settings, database))
    app.add_middleware(BodyLimits, budget=body_budget(settings.body_budget_bytes, settings.max_body_bytes))
    app.add_middleware(AddressLimit, limit=settings.max_connections_of_address, answer=refusal)
    app.add_middleware(OuterMiddleware, metrics=metrics, access_log=settings.access_log)
    if settings.root_path:
        app.add_middleware(RootPath, root=settings.root_path)
    error_handlers.install(app)
    for routes in _ROUTES:  # flat list: the framework matches each request twice against a nested router
        app.routes.extend(routes.routes)
    install_pages(app, settings, database)
    if settings.root_path:
        check_no_route_conflict(settings.root_path, [getattr(route, "path", "/") for route in app.routes])
    _complete_document(app, settings.root_path)
    if settings.otel:
        opentelemetry_setup.install(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: AppState = app.state.service
    try:
        to_thread.current_default_thread_limiter().total_tokens = state.settings.threads
        await run_in_threadpool(app.state.hold.take)
        await run_in_threadpool(database_damage.upgrade, state.database)
        await run_in_threadpool(state.gate.check_start)
        await run_in_threadpool(state.runner.start)
        await run_in_threadpool(state.places.record_identities)
        app.state.chores.start()
        yield
    except (AutosbpError, SQLAlchemyError) as error:
        app.state.failure = error
        raise
    finally:
        await run_in_threadpool(app.state.chores.stop)
        await run_in_threadpool(state.runner.stop)
        await state.database.close_async()
        await run_in_threadpool(state.database.close)
        app.state.hold.release()


def _complete_document(app: FastAPI, root: str) -> None:
    """Add to the OpenAPI document what all routes refer to.

    These are the problem schema, the bearer authentication scheme, and the path prefix of the service.
    """
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
