"""Benchmarks whose results ``docs/benchmarks.md`` quotes; run each with ``python -m benchmarks.NAME [--json]``."""
