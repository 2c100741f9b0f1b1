"""Ops of the namespace ``autosbp``: layers that torch has no op for, and that shard best as a whole.

Capture sees each as an opaque ``torch.library`` op with a shape function; the executor runs the plain function below,
which autograd differentiates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def experts(
    x: torch.Tensor,
    index: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    first: int = 0,
) -> torch.Tensor:
    """Mixture of gated feed-forward experts; each token goes to ``k`` of them (Shazeer et al. 2017).

    ``out[t] = sum_j weight[t, j] * down[e] (act(gate[e] x[t]) * (up[e] x[t]))`` with ``e = index[t, j]``. Tokens are
    sorted by expert, so that each expert is two or three matrix products.

    Args:
        x: tokens [t, d].
        index, weight: [t, k].
        gate, up: [e, f, d].
        down: [e, d, f].
        activation: a key of ``ACTIVATIONS``.
        first: index of the first expert in ``gate``; slots of experts on other ranks add nothing.
    """
    num_slots, num_experts = index.shape[1], gate.shape[0]
    slots = index.reshape(-1) - first
    slots = torch.where((slots >= 0) & (slots < num_experts), slots, num_experts)
    order = torch.argsort(slots, stable=True)
    counts = torch.bincount(slots, minlength=num_experts + 1)[:num_experts].tolist()
    order = order[: sum(counts)]
    tokens = order // num_slots
    pieces = []
    act = ACTIVATIONS[activation]
    for rows, w_gate, w_up, w_down in zip(
        torch.split(x.index_select(0, tokens), counts), gate.unbind(), up.unbind(), down.unbind(), strict=True
    ):
        # An expert without tokens still computes its (empty) products, so that its weights get a zero gradient.
        hidden = act(torch.nn.functional.linear(rows, w_gate)) * torch.nn.functional.linear(rows, w_up)
        pieces.append(torch.nn.functional.linear(hidden, w_down))
    scaled = torch.cat(pieces) * weight.reshape(-1).index_select(0, order).unsqueeze(-1)
    return x.new_zeros(x.shape).index_add(0, tokens, scaled.to(x.dtype))


CUSTOM_OPS: Mapping[str, Callable[..., torch.Tensor]] = {"experts": experts}

_SCHEMA = "(Tensor x, Tensor index, Tensor weight, Tensor gate, Tensor up, Tensor down, str activation) -> Tensor"
experts_op = torch.library.custom_op("autosbp::experts", experts, mutates_args=(), schema=_SCHEMA)


experts_op.register_fake(lambda x, *_: torch.empty_like(x))
