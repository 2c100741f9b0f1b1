"""Conformance suites: what every member of a family must do, to be run over all of them, third-party ones included."""
