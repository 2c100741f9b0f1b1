"""Regret: slowdown of plans against strategies that constraints can express."""
