"""The application: routers, problem handlers, limits, and the life of the database and the job runner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

import autosbp
from autosbp.errors import ServiceError
from service import handlers
from service.db import Database
from service.jobs._base import Kinds
from service.jobs._local import LocalRunner
from service.limits import BodyLimit
from service.routers import calibrations, clusters, health, jobs, models, searches, strategies, trials
from service.schemas._base import Problem
from service.services.kinds import kinds as all_kinds
from service.settings import Settings
from service.state import State

_ROUTERS = (models, clusters, calibrations, searches, strategies, trials, jobs, health)
_TAGS = [
    {"name": "models", "description": "Model graphs, addressed by their content."},
    {"name": "clusters", "description": "Devices and network levels, addressed by their content."},
    {"name": "calibrations", "description": "Measured collectives and ops of a cluster."},
    {"name": "searches", "description": "Questions: the best strategy of a model on a cluster."},
    {"name": "strategies", "description": "Answers: plans with predicted costs, baselines and provenance."},
    {"name": "trials", "description": "Measured runs of strategies and baselines."},
    {"name": "jobs", "description": "Long work: state, progress, cancelling."},
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
        version=autosbp.__version__,
        summary="Finds, explains and runs the fastest way to train a model on a cluster.",
        openapi_tags=_TAGS,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
    )
    database = Database(settings.url)
    runner = LocalRunner(
        database,
        kinds if kinds is not None else all_kinds(settings),
        settings.data_dir,
        settings.max_queued_jobs,
        settings.max_attempts,
        settings.cancel_grace_s,
    )
    app.state.service, app.state.failure = State(settings, database, runner), None
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes)
    handlers.install(app)
    for module in _ROUTERS:
        app.include_router(module.routes)
    _document_problems(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: State = app.state.service
    try:
        await run_in_threadpool(state.database.upgrade)
        await run_in_threadpool(state.runner.start)
        yield
    except (ServiceError, SQLAlchemyError) as error:
        app.state.failure = error
        raise
    finally:
        await run_in_threadpool(state.runner.stop)
        await run_in_threadpool(state.database.close)


def _document_problems(app: FastAPI) -> None:
    """Put the problem schema, which every route's errors refer to, into the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document["components"]["schemas"]
        schemas[Problem.__name__] = Problem.model_json_schema()
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
