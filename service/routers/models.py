"""Routes of /v1/models: store, capture, list, read and delete models."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Response

from autosbp.service.http.api_route import in_capture_threads, in_thread, max_body
from autosbp.service.http.etags import IfMatch, check_if_match, etag, set_etag
from autosbp.service.models import ModelRow
from autosbp.service.request_state import StateDep
from autosbp.service.routers._base import (
    IDEMPOTENT,
    Cascade,
    JsonBody,
    documented_creation,
    documented_delete_problems,
    documented_etag,
    documented_job,
    documented_list,
    documented_post_problems,
    respond_with_page,
    respond_with_queued_job,
    respond_with_stored,
    router,
)
from autosbp.service.schemas._base import Document, Name, Page, PathId, WindowDep
from autosbp.service.schemas.documents import any_of
from autosbp.service.schemas.jobs import Job
from autosbp.service.schemas.models import CAPTURE_EXAMPLES, EXAMPLES, Model
from autosbp.service.services import deletion, models

Hash = Annotated[
    str | None, Query(pattern="^[0-9a-f]{16}$", description=("Hash of the graph, as in the provenance of plans."))
]
routes = router("models", "search")
_LINKS = {
    "model": "get /v1/models/{model_id}",
    "graph": "get /v1/models/{model_id}/graph",
    "delete": "delete /v1/models/{model_id}",
}


@routes.post(
    "",
    summary="Store a model from a graph or the zoo",
    status_code=201,
    responses={**documented_creation(Model, "model_id", **_LINKS), **documented_post_problems()},
    openapi_extra={**IDEMPOTENT, **any_of("GraphDocument", "ZooModel")},
)
@max_body(None)
@in_capture_threads
def create_model(
    state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=EXAMPLES)]
) -> Model:
    """Stores a model. Answers 201, or 200 if it is already stored."""
    row, is_new = models.create(state, body)
    respond_with_stored(response, f"/v1/models/{row.id}", is_new, row.graph_hash)
    return Model.model_validate(row)


@routes.post(
    ":capture",
    summary="Capture a model from a Hugging Face configuration or ONNX",
    status_code=202,
    responses={**documented_job(), **documented_post_problems()},
    openapi_extra={**IDEMPOTENT, **any_of("HfModel", "OnnxModel")},
)
@max_body(None)
@in_capture_threads
def capture_model(
    state: StateDep, response: Response, body: Annotated[JsonBody, Body(openapi_examples=CAPTURE_EXAMPLES)]
) -> Job:
    """Queues the capture. Answers 202 with the job, whose result has the model's id."""
    return respond_with_queued_job(response, models.capture(state, body))


@routes.get("", summary="List models", response_model=Page[Model], responses=documented_list("model_id", **_LINKS))
def list_models(
    state: StateDep, window: WindowDep, name: Name = None, source: Name = None, graph_hash: Hash = None
) -> Response:
    """Lists models, newest first, optionally of one name, source or graph hash."""
    rows, following = models.listing(state, window, name=name, source=source, graph_hash=graph_hash)
    return respond_with_page(Model, rows, following)


@routes.get("/{model_id}", summary="One model", responses=documented_etag(404))
def get_model(state: StateDep, response: Response, model_id: PathId) -> Model:
    """Returns name, source and summary."""
    row = models.get(state, model_id)
    set_etag(response, row.graph_hash)
    return Model.model_validate(row)


@routes.get("/{model_id}/graph", summary="A model's graph document", responses=documented_etag(404))
@in_thread
def get_model_graph(state: StateDep, response: Response, model_id: PathId) -> Document:
    """Returns the graph in the graph file format."""
    set_etag(response, model_id)
    return models.graph(state, model_id)


@routes.delete("/{model_id}", summary="Delete a model", status_code=204, responses=documented_delete_problems())
def delete_model(state: StateDep, model_id: PathId, cascade: Cascade = False, if_match: IfMatch = None) -> None:
    """Deletes the model.

    Answers 409 while searches, strategies or a running calibration refer to it; ``cascade`` deletes the searches and
    strategies as well.
    """
    deletion.remove(
        state, ModelRow, model_id, "model", lambda row: check_if_match(if_match, etag(row.graph_hash)), cascade=cascade
    )
