"""Builds a ``SearchProblem`` from a bound graph, a mesh and a cost model, and turns an assignment into a strategy."""
