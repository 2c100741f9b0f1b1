"""OpenTelemetry spans of jobs: a trace continues from the request through the job's process to its ranks.

Nothing is imported, stored or sent before ``start_tracing`` is called in the process (``AUTOSBP_OTEL``; a job's process
receives this with its task). Contexts are W3C ``traceparent`` strings. A job's row stores them apart from the job's
input, so that no id and no content depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autosbp.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

TRACEPARENT_VARIABLE = "TRACEPARENT"
"""Environment variable of a job's process and its ranks."""
_NAME = "autosbp"
_REQUEST, _RUN = "request", "run"
_tracer: Tracer | None = None


def start_tracing(every_s: float | None = None) -> None:
    """Start tracing in this process as the ``OTEL_*`` variables say.

    Args:
        every_s: interval of sending spans; None uses the ``OTEL_*`` variables.

    Raises:
        InputError: the extra ``otel`` is not installed.
    """
    global _tracer  # noqa: PLW0603 - as OpenTelemetry's provider, one for each process
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InputError("otel", True, f"pip install 'autosbp[otel]' is needed ({error})") from None
    # a program that embeds the service may have set its own
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(resource=Resource.create({"service.name": _NAME}))
        every_ms = None if every_s is None else every_s * 1000
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=every_ms))
        trace.set_tracer_provider(provider)
    _tracer = trace.get_tracer(_NAME)


def is_on() -> bool:
    """Whether ``start_tracing`` was called."""
    return _tracer is not None


def traceparent() -> str | None:
    """The current span's context; None without a span or without tracing."""
    if _tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def request_context() -> dict[str, str] | None:
    """Trace contexts that a new job's row stores: the request that submitted it."""
    found = traceparent()
    return None if found is None else {_REQUEST: found}


def with_attempt_context(kept: Mapping[str, str] | None) -> dict[str, str] | None:
    """The row's trace contexts with the current span added as the running attempt."""
    found = traceparent()
    return dict(kept or {}) or None if found is None else {**(kept or {}), _RUN: found}


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """Open a child span of the current one; does nothing without tracing."""
    if _tracer is None:
        yield
        return
    with _tracer.start_as_current_span(name, attributes=_named(attributes)):
        yield


@contextmanager
def job_span(name: str, kept: Mapping[str, str] | None, **attributes: str | int) -> Iterator[None]:
    """Open the span of an attempt at a job, in the trace of the submitting request and linked to the earlier attempt."""
    if _tracer is None:
        yield
        return
    from opentelemetry import trace

    kept = kept or {}
    earlier = trace.get_current_span(_context(kept.get(_RUN))).get_span_context()
    links = [trace.Link(earlier)] if earlier.is_valid else []
    # A job without a request continues the trace of its first attempt, or begins one.
    within = _context(kept.get(_REQUEST) or kept.get(_RUN))
    with _tracer.start_as_current_span(name, within, attributes=_named(attributes), links=links):
        yield


@contextmanager
def remote_child_span(parent: str | None, name: str, **attributes: str | int) -> Iterator[None]:
    """Open a child span of a span in another process."""
    if _tracer is None:
        yield
        return
    with _tracer.start_as_current_span(name, _context(parent), attributes=_named(attributes)):
        yield


def environment() -> dict[str, str]:
    """Environment variables for a program that continues the trace."""
    found = traceparent()
    return {} if found is None else {TRACEPARENT_VARIABLE: found}


def _named(attributes: Mapping[str, str | int]) -> dict[str, Any]:
    return {f"{_NAME}.{name}": value for name, value in attributes.items()}


def _context(parent: str | None) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({} if parent is None else {"traceparent": parent}, Context())
