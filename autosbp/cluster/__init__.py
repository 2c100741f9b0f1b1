"""Cluster specs: devices, network levels, presets, groups of different nodes, what-if scaling."""
