"""Mixture of experts: capture transformers' expert layers as one op (``autosbp.graph.experts_op.experts``).

Transformers' own implementations sort the tokens of the whole batch, gather a weight per token, or branch on data; none
of these can be sharded by tokens. Layers with biases, other gates or interleaved weights keep transformers' grouped
form.
"""

from __future__ import annotations

from typing import Any

import torch

from autosbp.graph.experts_op import experts_op

_NAME = "autosbp"
_ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "ReLU": "relu",
    "GELU": "gelu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
}


def use_expert_op(module: torch.nn.Module) -> None:
    """Replace the forward pass of every expert layer of ``module`` by the op, where the op can express it."""
    try:
        from transformers.integrations import moe
    except ImportError:  # releases without a common interface of experts
        return
    moe.ALL_EXPERTS_FUNCTIONS[_NAME] = _forward
    part: Any
    for part in module.modules():
        if hasattr(part, "has_gate") and hasattr(part, "gate_up_proj") and hasattr(part, "config"):
            part.config._experts_implementation_internal = _NAME


def _forward(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The op while a model is exported; else transformers' own layer, which the captured graph is checked against."""
    from transformers.integrations import moe

    if not torch.compiler.is_exporting():
        own: torch.Tensor = moe.batched_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
        return own
    activation = _ACTIVATIONS.get(type(getattr(self, "act_fn", None)).__name__)
    plain = self.has_gate and self.is_concatenated and not self.has_bias and not self.has_post_expert_norm
    if not plain or activation is None or type(self)._apply_gate is not moe._default_apply_gate:
        grouped: torch.Tensor = moe.grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
        return grouped
    gate_up, down = self.gate_up_proj, self.down_proj
    if self.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    gate, up = gate_up.chunk(2, dim=1)
    out: torch.Tensor = experts_op(hidden_states, top_k_index, top_k_weights, gate, up, down, activation)
    return out
