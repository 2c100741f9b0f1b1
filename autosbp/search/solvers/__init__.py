"""Searchers of a ``SearchProblem``, one file each, and their shared parts.

They know only the problem (``autosbp.search._base``): variables, costs, memory; nothing of graphs, meshes or pipelines.
``exact`` builds on ``elimination``, ``repeated_chain`` and ``tree_dp`` (min-plus products), ``lagrangian`` (memory
bounds), ``trws`` and ``cpsat``. ``anytime`` is a package of its own."""
