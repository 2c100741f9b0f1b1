"""State that requests share (``AppState``) and state of one request: its caller and the caller's view of the database."""

from __future__ import annotations

import hashlib
import secrets
from asyncio import Lock
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Annotated, Self, cast

from fastapi import Depends, Request

from autosbp.service.auth.authentication import Authentication
from autosbp.service.auth.caller import Caller, anonymous_caller
from autosbp.service.db import Database
from autosbp.service.http.metrics import Metrics
from autosbp.service.jobs._base import JobRunner
from autosbp.service.jobs.change_feed import ChangeFeed
from autosbp.service.models import ID_DIGITS
from autosbp.service.settings import Settings
from autosbp.service.storage_health import StorageHealth
from autosbp.service.thread_pools import CoalescingThread, ThreadPool

STATE_KEY = "autosbp.state"
"""Key of the request's ``AppState`` in its ASGI scope."""


@dataclass(frozen=True, slots=True)
class RequestCall:
    """One request: its caller, and the idempotency key with the path for which it is valid."""

    caller: Caller
    request_id: str
    path: str
    key: str | None = None


_NO_CALL = RequestCall(anonymous_caller(""), "", "")


@dataclass(frozen=True, slots=True)
class AppState:
    """Shared state of the application; every member is thread-safe. ``of`` derives a request's own state."""

    settings: Settings
    database: Database
    runner: JobRunner
    gate: Authentication
    feed: ChangeFeed
    metrics: Metrics
    places: StorageHealth = field(default_factory=StorageHealth)
    call: RequestCall = _NO_CALL
    large: Lock = field(default_factory=Lock)  # held while a large body is parsed and processed
    capture_threads: ThreadPool = field(default_factory=lambda: ThreadPool(2, 16))
    health: CoalescingThread = field(default_factory=CoalescingThread)
    closing: Event = field(
        default_factory=Event
    )  # set before connections are closed, so that streams end by themselves

    def of(self, call: RequestCall) -> Self:
        """Return the state of one request; its sessions see only the caller's tenant."""
        return replace(self, call=call, database=self.database.of(call.caller.tenant))

    def new_id(self, prefix: str) -> str:
        """Create a new id.

        With an idempotency key the id is a function of tenant, key and path: a retry after a lost answer creates no
        second resource.
        """
        if self.call.key is None:
            return f"{prefix}-{secrets.token_hex(ID_DIGITS // 2)}"
        parts = (self.call.caller.tenant, self.call.key, self.call.path)
        return f"{prefix}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:ID_DIGITS]}"


async def _state(request: Request) -> AppState:
    """State of an authenticated request; raises ``KeyError`` if the route has not authenticated a caller."""
    return cast(AppState, request.scope[STATE_KEY])


async def _shared(request: Request) -> AppState:
    return cast(AppState, request.app.state.service)


# Both are coroutines: the framework runs plain functions in a thread, which costs more than they do.
StateDep = Annotated[AppState, Depends(_state)]
PublicStateDep = Annotated[AppState, Depends(_shared)]
"""State for public routes, which need no caller; its sessions see every tenant."""
