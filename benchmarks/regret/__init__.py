"""Regret: is a plan ever slower than a strategy that constraints could have named?"""
