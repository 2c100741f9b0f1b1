"""OpenTelemetry instrumentation: a span per request, sent as the ``OTEL_*`` variables say."""

from __future__ import annotations

from fastapi import FastAPI

from autosbp.errors import InputError
from autosbp.service import tracing


def install(app: FastAPI) -> None:
    """Instrument an application; raise ``InputError`` if the extra ``otel`` is not installed."""
    tracing.start_tracing()
    try:
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
    except ImportError as error:
        raise InputError("otel", True, f"requires the extra otel: pip install 'autosbp[otel]' ({error})") from None
    FastAPIInstrumentor.instrument_app(app, excluded_urls="healthz,readyz,metrics")
