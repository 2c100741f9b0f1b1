"""Launchers start jobs on clusters: ``_base`` has the contract, ``_from_settings`` builds the configured one.

Light to import, because every node's process imports it.
"""
