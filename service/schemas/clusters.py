"""Schemas of clusters."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from autosbp.cluster.spec import presets
from autosbp.service.schemas._base import Document, Request, Response


def _presets(schema: dict[str, Any]) -> None:
    """Restrict the pattern to the known presets; it accepts a device count also for presets that have one device per node."""
    known = "|".join(sorted(presets()["clusters"]))
    schema["pattern"] = rf"^({known})(:[1-9][0-9]{{0,6}}(x[1-9][0-9]{{0,6}})?)?$"


class PresetCluster(Request):
    """A preset, optionally with numbers of nodes and devices."""

    preset: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,63}(:[0-9x]{1,20})?$")] = Field(
        description="PRESET, PRESET:NODES or PRESET:NODESxDEVICES.", json_schema_extra=_presets
    )


class Cluster(Response):
    """A stored cluster."""

    id: str = Field(examples=["clu-0a1b2c3d4e5f60718293a4b5c6d7e8f9"])
    name: str
    cluster_hash: str
    num_devices: int
    document: Document = Field(description="The spec in the cluster file format.")
    created_at: datetime


CLUSTER = {
    "schema": "autosbp.cluster/1",
    "name": "two-boxes",
    "device": "cpu-rank",
    "levels": [
        {"name": "n", "count": 2, "latency_s": 1e-4, "bandwidth_bytes_per_s": 25e6},
        {"name": "g", "count": 2, "latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9},
    ],
}
EXAMPLES = {
    "preset": {"summary": "A preset with a number of nodes", "value": {"preset": "local:2x2"}},
    "spec": {"summary": "A spec in the cluster file format", "value": CLUSTER},
}
