"""Measurements that `docs/benchmarks.md` quotes, each ``python -m benchmarks.NAME [--json]``."""
