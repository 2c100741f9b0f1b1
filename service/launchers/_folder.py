"""What a job leaves in the shared folder: its spec, who runs it, how each node ended. It outlives the cluster's memory.

KEY/spec.json     what was asked              KEY/claim/         made by the one job that runs the key
KEY/job.json      the cluster's name for it   KEY/claim/head.json   by node 0: token, address, port, process
KEY/cancelled     somebody cancelled it       KEY/ended-N.json   how node N ended
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from service.launchers._base import JobSpec, JobStatus, check_key
from service.tracing import VARIABLE

Document = dict[str, Any]


class JobFolder:
    """The folder of one key. Files appear whole or not at all."""

    def __init__(self, root: Path, key: str) -> None:
        self.key = check_key(key)
        self.path = root.resolve() / key

    def prepare(self, spec: JobSpec) -> None:
        """Make the folder; ``InputError`` if the key is that of other work."""
        self.path.mkdir(parents=True, exist_ok=True)
        document = spec.to_dict()
        if self._read("spec.json") is None:
            self._write("spec.json", document, once=True)
        found = self._read("spec.json")
        if found is None or _work(found) != _work(document):
            raise InputError("key", self.key, "the key of new work is expected; this one has another spec")

    @property
    def exists(self) -> bool:
        """Whether anything was ever asked under the key."""
        return (self.path / "spec.json").exists()

    @property
    def spec(self) -> JobSpec:
        """What was asked."""
        return JobSpec.from_dict(json.loads((self.path / "spec.json").read_text()))

    @property
    def native_id(self) -> str | None:
        """The cluster's name for the job, as far as it was told."""
        found = self._read("job.json")
        return None if found is None else str(found["id"])

    def record(self, native_id: str) -> None:
        """Keep the cluster's name for the job."""
        if native_id != self.native_id:
            self._write("job.json", {"id": native_id})

    def claim(self, token: str) -> bool:
        """Whether the caller, node 0 of the cluster job ``token``, is the one that runs the key."""
        try:
            (self.path / "claim").mkdir()
        except FileExistsError:
            return False
        self._write("claim/token.json", {"token": token})
        return True

    def announce(self, **members: Any) -> None:
        """Node 0 says where it is."""
        self._write("claim/head.json", members)

    @property
    def head(self) -> Document | None:
        """What node 0 said."""
        return self._read("claim/head.json")

    @property
    def token(self) -> str | None:
        """The cluster job that has claimed the key."""
        found = self._read("claim/token.json")
        return None if found is None else str(found["token"])

    def end(self, node: int, code: int, reason: str) -> None:
        """Node ``node`` has ended; the first word counts."""
        self._write(f"ended-{node}.json", {"code": code, "reason": reason}, once=True)

    def failure(self, num_nodes: int) -> tuple[int, str] | None:
        """A node that has failed, and how: one with a reason of its own rather than one that was ended by others."""
        ended = [(node, self._read(f"ended-{node}.json")) for node in range(num_nodes)]
        failed = [(node, str(each["reason"])) for node, each in ended if each is not None and each["code"] != 0]
        return min(failed, key=lambda found: (found[1] in (STOPPED, ENDED), found[0]), default=None)

    def outcome(self) -> tuple[str, str] | None:
        """The final state and reason that the nodes themselves have left; None while there is one that has not ended."""
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
        """Whether somebody asked for the job's end."""
        return (self.path / "cancelled").exists()

    def cancel(self) -> None:
        """Ask for the job's end: its processes look for this, too."""
        with suppress(FileNotFoundError):
            (self.path / "cancelled").touch()

    def log(self, offset: int) -> bytes:
        """Node 0's output from a byte on."""
        with suppress(FileNotFoundError), self.spec.log_path.open("rb") as file:
            file.seek(offset)
            return file.read()
        return b""

    def _read(self, name: str) -> Document | None:
        try:
            found: Document = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        return found

    def _write(self, name: str, document: Document, *, once: bool = False) -> None:
        """Write a file whole; with ``once``, keep the one that is there."""
        path = self.path / name
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        draft.write_text(json.dumps(document))
        if not once:
            draft.replace(path)
            return
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()


def _work(spec: Document) -> Document:
    """What a spec asks for, whichever trace it is part of: work that is taken up again is asked for by another span."""
    return {**spec, "env": {name: value for name, value in spec["env"].items() if name != VARIABLE}}


STOPPED, ENDED = "stopped with the other nodes", "the cluster ended it"
"""Reasons that have their cause elsewhere."""


def status_of(folder: JobFolder, native: tuple[str, str] | None, native_id: str) -> JobStatus:
    """A job's status from what its nodes left and from what the cluster says: state and reason, or None where it does
    not know the job any more. The nodes' word counts more: it says why."""
    left = folder.outcome()
    if left is not None:
        return JobStatus(*left, native_id)
    if folder.is_cancelled and (native is None or native[0] in ("failed", "cancelled")):
        return JobStatus("cancelled", "cancelled", native_id)
    if native is None:
        return JobStatus("failed", "the cluster does not know the job any more, and it left no word", native_id)
    return JobStatus(*native, native_id)
