"""Searchers of a ``SearchProblem``, one file each, and what they share.

They know the problem alone (``autosbp.search._base``): variables, costs, memory. What graphs, meshes and pipelines are is not
for them. ``exact`` stands on ``elimination``, ``chain`` and ``forest`` (min-plus products), ``memory`` (Lagrangian bounds),
``messages`` and ``cpsat``; ``anytime`` is a folder of its own.
"""
