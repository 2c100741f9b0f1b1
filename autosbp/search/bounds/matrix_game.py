"""A game of two players by its table: how each mixes what it may choose, so that the other one gains nothing by knowing it.

The simplex method on the linear program of such a game (von Neumann; Dantzig 1951), for tables of some dozen rows and columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TOLERANCE = 1e-11
MOST_PIVOTS = 20
"""Times rows and columns; ties are taken by their numbers, so that it may go round in circles only where rounding has it."""


def mixtures(table: Floats) -> tuple[Floats, Floats]:
    """How often rows and columns are chosen, in parts of 1, where rows gain what the table has and columns lose it.

    Args:
        table: [rows, columns], all above 0.
    """
    rows, columns = table.shape
    if rows > columns:  # as it looks to the other player: a row for each of fewer choices
        lost, won = mixtures(2 * table.max() - table.T)
        return won, lost
    # Parts of the columns over the game's value: as many as possible where no row gains more than 1 by them.
    tableau = np.zeros((rows + 1, columns + rows + 1))
    tableau[:rows, :columns] = table / table.max()
    tableau[:rows, columns:-1] = np.eye(rows)
    tableau[:rows, -1] = 1.0
    tableau[rows, :columns] = -1.0
    basis = np.arange(columns, columns + rows)
    for _ in range(MOST_PIVOTS * (rows + columns)):
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
    return _parts(tableau[rows, columns:-1]), _parts(chosen[:columns])


def _parts(weights: Floats) -> Floats:
    weights = np.maximum(weights, 0.0)
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
