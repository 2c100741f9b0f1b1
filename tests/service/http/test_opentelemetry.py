"""OpenTelemetry is off by default; asked for, each request is a span of the caller's trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.server import ROOT

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from autosbp.service.app import create_app
from autosbp.service.settings import Settings

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
trace_id = "0af7651916cd43dd8448eb211c80319c"
for otel in (False, True):
    settings = Settings(data_dir=Path(sys.argv[1]), otel=otel)
    with TestClient(create_app(settings), "http://localhost") as client:
        client.get("/v1/clusters/clu-none", headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
        client.get("/healthz")
    found = [span for span in spans.get_finished_spans() if span.kind == trace.SpanKind.SERVER]
    assert len(found) == otel, [span.name for span in found]
(span,) = found
assert format(span.context.trace_id, "032x") == trace_id
assert span.attributes.get("http.status_code", span.attributes.get("http.response.status_code")) == 404
print(span.name)
"""


def test_a_request_is_a_span_of_its_callers_trace_where_that_is_asked_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "GET /v1/clusters/{cluster_id}"
