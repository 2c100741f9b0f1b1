"""A stand-in for a Kubernetes cluster: the routes of Jobs over HTTP, and a controller that runs pods as processes here.

It refuses what the published schema of batch/v1 does not have, names that are taken (409), wrong tokens (401). It is no
Kubernetes: nothing is scheduled, mounted or isolated.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(__file__).parent / "data" / "job-batch-v1.json").read_text())
TOKEN = "of-the-service-account"
JOBS = "/apis/batch/v1/namespaces/lab/jobs"


@dataclass
class RunningJob:
    """A Job and its pods."""

    document: dict[str, Any]
    pods: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def status(self) -> dict[str, Any]:
        codes = [pod.poll() for pod in self.pods]
        if any(codes):
            for pod in self.pods:
                if pod.poll() is None:
                    pod.terminate()  # backoffLimit 0: the Job has failed, its other pods go
            condition = {
                "type": "Failed",
                "status": "True",
                "reason": "BackoffLimitExceeded",
                "message": "a pod failed",
            }
            return {"conditions": [condition]}
        if all(code == 0 for code in codes):
            return {"conditions": [{"type": "Complete", "status": "True"}]}
        alive = codes.count(None)
        return {"active": alive, "ready": alive}


class Cluster:
    """Up as long as the block. ``lose_answers`` drops the connection after a Job was created."""

    def __init__(self) -> None:
        self.jobs: dict[str, RunningJob] = {}
        self.num_created, self.lose_answers = 0, False
        self.lock = threading.Lock()
        cluster = self

        class Handler(_Handler):
            of = cluster

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for job in self.jobs.values():
            self.end(job)

    def create(self, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        errors = [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]
        if errors:
            return 422, {"kind": "Status", "message": "; ".join(errors)}
        name = document["metadata"]["name"]
        if name in self.jobs:
            return 409, {"kind": "Status", "message": f'jobs.batch "{name}" already exists'}
        (container,) = document["spec"]["template"]["spec"]["containers"]
        env = {"PATH": os.environ["PATH"], **{each["name"]: each["value"] for each in container["env"]}}
        job = self.jobs[name] = RunningJob(document)
        for index in range(document["spec"]["completions"]):
            own = {**env, "JOB_COMPLETION_INDEX": str(index)}
            job.pods.append(subprocess.Popen(container["command"], env=own, stdin=subprocess.DEVNULL))
        self.num_created += 1
        return 201, document

    @staticmethod
    def end(job: RunningJob) -> None:
        for pod in job.pods:
            pod.terminate()
        for pod in job.pods:
            pod.wait(30)


class _Handler(BaseHTTPRequestHandler):
    of: Cluster
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with self.of.lock:
            path = urlsplit(self.path)
            if path.path == JOBS:
                name, _, value = parse_qs(path.query)["labelSelector"][0].partition("=")
                found = [self._shown(job) for job in self.of.jobs.values()]
                self._answer(200, {"items": [job for job in found if job["metadata"]["labels"].get(name) == value]})
            else:
                job = self.of.jobs.get(path.path.rpartition("/")[2])
                self._answer(404, {"message": "not found"}) if job is None else self._answer(200, self._shown(job))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.of.lock:
            code, document = self.of.create(body) if self.path == JOBS else (404, {"message": "not found"})
        if code == 201 and self.of.lose_answers:
            self.close_connection = True
            return
        self._answer(code, document)

    def do_DELETE(self) -> None:
        with self.of.lock:
            path = urlsplit(self.path)
            assert parse_qs(path.query) == {"propagationPolicy": ["Foreground"]}
            job = self.of.jobs.pop(path.path.rpartition("/")[2], None)
            if job is not None:
                self.of.end(job)
        self._answer(200 if job is not None else 404, {"kind": "Status", "message": "deleted"})

    @staticmethod
    def _shown(job: RunningJob) -> dict[str, Any]:
        return {**job.document, "status": job.status()}

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            code, document = 401, {"kind": "Status", "message": "Unauthorized"}
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""
