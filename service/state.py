"""What requests share, and what each one has: its caller, and the caller's view of the database."""

from __future__ import annotations

import hashlib
import secrets
from asyncio import Lock
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Annotated, Self, cast

from fastapi import Depends, Request

from service.access.caller import Caller, anybody
from service.access.gate import Gate
from service.db import Database
from service.edge.metrics import Metrics
from service.jobs._base import JobRunner
from service.jobs.feed import Feed
from service.places import Places
from service.settings import Settings

OWN = "autosbp.state"
"""Where a request's scope has its own ``State``."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: who calls, and the idempotency key with the path that it is for."""

    caller: Caller
    request_id: str
    path: str
    key: str | None = None


_NO_CALL = Call(anybody(""), "", "")


@dataclass(frozen=True, slots=True)
class State:
    """What an application shares; every member may be used from any thread. ``of`` gives a request's own."""

    settings: Settings
    database: Database
    runner: JobRunner
    gate: Gate
    feed: Feed
    metrics: Metrics
    places: Places = field(default_factory=Places)
    call: Call = _NO_CALL
    large: Lock = field(default_factory=Lock)  # held while a large body is read and worked on
    closing: Event = field(
        default_factory=Event
    )  # set before connections are closed, so that streams end by themselves

    def of(self, call: Call) -> Self:
        """The same for one request: its sessions see the caller's tenant alone."""
        return replace(self, call=call, database=self.database.of(call.caller.tenant))

    def new_id(self, prefix: str) -> str:
        """A fresh id. Under an idempotency key it is a function of the call, so that a call whose answer was lost does not
        make a second one."""
        if self.call.key is None:
            return f"{prefix}-{secrets.token_hex(8)}"
        parts = (self.call.caller.tenant, self.call.key, self.call.path)
        return f"{prefix}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


async def _state(request: Request) -> State:
    """Fails where the route has not let a caller in: nothing is reached without one."""
    return cast(State, request.scope[OWN])


async def _shared(request: Request) -> State:
    return cast(State, request.app.state.service)


# Both are coroutines, because the framework runs plain functions in a thread, which costs more than they do.
StateDep = Annotated[State, Depends(_state)]
SharedDep = Annotated[State, Depends(_shared)]
"""For routes that anybody may call: sessions of this state see every tenant."""
