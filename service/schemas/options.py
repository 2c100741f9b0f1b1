"""Schema of plan options: types are checked here, limits of values by the library.

The OpenAPI document repeats the library's limits.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue

from autosbp import api
from autosbp.cluster.spec import MAX_DEVICES
from autosbp.errors import InputError
from autosbp.graph.precision import AUTO, PRECISIONS
from autosbp.plan.pipeline import MAX_STAGES
from autosbp.plan.schedules import RUNNABLE, SCHEDULES
from autosbp.search import SEARCHERS
from autosbp.search.plan_options import BASELINES, MAX_BATCH, STORAGES
from autosbp.service.schemas._base import Request


def _within(low: int, high: int) -> dict[str, JsonValue]:
    return {"minimum": low, "maximum": high}


_MAX_MEMBERS = 1024
_PatternText = Annotated[str, Field(max_length=512)]


def _limit_members(given: object) -> object:
    """Limit the number of members before they are validated: a million of them would block the service for seconds."""
    if isinstance(given, dict) and len(given) > _MAX_MEMBERS:
        raise ValueError(f"expected at most {_MAX_MEMBERS} members")
    return given


class PlanOptions(Request):
    """Options of a plan; every member has a default."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"global_batch": 64, "searcher": "auto", "seed": 0, "time_limit_s": 20.0}}
    )

    global_batch: int | None = Field(
        default=None,
        description="Samples per step; default: chosen by the planner.",
        json_schema_extra=_within(1, MAX_BATCH),
    )
    micro_batch: int | None = Field(
        default=None,
        description="Samples per microbatch; default: chosen by the planner.",
        json_schema_extra=_within(1, MAX_BATCH),
    )
    searcher: str = Field(default="auto", max_length=64, json_schema_extra={"enum": [*SEARCHERS]})
    seed: int = Field(default=0, json_schema_extra=_within(0, 2**63 - 1))
    time_limit_s: float = Field(
        default=20.0,
        description="Soft time limit in seconds; returns the best plan found.",
        json_schema_extra={"exclusiveMinimum": 0, "maximum": 86_400},
    )
    optimizer: str = Field(default="adamw", max_length=64, json_schema_extra={"enum": ["adamw", "sgd"]})
    memory_limit_bytes: int | None = Field(
        default=None,
        description="Memory limit per device in bytes; default: the device's memory.",
        json_schema_extra=_within(1, 2**53),
    )
    gap_tolerance: float = Field(
        default=2e-3,
        description="Acceptable relative optimality gap. Above the default, search stops as soon as a plan is this "
        "close to the minimum-work bound.",
        json_schema_extra={"minimum": 0, "exclusiveMaximum": 1},
    )
    pins: Annotated[dict[_PatternText, _PatternText], BeforeValidator(_limit_members)] = Field(
        default={},
        max_length=_MAX_MEMBERS,
        description="Fixed layouts by parameter, op or name pattern, instead of searched ones.",
    )
    baselines: list[Annotated[str, Field(max_length=64, json_schema_extra={"enum": [*BASELINES]})]] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra={"uniqueItems": True},
        description="Baselines to compare with; default: the standard set.",
    )
    stages: int | None = Field(
        default=None,
        description="Number of pipeline stages; 1 forbids pipelines. Default: searched.",
        json_schema_extra=_within(1, MAX_STAGES),
    )
    schedules: list[Annotated[str, Field(json_schema_extra={"enum": [*SCHEDULES]})]] = Field(
        default=list(RUNNABLE),
        min_length=1,
        max_length=len(SCHEDULES),
        description=(
            "Allowed pipeline schedules. message_driven must be requested and can be planned but not run in trials."
        ),
    )
    storage: str | None = Field(
        default=None,
        max_length=64,
        description="Parameter sharding: as_used, step (ZeRO-2) or use (ZeRO-3). Default: searched.",
        json_schema_extra={"enum": [*STORAGES, None]},
    )
    recompute: int | None = Field(
        default=None,
        json_schema_extra=_within(0, MAX_STAGES),
        description=(
            "Activation checkpointing: save activations only every K blocks and recompute the rest; 0 "
            "disables it. Default: as memory requires."
        ),
    )
    offload: bool | None = Field(
        default=None, description="Allow optimizer state in host memory, if the cluster describes its hosts."
    )
    bucket_bytes: int | None = Field(
        default=None,
        description="Maximum gradient bucket size in bytes (default 25 MiB; smaller if memory is short).",
        json_schema_extra=_within(1, 2**40),
    )
    deterministic: bool | None = Field(
        default=None, description="Use only bitwise reproducible ops and layouts; trials enforce this."
    )
    stage_of: Annotated[
        dict[_PatternText, Annotated[int, Field(json_schema_extra=_within(0, MAX_STAGES - 1))]],
        BeforeValidator(_limit_members),
    ] = Field(
        default={},
        max_length=_MAX_MEMBERS,
        description="Pipeline stage (from 0) by op, parameter (the ops that read it) or name pattern.",
    )
    data_parallel: int | None = Field(
        default=None,
        description="Data-parallel degree within a pipeline stage; 1 disables data parallelism. Default: searched.",
        json_schema_extra=_within(1, MAX_DEVICES),
    )
    tensor_parallel: int | None = Field(
        default=None,
        description=(
            "Tensor-parallel degree within a pipeline stage; 1 disables tensor parallelism. Default: searched."
        ),
        json_schema_extra=_within(1, MAX_DEVICES),
    )

    precision: str | None = Field(
        default=AUTO,
        max_length=64,
        description="Training precision. auto: bf16-mixed on devices with tensor cores for bfloat16, else fp32; null: the "
        "dtypes of the model as stored.",
        json_schema_extra={"enum": [AUTO, *PRECISIONS, None]},
    )

    def checked(self) -> api.PlanOptions:
        """Return the library's options; raise ``InputError`` with the member's path in the request."""
        try:
            return api.PlanOptions.from_dict(self.model_dump(exclude_none=True))
        except InputError as error:
            field = f"options.{error.field.removeprefix('options.')}"
            raise InputError(field, error.value, error.limit) from None
