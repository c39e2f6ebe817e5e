"""Xiaomi-Robotics-0's action expert: a DiT whose tokens sit behind the prefix in the pool.

Source: the public modeling_mibot, and Xiaomi's later training code (its variants of the mask).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLTextRMSNorm,
    apply_rotary_pos_emb,
)

from oxygen_ros.models.kv import KVWindow, pool_attention

_FREQUENCIES = 256  # of the sine embedding of the flow time
_MAX_PERIOD = 10000
_EPS = 1e-6
_MLP = 4  # width of the MLP in widths of the stream

# shift, 1 + scale and gate of attention, then of the MLP: each [W], of one flow time and layer
Modulation = tuple[torch.Tensor, ...]


class DiTAttention(nn.Module):
    """Attention over the backbone's keys and values of one layer and the expert's own."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.q_norm = Qwen3VLTextRMSNorm(head_dim, eps=_EPS)
        self.k_norm = Qwen3VLTextRMSNorm(head_dim, eps=_EPS)

    def forward(
        self,
        hidden: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        kv: KVWindow,
        layer: int,
    ) -> torch.Tensor:
        """Hidden [B, n, W], mask bool [B, 1, n, window length] -> the same, mixed.

        layer: of the pool, whose slots behind the window's start take the new keys and values.
        """
        rows, tokens, width = hidden.shape
        heads = (rows, tokens, 3, width // self.head_dim, self.head_dim)
        query, key, value = self.qkv_proj(hidden).view(heads).unbind(2)
        query = self.q_norm(query).transpose(1, 2)
        key = self.k_norm(key).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *rope)
        keys, values = kv.update(key, value.transpose(1, 2), layer)
        mixed, _ = pool_attention(self, query, keys, values, mask, self.head_dim**-0.5)
        return self.o_proj(mixed.reshape(rows, tokens, width))


class SwiGLU(nn.Module):
    """The gated MLP of one layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, _MLP * width, bias=False)
        self.up_proj = nn.Linear(width, _MLP * width, bias=False)
        self.down_proj = nn.Linear(_MLP * width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [B, n, W] -> the same."""
        return self.down_proj(nn.functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class DiTLayer(nn.Module):
    """One layer; both its halves are normed again on the residual stream."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.attn = DiTAttention(width, head_dim)
        self.mlp = SwiGLU(width)
        self.input_layernorm = Qwen3VLTextRMSNorm(width, eps=_EPS)
        self.middle_layernorm = Qwen3VLTextRMSNorm(width, eps=_EPS)
        self.post_layernorm = Qwen3VLTextRMSNorm(width, eps=_EPS)
        self.final_layernorm = Qwen3VLTextRMSNorm(width, eps=_EPS)
        self.adaln_table = nn.Parameter(torch.empty(6, width))

    def modulation(self, time: torch.Tensor) -> Modulation:
        """What forward() needs at one projected flow time [6, W]."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = (self.adaln_table + time).unbind()
        return shift, 1 + scale, gate, mlp_shift, 1 + mlp_scale, mlp_gate

    def forward(
        self,
        hidden: torch.Tensor,
        modulation: Modulation,
        rope: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        kv: KVWindow,
        layer: int,
    ) -> torch.Tensor:
        """Hidden [B, n, W] -> the same; mask and layer: see DiTAttention."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        mixed = self.attn(self.input_layernorm(hidden) * scale + shift, rope, mask, kv, layer)
        hidden = self.middle_layernorm(hidden + gate * mixed)
        changed = self.mlp(self.post_layernorm(hidden) * mlp_scale + mlp_shift)
        return self.final_layernorm(hidden + mlp_gate * changed)


class DiT(nn.Module):
    """The expert's layers, over the last ones of the backbone; there is no final norm."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        """sizes: hidden_size, num_hidden_layers and head_dim."""
        super().__init__()
        self.layers = nn.ModuleList(
            DiTLayer(sizes['hidden_size'], sizes['head_dim'])
            for _ in range(sizes['num_hidden_layers'])
        )

    def forward(
        self,
        hidden: torch.Tensor,
        modulations: Sequence[Modulation],
        rope: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        kv: KVWindow,
        first_layer: int,
    ) -> torch.Tensor:
        """Hidden [B, n, W] -> the same. first_layer: of the pool, which layer 0 reads."""
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, modulations[index], rope, mask, kv, first_layer + index)
        return hidden


class Projector(nn.Module):
    """Linear layers without activation at the end; two have a GELU between them."""

    def __init__(self, width_in: int, width_out: int, depth: int, bias: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(width_in, width_out, bias=bias)]
        for _ in range(depth - 1):
            layers += [
                nn.GELU(approximate='tanh'),
                nn.Linear(width_out, width_out, bias=bias),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., width_in] -> [..., width_out]."""
        return self.layers(values)


class TimeEmbedder(nn.Module):
    """The flow time as the expert is told of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(_FREQUENCIES, width, bias=False),
            nn.SiLU(),
            nn.Linear(width, width, bias=False),
        )

    def forward(self, thousandths: torch.Tensor) -> torch.Tensor:
        """Flow times [steps] in thousandths, in the model's dtype -> [steps, W]."""
        half = _FREQUENCIES // 2
        numbers = torch.arange(half, dtype=torch.float32, device=thousandths.device)
        angle = thousandths.float()[:, None] * torch.exp(-math.log(_MAX_PERIOD) * numbers / half)
        embedded = torch.cat([angle.cos(), angle.sin()], dim=-1)
        return self.mlp(embedded.to(thousandths.dtype))


def expert_mask(
    suffix_start: int, actions: int, window: int | None, length: int, device: torch.device
) -> torch.Tensor:
    """What sink, state and actions, in slots from suffix_start on, see of a window -> bool
    [1, 1, 2 + actions, length].

    Everything before, and each other causally; window: how many earlier actions an action sees.
    """
    queries = torch.arange(2 + actions, device=device)[:, None]
    columns = torch.arange(length, device=device)[None] - suffix_start
    seen = columns <= queries
    if window is not None:
        is_far = (columns >= 2) & (columns < queries - window)
        seen &= ~is_far
    return seen[None, None]
