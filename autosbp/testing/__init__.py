"""Conformance suites: requirements of every member of a family, to be run on all of them, third-party ones included."""
