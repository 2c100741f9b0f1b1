"""Plan options at the edge. The limits of their values are the library's own, which the documentation repeats; the types are
checked here."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue

from autosbp import api
from autosbp.cluster import MAX_DEVICES
from autosbp.errors import InputError
from autosbp.pipeline import MAX_STAGES
from autosbp.schedules import RUNNABLE, SCHEDULES
from autosbp.search import SEARCHERS
from autosbp.search.plan_options import BASELINES, MAX_BATCH, STORAGES
from service.schemas._base import Request


def _within(low: int, high: int) -> dict[str, JsonValue]:
    return {"minimum": low, "maximum": high}


_MOST_GIVEN = 1024
_Given = Annotated[str, Field(max_length=512)]


def _few(given: object) -> object:
    """Looked at before its members are: a million of them would take seconds, in which nothing else is done."""
    if isinstance(given, dict) and len(given) > _MOST_GIVEN:
        raise ValueError(f"at most {_MOST_GIVEN} members are expected")
    return given


class PlanOptions(Request):
    """What a plan is asked for; every member has a default."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"global_batch": 64, "searcher": "auto", "seed": 0, "time_limit_s": 20.0}}
    )

    global_batch: int | None = Field(
        default=None,
        description="Samples per step; by default the planner chooses.",
        json_schema_extra=_within(1, MAX_BATCH),
    )
    micro_batch: int | None = Field(
        default=None,
        description="Samples per pass; by default the planner chooses.",
        json_schema_extra=_within(1, MAX_BATCH),
    )
    searcher: str = Field(default="auto", max_length=64, json_schema_extra={"enum": [*SEARCHERS]})
    seed: int = Field(default=0, json_schema_extra=_within(0, 2**63 - 1))
    time_limit_s: float = Field(
        default=20.0,
        description="Wall time after which the best so far is the answer.",
        json_schema_extra={"exclusiveMinimum": 0, "maximum": 86_400},
    )
    optimizer: str = Field(default="adamw", max_length=64, json_schema_extra={"enum": ["adamw", "sgd"]})
    memory_limit_bytes: int | None = Field(
        default=None, description="Per device; by default the device's memory.", json_schema_extra=_within(1, 2**53)
    )
    gap_tolerance: float = Field(
        default=2e-3,
        description="Relative gap that a binding memory limit may leave open; above the usual, search ends when a plan is that "
        "near to the least work.",
        json_schema_extra={"minimum": 0, "exclusiveMaximum": 1},
    )
    pins: Annotated[dict[_Given, _Given], BeforeValidator(_few)] = Field(
        default={},
        max_length=_MOST_GIVEN,
        description="Layouts that are given, not searched: of parameters, patterns, ops.",
    )
    baselines: list[Annotated[str, Field(max_length=64, json_schema_extra={"enum": [*BASELINES]})]] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra={"uniqueItems": True},
        description="Names of what the plan is compared with; by default the usual ones.",
    )
    stages: int | None = Field(
        default=None,
        description="Of a pipeline; 1 forbids pipelines. By default any.",
        json_schema_extra=_within(1, MAX_STAGES),
    )
    schedules: list[Annotated[str, Field(json_schema_extra={"enum": [*SCHEDULES]})]] = Field(
        default=list(RUNNABLE),
        min_length=1,
        max_length=len(SCHEDULES),
        description="Those that a pipeline may run: message_driven, too, which no trial runs yet, where asked for.",
    )
    storage: str | None = Field(
        default=None,
        max_length=64,
        description="Of parameters: as_used, step (ZeRO-2), use (ZeRO-3). By default any.",
        json_schema_extra={"enum": [*STORAGES, None]},
    )
    recompute: int | None = Field(
        default=None,
        json_schema_extra=_within(0, MAX_STAGES),
        description="0: no block; k: every repeated block, k together. By default as many as memory asks for.",
    )
    offload: bool | None = Field(
        default=None, description="Whether optimizer state may be on the hosts, where the cluster tells of them."
    )
    bucket_bytes: int | None = Field(
        default=None,
        description="The most that gradients are reduced in together; by default 25 MiB, or less where that does not fit.",
        json_schema_extra=_within(1, 2**40),
    )
    deterministic: bool | None = Field(
        default=None, description="Whether only what gives the same bits in every run is allowed; trials enforce it."
    )
    stage_of: Annotated[
        dict[_Given, Annotated[int, Field(json_schema_extra=_within(0, MAX_STAGES - 1))]], BeforeValidator(_few)
    ] = Field(
        default={},
        max_length=_MOST_GIVEN,
        description="Stages, from 0, of ops, of the ops that read a parameter, of patterns.",
    )
    data_parallel: int | None = Field(
        default=None,
        description="Devices of a stage that split the batch; 1 forbids it. By default any.",
        json_schema_extra=_within(1, MAX_DEVICES),
    )
    tensor_parallel: int | None = Field(
        default=None,
        description="Devices of a stage that split parameters; 1 forbids it. By default any.",
        json_schema_extra=_within(1, MAX_DEVICES),
    )

    def checked(self) -> api.PlanOptions:
        """The library's options; raises ``InputError`` with the path of the member in the request."""
        try:
            return api.PlanOptions.from_dict(self.model_dump(exclude_none=True))
        except InputError as error:
            field = f"options.{error.field.removeprefix('options.')}"
            raise InputError(field, error.value, error.limit) from None
