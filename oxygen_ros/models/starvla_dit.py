"""StarVLA's flow-matching heads: a DiT whose blocks look at the backbone's hidden states.

Source: starVLA LayerwiseFM_ActionHeader.py, GR00T_ActionHeader.py, cross_attention_dit.py, which
builds on diffusers. What depends on the flow time alone is computed once per number of steps, keys
and values of the backbone's hidden states once per frame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from oxygen_ros.checkpoint.starvla_head import HeadSizes

_FREQUENCIES = 256  # of the sine embedding of the flow time in the DiT
_MAX_PERIOD = 10000.0

_RESNET_BLOCKS = 2  # of QwenOFT, whatever its configuration says
_FEED_FORWARD = 4  # width of a block's MLP in widths of its tokens

KeysValues = tuple[torch.Tensor, torch.Tensor]  # each [1, heads, S, D]


@dataclass(frozen=True)
class Moment:
    """What one flow time makes of the head's constants.

    blocks: 1 + scale and shift [W] of each block's norm, then, where there is one, of the last
    norm. encoded: [W] sine embedding that is joined to every action.
    """

    blocks: list[tuple[torch.Tensor, torch.Tensor]]
    encoded: torch.Tensor


class MLP(nn.Module):
    """layer1, ReLU, layer2."""

    def __init__(self, given: int, hidden: int, made: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(given, hidden), nn.Linear(hidden, made)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        return self.layer2(functional.relu(self.layer1(values)))


class ActionEncoder(nn.Module):
    """Noisy actions and the flow time -> tokens."""

    def __init__(self, actions: int, width: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(actions, width), nn.Linear(2 * width, width)
        self.layer3 = nn.Linear(width, width)

    def forward(self, actions: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        """Actions [B, H, A], the time's sines and cosines [W] -> [B, H, W]."""
        hidden = self.layer1(actions)
        hidden = torch.cat([hidden, encoded.expand_as(hidden)], dim=-1)
        return self.layer3(functional.silu(self.layer2(hidden)))


