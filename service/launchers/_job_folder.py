"""A job's folder on the shared file system: spec, claim and end of each node. It outlives the cluster's record.

KEY/spec.json     the submitted spec          KEY/claim/            created by the one job that runs the key
KEY/job.json      the cluster's id of the job KEY/claim/head.json   by node 0: token, address, port, process
KEY/cancelled     the job was cancelled       KEY/ended-N.json      how node N ended
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.sandbox.regular_files import open_regular
from autosbp.service.launchers._base import JobSpec, JobStatus, check_key
from autosbp.service.tracing import TRACEPARENT_VARIABLE

Document = dict[str, Any]
_MOST_BYTES = 2**26  # of a log per read; the caller continues at the next offset


class JobFolder:
    """The folder of one key. Files are written atomically."""

    def __init__(self, root: Path, key: str) -> None:
        self.key = check_key(key)
        self.path = root.resolve() / key

    def prepare(self, spec: JobSpec) -> None:
        """Create the folder and write the spec; raise ``InputError`` if the key belongs to other work."""
        self.path.mkdir(parents=True, exist_ok=True)
        document = spec.to_dict()
        if self._read("spec.json") is None:
            self._write("spec.json", document, once=True)
        found = self._read("spec.json")
        if found is None or _without_trace(found) != _without_trace(document):
            raise InputError("key", self.key, "this key is already in use for another spec")

    @property
    def exists(self) -> bool:
        """Whether a job was ever submitted under the key."""
        return (self.path / "spec.json").exists()

    @property
    def spec(self) -> JobSpec:
        """The submitted spec."""
        return JobSpec.from_dict(json.loads((self.path / "spec.json").read_text()))

    @property
    def native_id(self) -> str | None:
        """The cluster's id of the job; None if it is not recorded."""
        found = self._read("job.json")
        return None if found is None else str(found["id"])

    def record_native_id(self, native_id: str) -> None:
        """Record the cluster's id of the job."""
        if native_id != self.native_id:
            self._write("job.json", {"id": native_id})

    def claim(self, token: str) -> bool:
        """Claim the key for the cluster job ``token``, from its node 0; False if it is claimed already."""
        try:
            (self.path / "claim").mkdir()
        except FileExistsError:
            return False
        self._write("claim/token.json", {"token": token})
        return True

    def publish_head(self, **members: Any) -> None:
        """Publish the address and process of node 0."""
        self._write("claim/head.json", members)

    @property
    def head(self) -> Document | None:
        """What node 0 has published; None before."""
        return self._read("claim/head.json")

    @property
    def token(self) -> str | None:
        """The cluster job that has claimed the key; None before."""
        found = self._read("claim/token.json")
        return None if found is None else str(found["token"])

    def end(self, node: int, code: int, reason: str) -> None:
        """Record the end of a node; later calls change nothing."""
        self._write(f"ended-{node}.json", {"code": code, "reason": reason}, once=True)

    def failure(self, num_nodes: int) -> tuple[int, str] | None:
        """A failed node and its reason, preferring nodes that failed by themselves over those that were stopped."""
        ended = [(node, self._read(f"ended-{node}.json")) for node in range(num_nodes)]
        failed = [(node, str(each["reason"])) for node, each in ended if each is not None and each["code"] != 0]
        return min(
            failed, key=lambda found: (found[1] in (STOPPED_WITH_OTHERS, ENDED_BY_CLUSTER), found[0]), default=None
        )

    def outcome(self) -> tuple[str, str] | None:
        """Final state and reason as recorded by the nodes; None while a node runs and none has failed."""
        num_nodes = self.spec.num_nodes
        ended = [self._read(f"ended-{node}.json") for node in range(num_nodes)]
        if self.is_cancelled and any(each is not None and each["code"] != 0 for each in ended):
            return "cancelled", "cancelled"
        if (failed := self.failure(num_nodes)) is not None:
            node, reason = failed
            return "failed", reason if num_nodes == 1 else f"node {node}: {reason}"
        if all(each is not None and each["code"] == 0 for each in ended):
            return "succeeded", ""
        return None

    @property
    def is_cancelled(self) -> bool:
        """Whether cancellation was requested."""
        return (self.path / "cancelled").exists()

    def cancel(self) -> None:
        """Request cancellation; the job's processes poll for it."""
        with suppress(FileNotFoundError):
            (self.path / "cancelled").touch()

    def log(self, offset: int) -> bytes:
        """Node 0's output from byte ``offset`` on."""
        with suppress(OSError), open_regular(self.spec.log_path) as file:
            file.seek(offset)
            return file.read(_MOST_BYTES)
        return b""

    def _read(self, name: str) -> Document | None:
        try:
            found: Document = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        return found

    def _write(self, name: str, document: Document, *, once: bool = False) -> None:
        """Write a file atomically; with ``once``, keep an existing one."""
        path = self.path / name
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        draft.write_text(json.dumps(document))
        if not once:
            draft.replace(path)
            return
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()


def _without_trace(spec: Document) -> Document:
    """The spec without its trace context, which differs when the work is resumed."""
    return {**spec, "env": {name: value for name, value in spec["env"].items() if name != TRACEPARENT_VARIABLE}}


STOPPED_WITH_OTHERS, ENDED_BY_CLUSTER = "stopped with the other nodes", "terminated by the cluster"
"""Reasons of nodes that did not fail by themselves."""


def job_status(folder: JobFolder, native: tuple[str, str] | None, native_id: str) -> JobStatus:
    """Status of a job from its nodes' records and from the cluster.

    The nodes' records take precedence, because they have the reason.

    Args:
        folder: of the job.
        native: state and reason by the cluster; None if it does not know the job.
        native_id: the cluster's id of the job.
    """
    left = folder.outcome()
    if left is not None:
        return JobStatus(*left, native_id)
    if folder.is_cancelled and (native is None or native[0] in ("failed", "cancelled")):
        return JobStatus("cancelled", "cancelled", native_id)
    if native is None:
        return JobStatus("failed", "the cluster no longer knows the job, and the job wrote no status", native_id)
    return JobStatus(*native, native_id)
