"""/v1/models"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Response

from service.models import JobRow
from service.routers._base import JsonBody, accepted, problems, queued, router, stored
from service.schemas._base import Cursor, Document, Limit, Page, PathId
from service.schemas.jobs import Job
from service.schemas.models import EXAMPLES, Model
from service.services import models
from service.state import StateDep

routes = router("models")


@routes.post(
    "",
    summary="Store a model: a graph, a model of the zoo, or a Hugging Face configuration",
    status_code=201,
    response_model=Model | Job,
    responses={**accepted(), 200: {"model": Model, "description": "It was already stored."}, **problems(413, 429)},
)
def create(
    state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]
) -> Model | Job:
    """A graph document or a model of the zoo answers 201 (200 if it is known), a configuration 202 with a job."""
    outcome = models.create(state, body)
    if isinstance(outcome, JobRow):
        return queued(response, outcome)
    stored(response, f"/v1/models/{outcome[0].id}", outcome[1])
    return Model.model_validate(outcome[0])


@routes.get("", summary="List models")
def listing(state: StateDep, limit: Limit = 50, cursor: Cursor = None) -> Page[Model]:
    """Newest first."""
    rows, following = models.listing(state, limit, cursor)
    return Page(items=[Model.model_validate(row) for row in rows], next_cursor=following)


@routes.get("/{model_id}", summary="One model", responses=problems(404))
def get(state: StateDep, model_id: PathId) -> Model:
    """Name, source and summary."""
    return Model.model_validate(models.get(state, model_id))


@routes.get("/{model_id}/graph", summary="A model's graph document", responses=problems(404))
def graph(state: StateDep, model_id: PathId) -> Document:
    """The graph in the graph file format."""
    return models.graph(state, model_id)


@routes.delete("/{model_id}", summary="Delete a model", status_code=204, responses=problems(404, 409))
def delete(state: StateDep, model_id: PathId) -> None:
    """409 while a search or a strategy refers to it."""
    models.delete(state, model_id)
