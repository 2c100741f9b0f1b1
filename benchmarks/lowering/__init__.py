"""Lowered programs against PyTorch's own training, side by side: ``python -m benchmarks.lowering [--json]``."""
