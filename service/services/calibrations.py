"""Calibrations: posted documents, and jobs that measure."""

from __future__ import annotations

from sqlalchemy.orm import Session, undefer

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InputError
from service.models import CalibrationRow, ClusterRow, JobRow, ModelRow
from service.schemas._base import Document
from service.schemas.calibrations import CalibrationRequest
from service.services import clusters, jobs
from service.services._documents import read
from service.services._store import Paged, existing, insert_once, page, referred, require
from service.services._window import Window
from service.settings import Settings
from service.state import State

_EFFORT = ("point_s", "budget_s", "variants", "op_s")
"""How much is measured; jobs queued by earlier releases have fewer of them."""


def create(state: State, body: Document) -> tuple[CalibrationRow, bool] | JobRow:
    """Store a calibration document with its cluster, or queue a measurement."""
    if "schema" in body:
        calibration = read("calibration", Calibration.from_dict, body)
        with state.database.write() as session:
            return store(session, calibration, None)
    request = CalibrationRequest.read(body)
    longest_s = state.settings.calibration_timeout_s
    if request.budget_s > longest_s:
        raise InputError("budget_s", request.budget_s, f"at most {longest_s:g} s is allowed here")
    options = request.used_options().to_dict()
    with state.database.write() as session:
        referred(session, ClusterRow, request.cluster_id, "cluster_id", "cluster")
        for index, model_id in enumerate(request.model_ids):
            referred(session, ModelRow, model_id, f"model_ids[{index}]", "model")
        payload = {**request.model_dump(), "options": options}
        return jobs.again(state, session) or jobs.submit(state, session, "calibrate", payload)


def store(
    session: Session, calibration: Calibration, job_id: str | None, root_id: str | None = None
) -> tuple[CalibrationRow, bool]:
    """Insert the calibration and its cluster if they are not there; without ``root_id`` it begins a family."""
    cluster, _ = clusters.store(session, calibration.cluster)
    identifier = calibration.calibration_id
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
        document=calibration.to_dict(),
    )
    stored, is_new = insert_once(session, row)
    session.refresh(stored, ["newest_id"])
    return stored, is_new


def prepare_calibrate(settings: Settings, session: Session, job: JobRow) -> Document:
    """Inputs of a measurement: the cluster, the models' graphs, and where to work."""
    graphs = [existing(session, ModelRow, model_id).document for model_id in job.payload["model_ids"]]
    return {
        "cluster": existing(session, ClusterRow, job.payload["cluster_id"]).document,
        "graphs": graphs,
        "options": job.payload["options"],
        "effort": {name: job.payload[name] for name in _EFFORT if name in job.payload},
        "workdir": str((settings.data_dir / "calibrations" / job.id).resolve()),
        "timeout_s": settings.calibration_timeout_s,
        "launching": settings.launching,
        "key": f"{job.id}-{jobs.attempt(settings, job)}",
    }


def store_calibrate(session: Session, job: JobRow, found: Document) -> Document:
    """Store the measured calibration."""
    row, _ = store(session, Calibration.from_dict(found), job.id)
    job.resource = f"/v1/calibrations/{row.id}"
    return {"calibration_id": row.id}


def get(state: State, calibration_id: str) -> CalibrationRow:
    """One calibration with its document, or 404."""
    with state.database.read() as session:
        return require(session, CalibrationRow, calibration_id, "calibration", undefer(CalibrationRow.document))


def listing(state: State, window: Window, /, **equal: object) -> Paged[CalibrationRow]:
    """A page of calibrations."""
    with state.database.read() as session:
        return page(session, CalibrationRow, window, **equal)
