"""Lower bounds on step time per pipeline structure: bubble, P2P and memory (Lagrangian)."""
