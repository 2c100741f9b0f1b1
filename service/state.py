"""What requests share: settings, database, job runner, and whether the service is closing."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Annotated, cast

from fastapi import Depends, Request

from service.db import Database
from service.jobs._base import JobRunner
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class State:
    """One per application; every member may be used from any thread."""

    settings: Settings
    database: Database
    runner: JobRunner
    closing: Event = field(
        default_factory=Event
    )  # set before connections are closed, so that streams end by themselves


def _state(request: Request) -> State:
    return cast(State, request.app.state.service)


StateDep = Annotated[State, Depends(_state)]
