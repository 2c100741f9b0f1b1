"""From a bound graph, a mesh and a cost model to a ``SearchProblem``, and from an assignment back to a strategy."""
