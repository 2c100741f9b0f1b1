"""Models: content-addressed graphs.

Graph documents and zoo models are stored at once. Jobs capture Hugging Face configurations and ONNX models; an ONNX
file is parsed before its job is created, and is not stored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy.orm import Session, undefer

from autosbp import api
from autosbp.errors import AutosbpError, InputError
from autosbp.service.auth.authentication import too_many
from autosbp.service.models import JobRow, ModelRow, content_id
from autosbp.service.problem_details import ProblemError, problem_of
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.schemas.models import HfModel, OnnxModel, ZooModel
from autosbp.service.schemas.searches import SearchOfCapture, SearchRequest
from autosbp.service.services import jobs, quotas, searches
from autosbp.service.services._fast_reads import read_page, require_row
from autosbp.service.services._insert_once import insert_content_fast
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._posted_documents import check_name, read
from autosbp.service.services._queries import Paged, require
from autosbp.service.services.content_ids import insert_content
from autosbp.service.settings import Settings
from autosbp.utils.json_io import canonical

_PARSER_LOCK = threading.Lock()
_PARSER_TIMEOUT_S = 5.0


def create(state: AppState, body: Document) -> tuple[ModelRow, bool]:
    """Store a graph document or a model of the zoo; return the row and whether it is new."""
    for name in ("hf_config", "onnx"):
        if name in body and "nodes" not in body:
            raise InputError(name, body[name], "only POST /v1/models:capture accepts it")
    if "zoo" in body:
        row = ModelRow(**_of_zoo(ZooModel.read(body).zoo))
    else:
        nodes = body.get("nodes")
        _check_size(state.settings, len(nodes) if isinstance(nodes, list) else 0)
        row = _row(read("graph", api.load_graph, body), "graph")
    return insert_content_fast(state.database, row, _room(state.settings, row))


def capture(state: AppState, body: Document) -> JobRow:
    """Queue the capture of a configuration or an ONNX model, and with ``search`` also what follows it."""
    if "onnx" in body:
        onnx = OnnxModel.read(body)
        return submit(state, read_onnx(state.settings, onnx.content(), onnx.name), onnx.search)
    config = HfModel.read(body)
    return submit(state, config.payload(), config.search)


def submit(state: AppState, payload: Document, search: SearchOfCapture | None = None) -> JobRow:
    """Queue a capture with a parsed payload; ``search`` is checked here and queued when the model is stored."""
    with state.database.write() as session:
        if (job := jobs.find_retried(state, session)) is not None:
            return job
        if search is not None:
            _check_search(state, session, search)
            payload = {**payload, "search": search.model_dump(mode="json", exclude_unset=True)}
        return jobs.submit(state, session, "capture", payload)


def _check_search(state: AppState, session: Session, search: SearchOfCapture) -> None:
    try:
        searches.check_options(state.settings, search)
        searches.check_tuning(state, search)
        searches.check_references(session, search)
    except InputError as error:
        raise InputError(f"search.{error.field}", error.value, error.limit) from None


def read_onnx(settings: Settings, content: bytes, name: str | None, file_name: str | None = None) -> Document:
    """Parse an ONNX file into the payload of its capture, without weights. One file is parsed at a time.

    Args:
        settings: limits.
        content: the file.
        name: of the model; None takes the name in the file.
        shown: name of the file in errors; by default the model's name.

    Raises:
        ProblemError: 429 if other files keep the parser busy.
    """
    if not _PARSER_LOCK.acquire(timeout=_PARSER_TIMEOUT_S):
        raise too_many(_PARSER_TIMEOUT_S, "too many ONNX files are being parsed")
    try:
        found = api.read_onnx(content, file_name or name or "...")
    finally:
        _PARSER_LOCK.release()
    _check_size(settings, len(found["nodes"]))
    return {"onnx": found, "name": check_name("name", name or found["name"])}


def _check_size(settings: Settings, num_ops: int) -> None:
    if num_ops > settings.max_ops:
        raise InputError("nodes", f"{num_ops} ops", f"expected at most {settings.max_ops} ops")


def _room(settings: Settings, row: ModelRow) -> Callable[[Session], None]:
    return lambda session: quotas.require_room(session, settings, quotas.DOCUMENTS, row.num_bytes)


@lru_cache(maxsize=64)  # more than the zoo has; capturing the largest models takes a second
def _of_zoo(name: str) -> Mapping[str, Any]:
    source = f"zoo:{name}"
    return _values(api.capture(source), source)


def _row(model: api.LogicalGraph, source: str) -> ModelRow:
    return ModelRow(**_values(model, source))


def _values(model: api.LogicalGraph, source: str) -> dict[str, Any]:
    document = model.to_dict()
    return {
        "id": content_id("mod", model.content_hash),
        "name": check_name("name", model.name),
        "source": source,
        "graph_hash": model.graph_hash,
        "content_hash": model.content_hash,
        "summary": model.summary(),
        "num_bytes": len(canonical(document)),
        "document": document,
    }


def prepare_capture(_session: Session, job: JobRow) -> Document:
    """Inputs of a capture: the posted configuration, or the parsed ONNX file."""
    return job.payload


def store_capture(settings: Settings, session: Session, job: JobRow, found: Document) -> Document:
    """Store the captured graph, and queue the search that was posted with it.

    A refused search does not lose the model: the job succeeds, and its result has the reason as ``search_problem``.
    """
    _check_size(settings, len(found["nodes"]))
    new = _row(api.load_graph(found), _source(job.payload))
    row, _ = insert_content(session, new, _room(settings, new))
    job.resource = f"/v1/models/{row.id}"
    result: Document = {"model_id": row.id}
    if (asked := job.payload.get("search")) is None:
        return result
    try:
        following = searches.create_after_capture(settings, session, SearchRequest.read({**asked, **result}))
    except (AutosbpError, ProblemError) as error:
        return {**result, "search_problem": problem_of(error, f"/v1/jobs/{job.id}")}
    return {**result, "search_id": following.payload["search_id"], "search_job_id": following.id}


def _source(payload: Mapping[str, Any]) -> str:
    return "onnx" if "onnx" in payload else "hf_config"


def get(state: AppState, model_id: str) -> ModelRow:
    """Return a model, or raise 404."""
    return require_row(state.database, ModelRow, model_id, "model")


def graph(state: AppState, model_id: str) -> Document:
    """Return a model's graph document, or raise 404."""
    with state.database.read() as session:
        return require(session, ModelRow, model_id, "model", undefer(ModelRow.document)).document


def listing(state: AppState, window: ListPage, /, **equal: object) -> Paged[ModelRow]:
    """Return a page of models."""
    return read_page(state.database, ModelRow, window, **equal)
