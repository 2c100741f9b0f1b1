"""Synchronizers on emulated clusters: ``python -m benchmarks.synchronizers``."""
