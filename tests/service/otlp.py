"""A receiver of OpenTelemetry's traces (OTLP over HTTP) on a free loopback port."""

from __future__ import annotations

import gzip
import time
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.service.side_server import Quiet, SideServer

_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Span:
    """What a receiver was told of one; ids are lower-case hexadecimal, as in a ``traceparent``."""

    name: str
    trace_id: str
    id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, str]


class Receiver(SideServer):
    """``url`` is for OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        receiver = self

        class Handler(Quiet):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.spans += _read(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

        super().__init__(Handler)

    def tree(self, trace_id: str, names: set[str]) -> dict[str, Span]:
        """The spans of a trace by name, once those ``names`` are among them."""
        deadline_s = time.monotonic() + _WAIT_S
        while True:
            found = {span.name: span for span in list(self.spans) if span.trace_id == trace_id}
            if names <= found.keys():
                return found
            assert time.monotonic() < deadline_s, (names - found.keys(), found.keys())
            time.sleep(0.1)


def _read(body: bytes) -> list[Span]:
    sent = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            {each.key: each.value.string_value for each in span.attributes},
        )
        for resource in sent.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
