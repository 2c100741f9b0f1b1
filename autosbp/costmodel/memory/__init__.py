"""Bytes per device: parameters, gradients, optimizer state, what autograd keeps, and what a step needs besides."""

from autosbp.costmodel.memory.rank import RankMemory, memory_bytes, rank_memory
from autosbp.costmodel.memory.saved import SAVED, saved_inputs, saves_output, workspace_bytes
from autosbp.costmodel.memory.state import optimizer_bytes_per_element, state_bytes_per_element

__all__ = [
    "SAVED",
    "RankMemory",
    "memory_bytes",
    "optimizer_bytes_per_element",
    "rank_memory",
    "saved_inputs",
    "saves_output",
    "state_bytes_per_element",
    "workspace_bytes",
]
