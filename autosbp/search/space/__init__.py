"""The whole space of a plan: structures, microbatches, storage, recomputation, searched as bounds ask for."""
