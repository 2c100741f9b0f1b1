"""Conformance suites of the service's interfaces, and real back ends on one machine to run them against."""
