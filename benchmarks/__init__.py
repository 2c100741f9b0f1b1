"""Measurements that the README quotes, each ``python -m benchmarks.NAME [--json]``."""
