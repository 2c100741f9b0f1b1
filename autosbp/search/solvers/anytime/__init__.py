"""Search for cost graphs that are too dense for elimination, or whose memory binds at thousands of instants.

``interval_problem`` is the input. ``node_contraction`` and ``dead_end_elimination`` reduce it without losing an
optimum; ``network`` lays it out for compiled loops. ``lagrangian_bound`` proves bounds, with Lagrange multipliers of
memory; ``single_moves``, ``tree_moves`` and ``annealing`` improve assignments; ``milp`` closes what is small enough;
``solver`` combines them."""
