"""Solutions of games by their tables: against linear programming."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from autosbp.search.bounds.matrix_game import optimal_mixed_strategies


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 6), (6, 1), (5, 5), (30, 12), (12, 30), (120, 40)])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_neither_player_gains_by_knowing_the_others_mixture(rows: int, columns: int, spread: float) -> None:
    table = 1.0 + spread * np.random.default_rng(rows * columns).random((rows, columns))
    won, lost = optimal_mixed_strategies(table)
    assert won.shape == (rows,) and lost.shape == (columns,)
    assert won.min() >= 0 and lost.min() >= 0 and won.sum() == pytest.approx(1) and lost.sum() == pytest.approx(1)
    known = linprog(
        np.append(np.zeros(columns), 1.0),
        A_ub=np.column_stack([table, -np.ones(rows)]),
        b_ub=np.zeros(rows),
        A_eq=np.append(np.ones(columns), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * columns + [(None, None)],
    )
    assert (won @ table).min() == pytest.approx(known.fun, rel=1e-9)
    assert (table @ lost).max() == pytest.approx(known.fun, rel=1e-9)


def test_equal_choices_are_a_solution() -> None:
    """Every row and column alike: all ratios are ties."""
    won, lost = optimal_mixed_strategies(np.full((4, 7), 2.5))
    assert won.sum() == pytest.approx(1) and lost.sum() == pytest.approx(1)
