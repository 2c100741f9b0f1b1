"""Optimal mixed strategies of a two-player zero-sum matrix game.

The simplex method on the game's linear program (von Neumann; Dantzig 1951), for tables of some dozens of rows and
columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TOLERANCE = 1e-11
MAX_PIVOTS_FACTOR = 20
"""Limit of pivots, times rows plus columns. Ties go to the lowest index, so that only rounding can cause cycling."""


def optimal_mixed_strategies(table: Floats) -> tuple[Floats, Floats]:
    """Optimal probabilities of rows and columns; the row player wins an entry of the table and the column player loses it.

    Args:
        table: [rows, columns], all entries above 0.
    """
    rows, columns = table.shape
    if rows > columns:  # the game of the other player, who has fewer choices
        lost, won = optimal_mixed_strategies(2 * table.max() - table.T)
        return won, lost
    # Column probabilities over the game's value: maximise their sum where no row gains more than 1.
    tableau = np.zeros((rows + 1, columns + rows + 1))
    tableau[:rows, :columns] = table / table.max()
    tableau[:rows, columns:-1] = np.eye(rows)
    tableau[:rows, -1] = 1.0
    tableau[rows, :columns] = -1.0
    basis = np.arange(columns, columns + rows)
    for _ in range(MAX_PIVOTS_FACTOR * (rows + columns)):
        entering = int(tableau[rows, :-1].argmin())
        if tableau[rows, entering] >= -TOLERANCE:
            break
        gains = tableau[:rows, entering]
        ratios = np.full(rows, np.inf)
        np.divide(tableau[:rows, -1], gains, out=ratios, where=gains > TOLERANCE)
        leaving = int(ratios.argmin())
        if not np.isfinite(ratios[leaving]):
            break
        basis[leaving] = entering
        pivot = tableau[leaving] / gains[leaving]
        tableau -= np.outer(tableau[:, entering], pivot)
        tableau[leaving] = pivot
    chosen = np.zeros(columns + rows)
    chosen[basis] = tableau[:rows, -1]
    return _normalised(tableau[rows, columns:-1]), _normalised(chosen[:columns])


def _normalised(weights: Floats) -> Floats:
    weights = np.maximum(weights, 0.0)
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
