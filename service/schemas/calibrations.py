"""Calibrations at the edge."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from autosbp import api
from autosbp.errors import InputError
from service.schemas._base import BodyId, Document, Request, Response
from service.schemas.clusters import CLUSTER
from service.schemas.options import PlanOptions

OP_S = 0.25
SHAPING = ("global_batch", "micro_batch")


class CalibrationRequest(Request):
    """Ask for a calibration of a cluster."""

    cluster_id: BodyId
    model_ids: list[BodyId] = Field(default=[], max_length=16, description="Models whose ops are timed too.")
    options: PlanOptions = Field(
        default=PlanOptions(),
        description="global_batch and micro_batch decide which local shapes of the models are timed; no others are taken.",
    )
    point_s: float = Field(default=0.25, gt=0, le=60, description="Most seconds spent on one size of one collective.")
    budget_s: float = Field(default=165.0, gt=0, le=3600, description="Seconds for the whole measurement.")
    variants: bool = Field(default=True, description="Also one group alone, and contiguous beside strided groups.")
    op_s: float = Field(default=OP_S, gt=0, le=60, description="Most seconds spent on one direction of one op.")

    def used_options(self) -> api.PlanOptions:
        """The library's options; ``InputError`` for members that would have no effect."""
        options, usual = self.options.checked(), api.PlanOptions()
        for name in api.PlanOptions.__slots__:
            if getattr(options, name) != getattr(usual, name) and (not self.model_ids or name not in SHAPING):
                told = f"{' and '.join(SHAPING)} alone decide which shapes are timed"
                limit = "model_ids are expected with it" if name in SHAPING else told
                raise InputError(f"options.{name}", getattr(options, name), limit)
        if self.op_s != OP_S and not self.model_ids:
            raise InputError("op_s", self.op_s, "model_ids are expected with it")
        return options


class Calibration(Response):
    """A stored calibration, without its measurements."""

    id: str = Field(examples=["cal-0a1b2c3d4e5f6071"])
    cluster_id: str
    job_id: str | None = Field(
        description="The job that measured it; null for a posted document and for what trials taught."
    )
    backend: str
    complete: bool
    num_collectives: int
    num_ops: int
    root_id: str = Field(description="The first calibration of the family; trials teach further versions of it.")
    num_trials: int = Field(description="How many trials taught this version; 0 before any.")
    newest_id: str = Field(description="The family's last version. A search uses the version that it asks for.")
    created_at: datetime


class CalibrationDetail(Calibration):
    """A stored calibration with its document."""

    document: Document = Field(description="The calibration in the calibration file format.")


_DOCUMENT = {
    "schema": "autosbp.calibration/1",
    "cluster": CLUSTER,
    "backend": "gloo",
    "method": "relative",
    "collectives": [
        {
            "kind": "all_reduce",
            "group_shape": [2, 2],
            "alpha_s": 2e-4,
            "beta_s_per_byte": 1e-9,
            "r2": 0.99,
            "median_relative_error": 0.05,
            "max_relative_error": 0.1,
            "points": [[1024, 1e-3, 1e-4, 10], [4096, 1.5e-3, 1e-4, 10]],
        }
    ],
}
EXAMPLES = {
    "measure": {"summary": "Measure a cluster", "value": {"cluster_id": "clu-0a1b2c3d4e5f6071", "model_ids": []}},
    "document": {"summary": "Store a calibration document", "value": _DOCUMENT},
}
