"""Schemas of calibrations."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from autosbp import api
from autosbp.errors import InputError
from autosbp.graph.precision import AUTO
from autosbp.service.schemas._base import BodyId, Document, Request, Response
from autosbp.service.schemas.clusters import CLUSTER
from autosbp.service.schemas.options import PlanOptions

OP_S = 0.25
SHAPE_OPTIONS = ("global_batch", "micro_batch", "precision")


class CalibrationRequest(Request):
    """Request to measure a cluster."""

    cluster_id: BodyId
    model_ids: list[BodyId] = Field(default=[], max_length=16, description="Models whose ops are also timed.")
    options: PlanOptions = Field(
        default=PlanOptions(),
        description=(
            "global_batch, micro_batch and precision determine which local op shapes of the models are timed; no "
            "other options are accepted."
        ),
    )
    point_s: float = Field(
        default=0.25, gt=0, le=60, description=("Maximum seconds per message size of one collective.")
    )
    budget_s: float = Field(
        default=165.0, gt=0, le=3600, description=("Time limit in seconds of the whole measurement.")
    )
    variants: bool = Field(
        default=True, description=("Also measure one group alone, and contiguous as well as strided groups.")
    )
    op_s: float = Field(
        default=OP_S, gt=0, le=60, description=("Maximum seconds for the forward, and for the backward, of one op.")
    )

    def used_options(self) -> api.PlanOptions:
        """Return the library's options; raise ``InputError`` for members that would have no effect."""
        options, usual = self.options.checked(), api.PlanOptions(precision=AUTO)
        for name in api.PlanOptions.__slots__:
            if getattr(options, name) != getattr(usual, name) and (not self.model_ids or name not in SHAPE_OPTIONS):
                told = f"shapes to time are selected only by {' and '.join(SHAPE_OPTIONS)}"
                limit = "requires model_ids" if name in SHAPE_OPTIONS else told
                raise InputError(f"options.{name}", getattr(options, name), limit)
        if self.op_s != OP_S and not self.model_ids:
            raise InputError("op_s", self.op_s, "requires model_ids")
        return options


class Calibration(Response):
    """A stored calibration, without its measurements."""

    id: str = Field(examples=["cal-0a1b2c3d4e5f6071"])
    cluster_id: str
    job_id: str | None = Field(
        description="Id of the job that measured it; null for posted documents and for corrections from trials."
    )
    backend: str
    complete: bool
    num_collectives: int
    num_ops: int
    root_id: str = Field(
        description=("First calibration of the family; corrections from trials create further versions.")
    )
    num_trials: int = Field(description="Number of trials used for corrections of this version.")
    newest_id: str = Field(description="Newest version of the family. A search uses exactly the version it requests.")
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
MEASURE_EXAMPLES = {
    "measure": {
        "summary": "Measure a cluster",
        "value": {"cluster_id": "clu-0a1b2c3d4e5f60718293a4b5c6d7e8f9", "model_ids": []},
    },
}
EXAMPLES = {
    "document": {"summary": "Store a calibration document", "value": _DOCUMENT},
}
