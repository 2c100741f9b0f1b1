"""OpenTelemetry, where it is asked for: a span for each request, sent as the ``OTEL_*`` variables say."""

from __future__ import annotations

from fastapi import FastAPI

from autosbp.errors import InputError


def install(app: FastAPI) -> None:
    """Instrument an application; ``InputError`` where the extra is not installed."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InputError("otel", True, f"pip install 'autosbp[otel]' is needed ({error})") from None
    if not isinstance(trace.get_tracer_provider(), TracerProvider):  # a program around the service may have set its own
        provider = TracerProvider(resource=Resource.create({"service.name": "autosbp"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    FastAPIInstrumentor.instrument_app(app, excluded_urls="healthz,readyz,metrics")
