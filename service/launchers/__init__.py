"""Starting jobs on clusters: ``_base`` has the contract, ``_choice`` makes the one that the settings choose.

Light to import: it is on the way of every node's process.
"""
