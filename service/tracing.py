"""Spans beyond requests: a job's trace goes on from the request that asked for it, through its process to its ranks.

Nothing is imported, stored or sent until ``begin`` was called in the process (``AUTOSBP_OTEL``; a job's process is told with
its task). Contexts travel as W3C's ``traceparent``: a job's row keeps them beside what the job is about, so that no id and no
content depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autosbp.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

VARIABLE = "TRACEPARENT"
"""Of the environment of a job's process and its ranks."""
_NAME = "autosbp"
_REQUEST, _RUN = "request", "run"
_tracer: Tracer | None = None


def begin(every_s: float | None = None) -> None:
    """Trace in this process, as the ``OTEL_*`` variables say; ``InputError`` where the extra is not installed. Spans are sent
    every ``every_s``, by default as these variables say."""
    global _tracer  # noqa: PLW0603 - as OpenTelemetry's provider, one for each process
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InputError("otel", True, f"pip install 'autosbp[otel]' is needed ({error})") from None
    if not isinstance(trace.get_tracer_provider(), TracerProvider):  # a program around the service may have set its own
        provider = TracerProvider(resource=Resource.create({"service.name": _NAME}))
        every_ms = None if every_s is None else every_s * 1000
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=every_ms))
        trace.set_tracer_provider(provider)
    _tracer = trace.get_tracer(_NAME)


def is_on() -> bool:
    """Whether ``begin`` was called."""
    return _tracer is not None


def traceparent() -> str | None:
    """The present span's context; None where there is none, or nothing is traced."""
    if _tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def asked() -> dict[str, str] | None:
    """What a new job's row keeps: the request that asked for it."""
    found = traceparent()
    return None if found is None else {_REQUEST: found}


def attempted(kept: Mapping[str, str] | None) -> dict[str, str] | None:
    """What the row keeps from now on: also the attempt that the present span is."""
    found = traceparent()
    return dict(kept or {}) or None if found is None else {**(kept or {}), _RUN: found}


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """A span of the present one; nothing where nothing is traced."""
    if _tracer is None:
        yield
        return
    with _tracer.start_as_current_span(name, attributes=_named(attributes)):
        yield


@contextmanager
def job(name: str, kept: Mapping[str, str] | None, **attributes: str | int) -> Iterator[None]:
    """The span of work on a job, of the trace of the request that asked for it; linked to an attempt that was cut off."""
    if _tracer is None:
        yield
        return
    from opentelemetry import trace

    kept = kept or {}
    earlier = trace.get_current_span(_context(kept.get(_RUN))).get_span_context()
    links = [trace.Link(earlier)] if earlier.is_valid else []
    # A job without a request of its own begins a trace, or goes on with that of its first attempt.
    within = _context(kept.get(_REQUEST) or kept.get(_RUN))
    with _tracer.start_as_current_span(name, within, attributes=_named(attributes), links=links):
        yield


@contextmanager
def continued(parent: str | None, name: str, **attributes: str | int) -> Iterator[None]:
    """A span of one in another process."""
    if _tracer is None:
        yield
        return
    with _tracer.start_as_current_span(name, _context(parent), attributes=_named(attributes)):
        yield


def environment() -> dict[str, str]:
    """Variables for a program that goes on with the trace."""
    found = traceparent()
    return {} if found is None else {VARIABLE: found}


def _named(attributes: Mapping[str, str | int]) -> dict[str, Any]:
    return {f"{_NAME}.{name}": value for name, value in attributes.items()}


def _context(parent: str | None) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({} if parent is None else {"traceparent": parent}, Context())
