"""Plan options at the edge. The limits of their values are the library's own; the types are checked here."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from autosbp import api
from autosbp.errors import InputError
from autosbp.pipeline import RUNNABLE, SCHEDULES
from service.schemas._base import Request


class PlanOptions(Request):
    """What a plan is asked for; every member has a default."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"global_batch": 64, "searcher": "auto", "seed": 0, "time_limit_s": 20.0}}
    )

    global_batch: int | None = Field(default=None, description="Samples per step; by default the planner chooses.")
    micro_batch: int | None = Field(default=None, description="Samples per pass; by default the planner chooses.")
    searcher: str = Field(default="auto", max_length=64)
    seed: int = 0
    time_limit_s: float = Field(default=20.0, description="Wall time after which the best so far is the answer.")
    optimizer: str = Field(default="adamw", max_length=64)
    memory_limit_bytes: int | None = Field(default=None, description="Per device; by default the device's memory.")
    gap_tolerance: float = Field(default=2e-3, description="Relative gap that a binding memory limit may leave open.")
    pins: dict[Annotated[str, Field(max_length=512)], Annotated[str, Field(max_length=512)]] = Field(
        default={}, max_length=1024, description="Layouts that are given, not searched: of parameters, patterns, ops."
    )
    baselines: list[Annotated[str, Field(max_length=64)]] | None = Field(
        default=None, max_length=32, description="Names of what the plan is compared with; by default the usual ones."
    )
    stages: int | None = Field(default=None, description="Of a pipeline; 1 forbids pipelines. By default any.")
    schedules: list[str] = Field(
        default=list(RUNNABLE),
        max_length=len(SCHEDULES),
        description="Those that a pipeline may run: message_driven, too, which no trial runs yet, where asked for.",
    )
    storage: str | None = Field(
        default=None, max_length=64, description="Of parameters: as_used, step (ZeRO-2), use (ZeRO-3). By default any."
    )
    recompute: int | None = Field(
        default=None,
        description="0: no block; k: every repeated block, k together. By default as many as memory asks for.",
    )
    offload: bool | None = Field(
        default=None, description="Whether optimizer state may be on the hosts, where the cluster tells of them."
    )
    bucket_bytes: int | None = Field(
        default=None, description="The most that gradients are reduced in together; 25 MiB by default."
    )
    stage_of: dict[Annotated[str, Field(max_length=512)], int] = Field(
        default={},
        max_length=1024,
        description="Stages, from 0, of ops, of the ops that read a parameter, of patterns.",
    )
    data_parallel: int | None = Field(
        default=None, description="Devices of a stage that split the batch; 1 forbids it. By default any."
    )
    tensor_parallel: int | None = Field(
        default=None, description="Devices of a stage that split parameters; 1 forbids it. By default any."
    )

    def checked(self) -> api.PlanOptions:
        """The library's options; raises ``InputError`` with the path of the member in the request."""
        try:
            return api.PlanOptions.from_dict(self.model_dump(exclude_none=True))
        except InputError as error:
            field = f"options.{error.field.removeprefix('options.')}"
            raise InputError(field, error.value, error.limit) from None
