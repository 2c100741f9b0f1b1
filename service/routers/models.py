"""/v1/models"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Response

from service.edge.conditions import IfMatch, etag, expect, tag
from service.edge.route import slow
from service.models import JobRow
from service.routers._base import (
    IDEMPOTENT,
    JsonBody,
    accepted,
    listed,
    made,
    paged,
    posted,
    problems,
    queued,
    router,
    stored,
    tagged,
)
from service.schemas._base import Document, Name, Page, PathId, WindowDep
from service.schemas.documents import any_of
from service.schemas.jobs import Job
from service.schemas.models import EXAMPLES, Model
from service.services import models
from service.state import StateDep

routes = router("models", "search")
_LINKS = {
    "model": "get /v1/models/{model_id}",
    "graph": "get /v1/models/{model_id}/graph",
    "delete": "delete /v1/models/{model_id}",
}


@routes.post(
    "",
    summary="Store a model: a graph, a model of the zoo, a Hugging Face configuration, or ONNX",
    status_code=201,
    response_model=Model | Job,
    responses={**accepted(), **made(Model, "model_id", **_LINKS), **posted()},
    openapi_extra={**IDEMPOTENT, **any_of("GraphDocument", "ZooModel", "HfModel", "OnnxModel")},
)
def create(
    state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]
) -> Model | Job:
    """A graph document or a model of the zoo answers 201 (200 if it is known), others answer 202 with a job."""
    outcome = models.create(state, body)
    if isinstance(outcome, JobRow):
        return queued(response, outcome)
    row, is_new = outcome
    stored(response, f"/v1/models/{row.id}", is_new, row.graph_hash)
    return Model.model_validate(row)


@routes.get("", summary="List models", response_model=Page[Model], responses=listed("model_id", **_LINKS))
def listing(state: StateDep, window: WindowDep, name: Name = None, source: Name = None) -> Response:
    """Newest first; of one name or source, if asked."""
    rows, following = models.listing(state, window, name=name, source=source)
    return paged(Model, rows, following)


@routes.get("/{model_id}", summary="One model", responses=tagged(404))
def get(state: StateDep, response: Response, model_id: PathId) -> Model:
    """Name, source and summary."""
    row = models.get(state, model_id)
    tag(response, row.graph_hash)
    return Model.model_validate(row)


@routes.get("/{model_id}/graph", summary="A model's graph document", responses=tagged(404))
@slow
def graph(state: StateDep, response: Response, model_id: PathId) -> Document:
    """The graph in the graph file format."""
    tag(response, model_id)
    return models.graph(state, model_id)


@routes.delete("/{model_id}", summary="Delete a model", status_code=204, responses=problems(404, 409, 412))
def delete(state: StateDep, model_id: PathId, if_match: IfMatch = None) -> None:
    """409 while a search, a strategy or a calibration under way refers to it."""
    models.delete(state, model_id, lambda row: expect(if_match, etag(row.graph_hash)))
