"""Models: content-addressed graphs. Documents and the zoo are stored at once; a job captures HF configurations and ONNX models,
of which a file is parsed, and left, before the job is made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from autosbp import api
from autosbp.errors import InputError
from service.access.gate import too_many
from service.jobs._base import FINAL
from service.models import JobRow, ModelRow, SearchRow, StrategyRow
from service.problems import conflict
from service.schemas._base import Document
from service.schemas.models import HfModel, OnnxModel, ZooModel
from service.services import jobs
from service.services._documents import check_name, read
from service.services._once import put_once
from service.services._pictures import pictured, pictures
from service.services._store import Paged, insert_once, require
from service.services._window import Window
from service.settings import Settings
from service.state import State

_PARSER = threading.Lock()
_PATIENCE_S = 5.0


def create(state: State, body: Document) -> tuple[ModelRow, bool] | JobRow:
    """Store a graph document or a model of the zoo, or queue the capture of a configuration or an ONNX model."""
    if "hf_config" in body or "onnx" in body:
        return submit(state, HfModel.read(body).model_dump() if "hf_config" in body else _onnx(state.settings, body))
    if "zoo" in body:
        source = f"zoo:{ZooModel.read(body).zoo}"
        model = api.capture(source)
    else:
        nodes = body.get("nodes")
        _check_size(state.settings, len(nodes) if isinstance(nodes, list) else 0)
        source, model = "graph", read("graph", api.load_graph, body)
    return put_once(state.database, _row(model, source))


def submit(state: State, payload: Document) -> JobRow:
    """Queue a capture."""
    with state.database.write() as session:
        return jobs.again(state, session) or jobs.submit(state, session, "capture", payload)


def _onnx(settings: Settings, body: Document) -> Document:
    request = OnnxModel.read(body)
    return read_onnx(settings, request.content(), request.name)


def read_onnx(settings: Settings, content: bytes, name: str | None, shown: str | None = None) -> Document:
    """The payload of the capture of an ONNX file: what it holds, without weights. One is parsed at a time. Errors call it
    ``shown``, or by its model's name."""
    if not _PARSER.acquire(timeout=_PATIENCE_S):
        raise too_many(_PATIENCE_S, "other ONNX files are being parsed")
    try:
        found = api.read_onnx(content, shown or name or "...")
    finally:
        _PARSER.release()
    _check_size(settings, len(found["nodes"]))
    return {"onnx": found, "name": check_name("name", name or found["name"])}


def _check_size(settings: Settings, num_ops: int) -> None:
    if num_ops > settings.max_ops:
        raise InputError("nodes", f"{num_ops} ops", f"at most {settings.max_ops} ops are expected")


def _row(model: api.LogicalGraph, source: str) -> ModelRow:
    return ModelRow(
        id=f"mod-{model.graph_hash}",
        name=check_name("name", model.name),
        source=source,
        graph_hash=model.graph_hash,
        summary=model.summary(),
        document=model.to_dict(),
    )


def prepare_capture(_session: Session, job: JobRow) -> Document:
    """Inputs of a capture: what the client posted, or what an ONNX file holds."""
    return job.payload


def store_capture(settings: Settings, session: Session, job: JobRow, found: Document) -> Document:
    """Store the captured graph."""
    _check_size(settings, len(found["nodes"]))
    row, _ = insert_once(session, _row(api.load_graph(found), _source(job.payload)))
    job.resource = f"/v1/models/{row.id}"
    return {"model_id": row.id}


def _source(payload: Mapping[str, Any]) -> str:
    return "onnx" if "onnx" in payload else "hf_config"


def get(state: State, model_id: str) -> ModelRow:
    """One model, or 404."""
    return pictured(state.database, ModelRow, model_id, "model")


def graph(state: State, model_id: str) -> Document:
    """One model's graph document, or 404."""
    with state.database.read() as session:
        return require(session, ModelRow, model_id, "model", undefer(ModelRow.document)).document


def listing(state: State, window: Window, /, **equal: object) -> Paged[ModelRow]:
    """A page of models."""
    return pictures(state.database, ModelRow, window, **equal)


def delete(state: State, model_id: str, check: Callable[[ModelRow], None]) -> None:
    """Remove a model that no search, no strategy and no calibration under way refers to; 409 otherwise. ``check`` may
    refuse by raising."""
    with state.database.write() as session:
        row = require(session, ModelRow, model_id, "model")
        check(row)
        searches = session.scalar(select(func.count(SearchRow.id)).where(SearchRow.model_id == row.id))
        strategies = session.scalar(select(func.count(StrategyRow.id)).where(StrategyRow.model_id == row.id))
        if searches or strategies:
            raise conflict(f"{searches} searches and {strategies} strategies refer to model {model_id!r}")
        measuring = select(JobRow).where(JobRow.kind == "calibrate", JobRow.state.not_in(FINAL))
        for job in session.scalars(measuring):
            if model_id in job.payload["model_ids"]:
                raise conflict(f"job {job.id!r} is to measure the ops of model {model_id!r}")
        session.delete(row)
