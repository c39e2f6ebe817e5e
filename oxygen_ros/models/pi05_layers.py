"""What a forward of pi0.5 is made of, as transformers' own layers run it: the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import apply_rotary_pos_emb

from oxygen_ros.models.kv import PoolCache
from oxygen_ros.models.pi05_expert import CACHE, Modulation

Rope = tuple[torch.Tensor, torch.Tensor]  # cosine and sine, each [B, n, D]
Mask: TypeAlias = 'torch.Tensor | None'  # bool [B, 1, n or 1, slots], None for all


class Layers(Protocol):
    """What a forward is made of. Hidden states are [B, n, W]."""

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [cameras, 3, h, w] -> features [cameras, tokens, vision width]."""
        ...

    def prefix(
        self, hidden: torch.Tensor, rope: Rope, mask: Mask, kv: PoolCache, last: torch.Tensor
    ) -> torch.Tensor:
        """All layers on a prefix [1, S, W] -> [1, 1, W] of its token number `last`, a tensor [1].

        Of the last layer's other tokens only keys and values are read, so only these are computed.
        """
        ...

    def extend(self, hidden: torch.Tensor, rope: Rope, mask: Mask, kv: PoolCache) -> torch.Tensor:
        """All layers of the language model."""
        ...

    def expert(
        self, hidden: torch.Tensor, modulations: Sequence[Modulation], rope: Rope, kv: PoolCache
    ) -> torch.Tensor:
        """All layers of the action expert, without its final norm."""
        ...


class PlainLayers:
    """transformers' own forward functions."""

    def __init__(self, vision: nn.Module, lm: nn.Module, expert: nn.Module) -> None:
        self._vision, self._lm, self._expert = vision, lm.layers, expert.layers

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """See Layers."""
        return self._vision(pixel_values=pixels).last_hidden_state

    def prefix(
        self, hidden: torch.Tensor, rope: Rope, mask: Mask, kv: PoolCache, last: torch.Tensor
    ) -> torch.Tensor:
        """See Layers."""
        hidden = run_layers(self._lm[:-1], hidden, rope, mask, kv)
        layer, (cos, sin) = self._lm[-1], rope
        attention, normed = layer.self_attn, layer.input_layernorm(hidden)
        heads = (*hidden.shape[:2], -1, attention.head_dim)
        keys = attention.k_proj(normed).view(heads).transpose(1, 2)
        values = attention.v_proj(normed).view(heads).transpose(1, 2)
        _, keys = apply_rotary_pos_emb(keys, keys, cos, sin)
        kv.update(keys, values, attention.layer_idx)
        rope = (cos[:, last], sin[:, last])
        return run_layers([layer], hidden[:, last], rope, rows_of(mask, last), kv.reading())

    def extend(self, hidden: torch.Tensor, rope: Rope, mask: Mask, kv: PoolCache) -> torch.Tensor:
        """See Layers."""
        return run_layers(self._lm, hidden, rope, mask, kv)

    def expert(
        self, hidden: torch.Tensor, modulations: Sequence[Modulation], rope: Rope, kv: PoolCache
    ) -> torch.Tensor:
        """See Layers."""
        for index, layer in enumerate(self._expert):
            pair = (modulations[2 * index], modulations[2 * index + 1])
            hidden = layer(hidden, pair, rope, kv)
        return hidden


def run_layers(
    layers: Iterable[nn.Module], hidden: torch.Tensor, rope: Rope, mask: Mask, kv: PoolCache
) -> torch.Tensor:
    """transformers' Gemma layers, one after another."""
    for layer in layers:
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rope, **{CACHE: kv})
    return hidden


def rows_of(mask: Mask, queries: torch.Tensor) -> Mask:
    """The mask of some queries; a mask of one row serves all of them."""
    return mask if mask is None or mask.shape[2] == 1 else mask[:, :, queries]
