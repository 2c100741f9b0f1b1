"""Bytes per device: parameters, gradients, optimizer state, what autograd keeps, and what a step needs besides."""

from autosbp.costmodel.memory.rank import memory_bytes
from autosbp.costmodel.memory.saved import SAVED, saved_inputs, saves_output
from autosbp.costmodel.memory.state import state_bytes_per_element

__all__ = ["SAVED", "memory_bytes", "saved_inputs", "saves_output", "state_bytes_per_element"]
