"""Reports about plans and trials: findings, diffs, traffic, model estimates, trial gates."""
