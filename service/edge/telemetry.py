"""OpenTelemetry, where it is asked for: a span for each request, sent as the ``OTEL_*`` variables say."""

from __future__ import annotations

from fastapi import FastAPI

from autosbp.errors import InputError
from service import tracing


def install(app: FastAPI) -> None:
    """Instrument an application; ``InputError`` where the extra is not installed."""
    tracing.begin()
    try:
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
    except ImportError as error:
        raise InputError("otel", True, f"pip install 'autosbp[otel]' is needed ({error})") from None
    FastAPIInstrumentor.instrument_app(app, excluded_urls="healthz,readyz,metrics")
