"""Recurrences of transformers' models, which loop over tokens in Python, and the CTC loss, rewritten with torch's ``scan``.

While a model is traced, the functions of ``SCANS`` replace equivalent functions in modules of transformers or torch, so that
a layer's recurrence is one op instead of thousands. The check of a capture compares it with the original functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any
from unittest.mock import patch

import torch
from torch._higher_order_ops.scan import scan

from autosbp.graph.huggingface._ctc_loss import ctc_loss, transformers_ctc_loss

Tensor = torch.Tensor


def _wide(*tensors: Tensor) -> torch.dtype:
    """Dtype of the states: float32, or the widest dtype of the tensors if that is wider."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def selective_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, delta_softplus: bool = False, return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Mamba's selective scan (Gu and Dao 2023), discretised inside the scan.

    Input and output have shape [batch, width, tokens].
    """
    own = hidden_states.dtype
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        dt = torch.nn.functional.softplus(dt)

    def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        x, delta, b, c = now
        delta = delta.unsqueeze(-1)
        moved = delta * b.unsqueeze(1).float() * x.unsqueeze(-1).float()
        state = torch.exp(A * delta) * state + moved
        return state, torch.matmul(state.to(own), c.unsqueeze(-1)).squeeze(-1)

    first = dt.new_zeros(*hidden_states.shape[:2], A.shape[-1], dtype=_wide(A, dt))
    slices = tuple(each.permute(2, 0, 1) for each in (hidden_states, dt, B, C))
    last, found = scan(step, first, slices)
    out = found.permute(1, 2, 0)
    if D is not None:
        out = out + hidden_states * D[None, :, None]
    if z is not None:
        out = out * torch.nn.functional.silu(z)
    return (out, last) if return_last_state else out


def rwkv_attention(
    time_decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, state: Any = None, return_state: bool = False
) -> tuple[Tensor, Any]:
    """RWKV's linear attention (Peng et al. 2023); input and output have shape [batch, tokens, width]."""
    wide = _wide(key, value, time_decay)
    decay = -torch.exp(time_decay)
    if state is None:
        zeros = torch.zeros_like(key[:, 0], dtype=wide)
        states = (zeros, zeros.clone(), zeros - 1e38)
    else:
        states = tuple(each.to(wide) for each in state)

    def step(before: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[Any, Tensor]:
        num, den, largest = before
        k, v = now[0].to(wide), now[1]
        most = torch.maximum(largest, k + time_first)
        past, here = torch.exp(largest - most), torch.exp(k + time_first - most)
        out = ((past * num + here * v) / (past * den + here)).to(v.dtype)
        most = torch.maximum(largest + decay, k)
        past, here = torch.exp(largest + decay - most), torch.exp(k - most)
        return (past * num + here * v, past * den + here, most), out

    last, out = scan(step, states, (key, value), dim=1)
    return out, list(last) if return_state or state is not None else None


def gated_linear_recurrence(
    self: Any,  # noqa: ARG001 - a method
    hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """RG-LRU of RecurrentGemma (De et al. 2024); returns [batch, tokens, width], like its input, and the last state."""
    gate = recurrent_gate * ~reset
    wide = torch.promote_types(acc_dtype, _wide(hidden_states))
    if recurrent_states is None:
        recurrent_states = torch.zeros_like(hidden_states[:, 0], dtype=wide)

    def step(state: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, x = now
        state = a.to(wide) * state + x.to(wide)
        return state, state.to(hidden_states.dtype, copy=True)

    last, out = scan(step, recurrent_states.to(wide), (gate, hidden_states), dim=1)
    return out, last


_MODELS = "transformers.models"
SCANS: Mapping[str, Callable[..., Any]] = {
    **{
        f"{_MODELS}.{name}.modeling_{name}:mamba_selective_scan": selective_scan
        for name in ("mamba", "jamba", "falcon_mamba", "zamba")
    },
    f"{_MODELS}.rwkv.modeling_rwkv:rwkv_linear_attention_cpu": rwkv_attention,
    f"{_MODELS}.recurrent_gemma.modeling_recurrent_gemma:RecurrentGemmaRglru._rnn_scan": gated_linear_recurrence,
    "transformers.loss.loss_utils:LOSS_MAPPING.ForCTC": transformers_ctc_loss,
    "torch.nn.functional:ctc_loss": ctc_loss,
}
"""Replacements by ``module:path``, where the path is that of a function, a method, or an entry of a dict."""


@contextmanager
def loops_as_scans() -> Iterator[None]:
    """While active, the functions of ``SCANS`` replace the originals in all imported modules."""
    with ExitStack() as stack:
        for place, function in SCANS.items():
            module, _, path = place.partition(":")
            owner: Any = sys.modules.get(module)
            *outer, name = path.split(".")
            for each in outer:
                owner = getattr(owner, each, None)
            if isinstance(owner, dict) and name in owner:
                stack.enter_context(patch.dict(owner, {name: function}))
            elif hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, function))
        yield
