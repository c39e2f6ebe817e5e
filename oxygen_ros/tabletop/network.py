"""The batched forward pass for training: Pi05's own modules, with gradients and without a pool.

What prefill(), extend() and act() compute row by row at inference is computed here for many rows:
test/tabletop compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, Cache
from transformers.models.gemma.modeling_gemma import apply_rotary_pos_emb

from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.models.pi05_expert import CACHE, time_embedding
from oxygen_ros.tabletop.batches import IGNORED, Batch
from oxygen_ros.tabletop.tasks import COLOURS
from oxygen_ros.tabletop.vocabulary import BINS, vocabulary

Rope = tuple[torch.Tensor, torch.Tensor]
Modulated = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_ATTENTION = 'tabletop_training'


class _Recorded(Cache):
    """Keeps keys and values [B, KV heads, S, D] of every layer, in order."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.pairs.append((keys, values))
        return keys, values


class _Behind(Cache):
    """New tokens behind a recorded prefix."""

    def __init__(self, prefix: _Recorded) -> None:
        super().__init__(layers=[])
        self._pairs = prefix.pairs

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before, held = self._pairs[layer]
        return torch.cat([before, keys], 2), torch.cat([held, values], 2)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """As pool_attention() for one KV head, with a backward pass that is fast on a CPU.

    attention_mask: what is added to the scores, [B, heads * n, S].
    """
    rows, heads, tokens, width = query.shape
    query = query.reshape(rows, heads * tokens, width).to(value.dtype)
    keys = key[:, 0].transpose(1, 2).to(value.dtype)
    scores = torch.baddbmm(attention_mask.to(value.dtype), query, keys, alpha=scaling)
    mixed = torch.bmm(scores.softmax(-1), value[:, 0])
    return mixed.view(rows, heads, tokens, width).transpose(1, 2), None


AttentionInterface.register(_ATTENTION, _attention)


