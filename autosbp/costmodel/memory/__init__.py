"""Bytes per device: parameters, gradients, optimizer state, tensors saved by autograd, and other memory of a step."""

from autosbp.costmodel.memory.optimizer_state import optimizer_bytes_per_element, state_bytes_per_element
from autosbp.costmodel.memory.rank_memory import RankMemory, memory_bytes, rank_memory
from autosbp.costmodel.memory.saved_tensors import SAVED, saved_inputs, saves_output, workspace_bytes

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
