"""Trial-driven optimization (AutoDist, Algorithm 1): sampled strategies, ranked by a model that learns from their trials."""