class Training(nn.Module):
    """A Pi05 with its losses, and three heads that are used in training alone.

    spot: of a patch of a picture, whether a block of each colour has its middle there, and where
    in it. meant: the same after one layer with the words, for the task's block alone. locate: of
    the last prompt token, how far the gripper is from block and tray.
    """

    def __init__(self, model: Pi05, draws: int) -> None:
        """draws: noises and flow times per example."""
        super().__init__()
        self.model, self.draws = model, draws
        self.spot = nn.Linear(model.arch.vision_width, 3 * len(COLOURS))
        self.meant = nn.Linear(model.arch.lm_width, 3)
        self.locate = nn.Linear(model.arch.lm_width, 4)
        model.requires_grad_(True)
        assert model.arch.kv_heads == 1, 'the training attention knows one KV head'
        for config in (model.lm.config, model.expert.layers[0].self_attn.config):
            config._attn_implementation = _ATTENTION
        model.vision.config._attn_implementation = 'eager'

    def forward(self, batch: Batch, noise: torch.Tensor, times: torch.Tensor) -> dict[str, Any]:
        """Losses by name. noise [B, draws, H, 4], times [B, draws] in (0, 1]."""
        features = self.see(batch)
        prefix, first, last, seen = self.prefix(batch, features)
        own = batch.places[torch.arange(len(last)), :, batch.colour][:, :, None]
        target = noise - batch.actions[:, None]
        noisy = batch.actions[:, None] + times[..., None, None] * target
        velocity = self.velocity(prefix, seen, batch, noisy, times)
        logits = self.say(prefix, seen, batch).float()
        located = self.locate(last).float().view_as(batch.offsets)
        return {
            'action': functional.mse_loss(velocity, target),
            'words': functional.cross_entropy(
                logits.flatten(0, -2), batch.next_words.flatten(), ignore_index=IGNORED
            ),
            'offset': functional.mse_loss(located, batch.offsets),
            'spot': self._spot_loss(self.spot(features), batch.places),
            'meant': self._spot_loss(self.meant(first), own),
        }

    def see(self, batch: Batch) -> torch.Tensor:
        """Features of every picture, [B * C, patches, W]."""
        return self.model.vision(batch.pixels.flatten(0, 1)).last_hidden_state

    def _spot_loss(self, found: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Heads' output [B * C, patches, 3 * colours]; places [B, C, colours, 2] as in Batch."""
        side = self.model.arch.image_size // self.model.arch.patch
        found = found.float().unflatten(-1, (-1, 3))  # [B * C, patches, colours, 3]
        scaled = places.flatten(0, 1) * side  # [B * C, colours, 2]
        shown = ~scaled.isnan().any(-1)
        scaled = scaled.nan_to_num().clamp(0, side - 1e-3)
        column, row = scaled.long().unbind(-1)
        wanted = functional.one_hot(row * side + column, side * side) * shown[..., None]
        wanted = wanted.transpose(1, 2).float()  # [B * C, patches, colours]
        there = functional.binary_cross_entropy_with_logits(found[..., 0], wanted)
        within = (scaled - scaled.floor() - 0.5)[:, None]  # of the patch
        missed = (found[..., 1:] - within).square().sum(-1)
        return 5.0 * there + (missed * wanted).sum() / wanted.sum().clamp(min=1)

    def prefix(
        self, batch: Batch, features: torch.Tensor
    ) -> tuple[_Recorded, torch.Tensor, torch.Tensor, torch.Tensor]:
        """KV of pictures and prompt [B, S], what the heads read, and which tokens count.

        Read are the patches after one layer [B * C, patches, W] and the last prompt token before
        the last layer [B, W]. seen: bool [B, S].
        """
        model = self.model
        rows = len(batch.prompt)
        images = model.projector(features).view(rows, -1, model.arch.lm_width)
        embedded = torch.cat([images, model.lm.embed_tokens(batch.prompt)], 1)
        count = images.shape[1]
        seen = torch.arange(embedded.shape[1])[None] < (count + batch.prompt_length)[:, None]
        rope = model.lm.rotary_emb(embedded, torch.arange(embedded.shape[1])[None])
        kv = _Recorded()
        mask = self._added(seen[:, None].expand(-1, embedded.shape[1], -1))
        hidden = _through(model.lm.layers[:1], embedded, rope, mask, kv)
        first = hidden[:, :count].reshape(len(features), -1, hidden.shape[-1])
        hidden = _through(model.lm.layers[1:-1], hidden, rope, mask, kv)
        self._keys_of_last_layer(hidden, rope, kv)
        ends = count + batch.prompt_length - 1
        return kv, first, hidden[torch.arange(rows), ends], seen

    def _keys_of_last_layer(self, hidden: torch.Tensor, rope: Rope, kv: _Recorded) -> None:
        """Of the last layer only keys and values are ever read."""
        layer = self.model.lm.layers[-1]
        normed, attention = layer.input_layernorm(hidden), layer.self_attn
        shape = (*hidden.shape[:2], self.model.arch.kv_heads, self.model.arch.head_dim)
        keys = attention.k_proj(normed).view(shape).transpose(1, 2)
        values = attention.v_proj(normed).view(shape).transpose(1, 2)
        _, keys = apply_rotary_pos_emb(keys, keys, *rope)
        kv.update(keys, values)

    def say(self, prefix: _Recorded, seen: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Logits [B, Q, T, V] of what follows each word; questions do not see each other."""
        rows, asked, length = batch.words.shape
        causal = torch.ones(length, length).tril().bool()
        own = torch.block_diag(*[causal] * asked).bool()
        mask = self._added(_joined(seen, own))
        first = seen.sum(1)[:, None]
        positions = (first + torch.arange(length)[None]).repeat(1, asked)
        embedded = self.model.lm.embed_tokens(batch.words.flatten(1))
        rope = self.model.lm.rotary_emb(embedded, positions)
        hidden = _through(self.model.lm.layers, embedded, rope, mask, _Behind(prefix))
        return self.model.lm_head(self.model.lm.norm(hidden)).view(rows, asked, length, -1)

    def velocity(
        self,
        prefix: _Recorded,
        seen: torch.Tensor,
        batch: Batch,
        noisy: torch.Tensor,
        times: torch.Tensor,
    ) -> torch.Tensor:
        """The expert on noisy actions [B, K, H, 4] -> velocity; draws do not see each other."""
        model, (rows, draws, horizon, _) = self.model, noisy.shape
        own = torch.block_diag(*[torch.ones(horizon, horizon)] * draws).bool()
        mask = self._added(_joined(seen, own))
        positions = (seen.sum(1)[:, None] + torch.arange(horizon)[None]).repeat(1, draws)
        hidden = model.action_in_proj(noisy)
        rope = model.lm.rotary_emb(hidden, positions)
        condition = self._condition(times.flatten())
        kv = _Behind(prefix)

        def modulation(norm: Any) -> Modulated:
            parts = norm.dense(condition).view(rows, draws, 1, -1).chunk(3, -1)
            return 1 + parts[0].float(), parts[1].float(), parts[2]

        for layer in model.expert.layers:
            first, second = layer.input_layernorm, layer.post_attention_layernorm
            pair = (modulation(first), modulation(second))
            hidden = _expert_layer(layer, hidden, pair, rope, kv, mask)
        hidden = model.expert.norm(hidden, modulation(model.expert.norm))
        return model.action_out_proj(hidden).float()

    def _condition(self, times: torch.Tensor) -> torch.Tensor:
        model, silu = self.model, functional.silu
        arch = model.arch
        embedded = time_embedding(
            times, arch.expert_width, arch.min_period, arch.max_period, model.options.time_rule
        )
        return silu(model.time_mlp_out(silu(model.time_mlp_in(embedded))))

    def _added(self, seen: torch.Tensor) -> torch.Tensor:
        """Bool [B, n, S] -> what _attention() adds to the scores."""
        added = torch.zeros(seen.shape).masked_fill_(~seen, -1e9)
        return added.repeat(1, self.model.arch.heads, 1)


def _through(
    layers: Iterable[nn.Module], hidden: torch.Tensor, rope: Rope, mask: torch.Tensor, kv: Cache
) -> torch.Tensor:
    """Decoder layers of the language model, one after the other."""
    for layer in layers:
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rope, **{CACHE: kv})
    return hidden


def _expert_layer(
    layer: Any,
    hidden: torch.Tensor,
    modulations: tuple[Modulated, Modulated],
    rope: Rope,
    kv: Cache,
    mask: torch.Tensor,
) -> torch.Tensor:
    """ExpertLayer.forward() on [B, K, H, W] with a mask: the K draws lie in one row."""
    first, second = modulations
    normed = layer.input_layernorm(hidden, first).flatten(1, 2)
    mixed, _ = layer.self_attn(
        normed, position_embeddings=rope, attention_mask=mask, **{CACHE: kv}
    )
    hidden = hidden + mixed.view_as(hidden) * first[2]
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden, second)) * second[2]


def _joined(seen: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """What new tokens see: the prefix [B, S] and of themselves [n, n] -> bool [B, n, S + n]."""
    rows, count = len(seen), len(own)
    before = seen[:, None, :].expand(-1, count, -1)
    return torch.cat([before, own[None].expand(rows, -1, -1)], 2)


@torch.no_grad()
def initialise(model: Pi05, seed: int) -> None:
    """Random weights to start from; they depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    depth = model.arch.depth
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            ones = 'vision' in name and 'norm' in name and name.endswith('weight')
            parameter.fill_(1.0 if ones else 0.0)
            if name.endswith('dense.bias'):  # gates begin open
                parameter[len(parameter) // 3 * 2 :] = 1.0
            continue
        spread = 1.0 / math.sqrt(math.prod(parameter.shape[1:]))
        if name.endswith(('o_proj.weight', 'down_proj.weight', 'out_proj.weight', 'fc2.weight')):
            spread /= math.sqrt(2 * depth)
        elif name.endswith('dense.weight') or name == 'action_out_proj.weight':
            spread *= 0.1
        elif name.endswith('position_embedding.weight'):
            spread = 0.3
        parameter.normal_(0.0, spread, generator=generator)
        if name.endswith('patch_embedding.weight'):  # blocks count, not the table's colour
            parameter.sub_(0.8 * parameter.mean((2, 3), keepdim=True)).mul_(2.0)
    _smooth_numbers(model)


def _smooth_numbers(model: Pi05) -> None:
    """Tokens of numbers begin as waves of their value, so that neighbours are alike."""
    table = model.lm.embed_tokens.weight
    ids = vocabulary()
    rows = [ids[token] for token in BINS]
    half = table.shape[1] // 2
    value = torch.arange(len(rows))[:, None] / len(rows)
    waves = value * torch.logspace(-0.3, 1.5, half)[None] * 2 * math.pi
    table[rows] = torch.cat([waves.sin(), waves.cos()], 1) * math.sqrt(2.0 / table.shape[1])
