"""Conformance suites of the service's families, and the real parts that they are run over, on one machine."""
