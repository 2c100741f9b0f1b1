"""Calibrations: posted documents, and jobs that measure."""

from __future__ import annotations

from sqlalchemy.orm import Session, undefer

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InputError
from autosbp.service.models import CalibrationRow, ClusterRow, JobRow, ModelRow
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.schemas.calibrations import CalibrationRequest
from autosbp.service.services import clusters, jobs, quotas
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._posted_documents import read
from autosbp.service.services._queries import Paged, existing, page, require, require_referenced
from autosbp.service.services.content_ids import CheckQuota, insert_content
from autosbp.service.settings import Settings
from autosbp.utils.json_io import HASH_DIGITS, canonical

_EFFORT_MEMBERS = ("point_s", "budget_s", "variants", "op_s")
"""Payload members that set the extent of the measurement; jobs queued by earlier releases have fewer of them."""


def create(state: AppState, body: Document) -> tuple[CalibrationRow, bool]:
    """Store a calibration document with its cluster; return the row and whether it is new."""
    if "schema" not in body and "cluster_id" in body:
        raise InputError("cluster_id", body["cluster_id"], "only POST /v1/calibrations:measure accepts it")
    calibration = read("calibration", Calibration.from_dict, body)
    with state.database.write() as session:
        num_bytes = len(canonical(calibration.to_dict()))
        return store(
            session,
            calibration,
            None,
            room=lambda session: quotas.require_room(session, state.settings, quotas.DOCUMENTS, num_bytes),
        )


def measure(state: AppState, request: CalibrationRequest) -> JobRow:
    """Queue a measurement of a cluster."""
    longest_s = state.settings.calibration_timeout_s
    if request.budget_s > longest_s:
        raise InputError("budget_s", request.budget_s, f"expected at most {longest_s:g} s (limit of this service)")
    options = request.used_options().to_dict()
    with state.database.write() as session:
        quotas.require_room(session, state.settings, quotas.FILES, 0)
        require_referenced(session, ClusterRow, request.cluster_id, "cluster_id", "cluster")
        for index, model_id in enumerate(request.model_ids):
            require_referenced(session, ModelRow, model_id, f"model_ids[{index}]", "model")
        payload = {**request.model_dump(), "options": options}
        return jobs.find_retried(state, session) or jobs.submit(state, session, "calibrate", payload)


def store(
    session: Session,
    calibration: Calibration,
    job_id: str | None,
    root_id: str | None = None,
    room: CheckQuota | None = None,
) -> tuple[CalibrationRow, bool]:
    """Insert a calibration and its cluster unless stored; without ``root_id`` it starts a new family."""
    cluster, _ = clusters.store(session, calibration.cluster)
    content_hash, document = calibration.content_hash, calibration.to_dict()
    identifier = f"cal-{content_hash[:HASH_DIGITS]}"
    row = CalibrationRow(
        id=identifier,
        root_id=root_id or identifier,
        num_trials=calibration.correction.num_trials,
        cluster_id=cluster.id,
        job_id=job_id,
        backend=calibration.backend,
        complete=calibration.complete,
        num_collectives=len(calibration.collectives),
        num_ops=len(calibration.ops),
        num_bytes=len(canonical(document)),
        content_hash=content_hash,
        document=document,
    )
    stored, is_new = insert_content(session, row, room)
    session.refresh(stored, ["newest_id"])
    return stored, is_new


def prepare_calibrate(settings: Settings, session: Session, job: JobRow) -> Document:
    """Inputs of a measurement: cluster, graphs of the models, work folder and limits."""
    graphs = [existing(session, ModelRow, model_id).document for model_id in job.payload["model_ids"]]
    return {
        "cluster": existing(session, ClusterRow, job.payload["cluster_id"]).document,
        "graphs": graphs,
        "options": job.payload["options"],
        "effort": {name: job.payload[name] for name in _EFFORT_MEMBERS if name in job.payload},
        "workdir": str((settings.data_dir / "calibrations" / job.id).resolve()),
        "timeout_s": settings.calibration_timeout_s,
        "launching": settings.launching,
        "sandbox": settings.confinement.to_dict(),
        "key": f"{job.id}-{jobs.attempt_number(settings, job)}",
    }


def store_calibrate(session: Session, job: JobRow, found: Document) -> Document:
    """Store the measured calibration."""
    row, _ = store(session, Calibration.from_dict(found), job.id)
    job.resource = f"/v1/calibrations/{row.id}"
    return {"calibration_id": row.id}


def get(state: AppState, calibration_id: str) -> CalibrationRow:
    """Return a calibration with its document, or raise 404."""
    with state.database.read() as session:
        return require(session, CalibrationRow, calibration_id, "calibration", undefer(CalibrationRow.document))


def listing(state: AppState, window: ListPage, /, **equal: object) -> Paged[CalibrationRow]:
    """Return a page of calibrations."""
    with state.database.read() as session:
        return page(session, CalibrationRow, window, **equal)
