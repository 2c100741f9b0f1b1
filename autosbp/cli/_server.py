"""The same work by a service: what ``--server URL`` does for capture, plan, calibrate and trial."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosbp.cli._files import NO_SIZES, ModelSizes, read_calibration, read_model
from autosbp.cli._run import note
from autosbp.jsonio import read_file

if TYPE_CHECKING:
    from autosbp.client import Client, Job

_ID = re.compile(r"(mod|clu|cal|plan)-[0-9a-f]+")


@contextmanager
def connected(url: str) -> Iterator[Client]:
    """A client of the service at ``url``."""
    from autosbp.client import Client

    with Client(url) as client:
        yield client


def is_id(text: str) -> bool:
    """Whether the text is the id of something that a service stores."""
    return _ID.fullmatch(text) is not None


def post_model(client: Client, model: str, sizes: ModelSizes = NO_SIZES) -> str:
    """Store a MODEL: the service reads its own zoo and captures Hugging Face configs, all else is captured here."""
    scheme, _, rest = model.partition(":")
    if is_id(model):
        return model
    if scheme == "hf":
        return client.post_model(hf_config=read_file(Path(rest)), seq_len=sizes.seq_len, image_size=sizes.image_size)
    if scheme == "zoo" and sizes == NO_SIZES:
        return client.post_model(zoo=rest)
    return client.post_model(read_model(model, sizes).to_dict())


def post_cluster(client: Client, cluster: str) -> str:
    """Store a CLUSTER, preset or file."""
    from autosbp.cluster import load_cluster

    return cluster if is_id(cluster) else client.post_cluster(load_cluster(cluster))


def post_calibration(client: Client, calibration: str | None) -> str | None:
    """Store a calibration file; an id is taken as it is."""
    if calibration is None or is_id(calibration):
        return calibration
    found = read_calibration(calibration)
    return None if found is None else client.post_calibration(found.to_dict())


def wait(client: Client, job: Job) -> dict[str, Any]:
    """Follow a job to its end on standard error; what it produced. An interruption cancels it."""
    shown = ""

    def follow(seen: Job) -> None:
        nonlocal shown
        line = f"{seen.kind} {seen.state}: {seen.message}" if seen.message else f"{seen.kind} {seen.state}"
        if line != shown:
            note(line)
            shown = line

    try:
        return dict(client.wait(job, on_progress=follow).result)
    except KeyboardInterrupt:
        client.cancel(job.id)
        raise