class Attention(nn.Module):
    """Attention to the block's own tokens, or to given keys and values."""

    def __init__(self, width: int, seen: int, heads: int) -> None:
        """seen: width of what is looked at."""
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width)
        self.to_k, self.to_v = nn.Linear(seen, width), nn.Linear(seen, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def keys_values(self, hidden: torch.Tensor) -> KeysValues:
        """Hidden [B, S, W] -> what queries look at."""
        return self._split(self.to_k(hidden)), self._split(self.to_v(hidden))

    def forward(self, hidden: torch.Tensor, seen: KeysValues | None) -> torch.Tensor:
        """Hidden [B, n, W] -> the same, mixed; without `seen`, all tokens see each other."""
        keys, values = self.keys_values(hidden) if seen is None else seen
        query = self._split(self.to_q(hidden))
        mixed = functional.scaled_dot_product_attention(query, keys, values)
        return self.to_out[0](mixed.transpose(1, 2).flatten(2))

    def _split(self, values: torch.Tensor) -> torch.Tensor:
        return values.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """GELU between two layers, under diffusers' names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = _FEED_FORWARD * width
        first = nn.ModuleDict({'proj': nn.Linear(width, inner)})
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(inner, width)])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [B, n, W] -> the same."""
        return self.net[2](functional.gelu(self.net[0]['proj'](hidden), approximate='tanh'))


class Block(nn.Module):
    """An adaptive norm and attention, then a plain norm and an MLP, both residual."""

    def __init__(self, width: int, seen: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.ModuleDict({'linear': nn.Linear(width, 2 * width)})
        self.attn1 = Attention(width, seen, heads)
        self.ff = FeedForward(width)

    def forward(
        self,
        hidden: torch.Tensor,
        modulation: tuple[torch.Tensor, torch.Tensor],
        seen: KeysValues | None,
    ) -> torch.Tensor:
        """Hidden [B, n, W] -> the same."""
        scale, shift = modulation
        hidden = hidden + self.attn1(_norm(hidden, 1e-5) * scale + shift, seen)
        return hidden + self.ff(_norm(hidden, 1e-5))


class DiT(nn.Module):
    """The blocks, what tells them the flow time, and for some heads a last projection."""

    def __init__(self, sizes: HeadSizes, seen: Sequence[int]) -> None:
        """seen: width of what each block looks at."""
        super().__init__()
        width = sizes.width
        parts = {'linear_1': nn.Linear(_FREQUENCIES, width), 'linear_2': nn.Linear(width, width)}
        self.timestep_encoder = nn.ModuleDict({'timestep_embedder': nn.ModuleDict(parts)})
        self.transformer_blocks = nn.ModuleList(Block(width, each, sizes.heads) for each in seen)
        self.projects = bool(sizes.output)
        if self.projects:
            self.proj_out_1 = nn.Linear(width, 2 * width)
            self.proj_out_2 = nn.Linear(width, sizes.output)

    def modulations(self, bucket: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """1 + scale and shift of every adaptive norm at a flow time, in integers of the head."""
        embedder = self.timestep_encoder['timestep_embedder']
        weight = embedder['linear_1'].weight
        sines = _sines(bucket, _FREQUENCIES, _FREQUENCIES // 2 - 1)
        embedded = torch.cat([sines[1], sines[0]]).to(weight.device, weight.dtype)
        time = embedder['linear_2'](functional.silu(embedder['linear_1'](embedded)))
        time = functional.silu(time)
        made = [block.norm1['linear'](time).chunk(2) for block in self.transformer_blocks]
        if self.projects:  # whose halves are the other way round
            shift, scale = self.proj_out_1(time).chunk(2)
            made.append((scale, shift))
        return [(1 + scale, shift) for scale, shift in made]

    def forward(
        self,
        hidden: torch.Tensor,
        modulations: Sequence[tuple[torch.Tensor, torch.Tensor]],
        seen: Sequence[KeysValues | None],
    ) -> torch.Tensor:
        """Tokens [B, n, W] -> [B, n, W or the projection's width]."""
        for block, modulation, keys_values in zip(
            self.transformer_blocks, modulations, seen, strict=False
        ):
            hidden = block(hidden, modulation, keys_values)
        if not self.projects:
            return hidden
        scale, shift = modulations[-1]
        return self.proj_out_2(_norm(hidden, 1e-6) * scale + shift)


class FlowHead(nn.Module):
    """DiT over [state, future tokens, actions]; the flow goes from noise at 0 to actions at 1.

    interleaved: every second block looks at its own tokens. buckets: the time 1.0 in integers.
    projected: the backbone's hidden states come in the width of the DiT.
    """

    def __init__(self, sizes: HeadSizes, interleaved: bool, buckets: int, projected: bool) -> None:
        super().__init__()
        self.interleaved, self.buckets = interleaved, buckets
        width, hidden = sizes.width, sizes.hidden
        looked = width if projected else sizes.seen
        seen = [looked if self.looks(block) else width for block in range(sizes.blocks)]
        self.model = DiT(sizes, seen)
        self.action_encoder = ActionEncoder(sizes.actions, width)
        self.action_decoder = MLP(sizes.output or width, hidden, sizes.actions)
        self.future_tokens = nn.Embedding(sizes.future, width)
        self.state_encoder = MLP(sizes.state, hidden, width) if sizes.state else None
        self.position_embedding = nn.Embedding(sizes.positions, width) if sizes.positions else None
        self._moments: dict[int, list[Moment]] = {}

    def looks(self, block: int) -> bool:
        """Whether a block looks at the backbone."""
        return not (self.interleaved and block % 2)

    def seen(self, states: Mapping[int, torch.Tensor]) -> list[KeysValues | None]:
        """Hidden states [S, W] by block -> keys and values of those blocks, once per frame."""
        return [
            block.attn1.keys_values(states[index][None]) if self.looks(index) else None
            for index, block in enumerate(self.model.transformer_blocks)
        ]

    def moments(self, steps: int) -> list[Moment]:
        """Of each Euler step, computed once."""
        if steps not in self._moments:
            buckets = [int(step / steps * self.buckets) for step in range(steps)]
            self._moments[steps] = [self._moment(bucket) for bucket in buckets]
        return self._moments[steps]

    def _moment(self, bucket: int) -> Moment:
        weight = self.future_tokens.weight
        encoded = _sines(bucket, weight.shape[1], weight.shape[1] // 2).flatten()
        return Moment(self.model.modulations(bucket), encoded.to(weight.device, weight.dtype))

    def velocity(
        self,
        actions: torch.Tensor,
        state: torch.Tensor | None,
        moment: Moment,
        seen: Sequence[KeysValues | None],
    ) -> torch.Tensor:
        """Noisy actions [1, H, A], state [1, D] or None -> velocity [1, H, A], float32."""
        horizon, weight = actions.shape[1], self.future_tokens.weight
        tokens = self.action_encoder(actions.to(weight.dtype), moment.encoded)
        if self.position_embedding is not None:
            tokens = tokens + self.position_embedding.weight[:horizon]
        parts = [weight[None], tokens]
        if self.state_encoder is not None and state is not None:
            parts.insert(0, self.state_encoder(state.to(weight.dtype))[None])
        hidden = self.model(torch.cat(parts, dim=1), moment.blocks, seen)
        return self.action_decoder(hidden[:, -horizon:]).float()


class QueryHead(nn.Module):
    """QwenOFT's MLP, which reads each action off one hidden state."""

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        width = 2 * sizes.seen
        blocks = [
            nn.ModuleDict(
                {'ffn': nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())}
            )
            for _ in range(_RESNET_BLOCKS)
        ]
        self.model = nn.ModuleDict(
            {
                'layer_norm1': nn.LayerNorm(sizes.seen),
                'fc1': nn.Linear(sizes.seen, width),
                'mlp_resnet_blocks': nn.ModuleList(blocks),
                'layer_norm2': nn.LayerNorm(width),
                'fc2': nn.Linear(width, sizes.actions),
            }
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [H, W] -> actions [H, A] in float32."""
        part = self.model
        values = functional.relu(part['fc1'](part['layer_norm1'](hidden)))
        for block in part['mlp_resnet_blocks']:
            values = block['ffn'](values) + values
        return part['fc2'](part['layer_norm2'](values)).float()


def _norm(hidden: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.layer_norm(hidden, hidden.shape[-1:], eps=eps)


def _sines(time: int, width: int, last: int) -> torch.Tensor:
    """Sines and cosines [2, width / 2] of a time; `last` is the exponent that means a period of
    10000.
    """
    exponents = torch.arange(width // 2, dtype=torch.float32) / last
    angles = time * torch.exp(-math.log(_MAX_PERIOD) * exponents)
    return torch.stack([angles.sin(), angles.cos()])
