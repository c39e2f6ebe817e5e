"""pi0.5's layers in fewer and larger kernels, beside the plain ones and on the same weights.

Queries, keys and values are one product, gate and up another, and what lies between two attentions
is one function, which torch.compile can turn into little more than its matrix products.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention
from transformers.models.gemma.modeling_gemma import apply_rotary_pos_emb

from oxygen_ros.models.kv import PoolCache, bias_of, pool_attention
from oxygen_ros.models.pi05_expert import Modulation
from oxygen_ros.models.pi05_layers import Mask, Rope, rows_of

Layer = TypeVar('Layer', bound='_WithKernels')
# scale in float32; shift in float32 and gate, both None for a norm that nothing modulates
Norm = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]


@dataclass(frozen=True)
class _Kernels:
    """The functions before and after an attention, the same for all layers."""

    project: Callable[..., tuple[torch.Tensor, ...]]
    mix: Callable[..., torch.Tensor]
    project_image: Callable[..., tuple[torch.Tensor, ...]]
    mix_image: Callable[..., torch.Tensor]

    @classmethod
    def plain(cls) -> _Kernels:
        """As they are written."""
        return cls(_project, _mix, _project_image, _mix_image)

    @classmethod
    def compiled(cls) -> _Kernels:
        """Compiled for any number of tokens."""
        functions = (_project, _mix, _project_image, _mix_image)
        return cls(*(torch.compile(function, dynamic=True) for function in functions))


class FusedLayers:
    """The same numbers up to rounding; made once, because it packs the weights."""

    def __init__(self, vision: nn.Module, lm: nn.Module, expert: nn.Module) -> None:
        self._vision = vision
        self._blocks = [_VisionBlock(layer) for layer in vision.encoder.layers]
        self._lm = self._lm_prefix = [_Block(layer) for layer in lm.layers]
        self._lm_norms = [_fixed_norms(layer) for layer in lm.layers]
        self._expert = [_Block(layer) for layer in expert.layers]

    def compiled(self, everything: bool) -> FusedLayers:
        """The same layers with the prefix compiled, or everything.

        On a CPU a few tokens gain nothing by it; on a GPU each small kernel less counts.
        The first forward takes a while, and raises what torch.compile raises.
        """
        other, kernels = copy.copy(self), _Kernels.compiled()
        other._blocks = [block.with_kernels(kernels) for block in self._blocks]
        other._lm_prefix = [block.with_kernels(kernels) for block in self._lm]
        if everything:
            other._lm = other._lm_prefix
            other._expert = [block.with_kernels(kernels) for block in self._expert]
        return other

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """See Layers."""
        hidden = self._vision.embeddings(pixels)
        for block in self._blocks:
            hidden = block(hidden)
        return self._vision.post_layernorm(hidden)

    def prefix(
        self, hidden: torch.Tensor, rope: Rope, mask: Mask, kv: PoolCache, last: torch.Tensor
    ) -> torch.Tensor:
        """See Layers."""
        mask = bias_of(mask, hidden)
        hidden = self._through(self._lm_prefix[:-1], hidden, rope, mask, kv)
        block, norms = self._lm[-1], self._lm_norms[-1]
        query, key, value = self._lm_prefix[-1].project(hidden, norms[0], rope)
        key, value = kv.update(key, value, block.index)
        mixed = block.attend(query[:, :, last], key, value, rows_of(mask, last))
        return block.mix(mixed, hidden[:, last], norms)

    def extend(self, hidden: torch.Tensor, rope: Rope, mask: Mask, kv: PoolCache) -> torch.Tensor:
        """See Layers."""
        return self._through(self._lm, hidden, rope, bias_of(mask, hidden), kv)

    def expert(
        self, hidden: torch.Tensor, modulations: Sequence[Modulation], rope: Rope, kv: PoolCache
    ) -> torch.Tensor:
        """See Layers."""
        mask = bias_of(kv.mask, hidden)
        for index, block in enumerate(self._expert):
            pair = (modulations[2 * index], modulations[2 * index + 1])
            hidden = block(hidden, pair, rope, mask, kv)
        return hidden

    def _through(
        self,
        blocks: Sequence[_Block],
        hidden: torch.Tensor,
        rope: Rope,
        mask: Mask,
        kv: PoolCache,
    ) -> torch.Tensor:
        for block, norms in zip(blocks, self._lm_norms, strict=False):
            hidden = block(hidden, norms, rope, mask, kv)
        return hidden


class _WithKernels:
    """Weights of one layer, and the functions that run them."""

    _kernels: _Kernels

    def with_kernels(self: Layer, kernels: _Kernels) -> Layer:
        """The same layer and weights, run by other functions."""
        other = copy.copy(self)
        other._kernels = kernels
        return other


class _Block(_WithKernels):
    """One Gemma layer, of the language model or of the expert."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index = attention.layer_idx
        self._scaling, self._head_dim = attention.scaling, attention.head_dim
        self._eps = layer.input_layernorm.eps
        self._into, _ = _pack(attention.q_proj, attention.k_proj, attention.v_proj)
        self._key_heads = attention.k_proj.out_features // attention.head_dim
        self._out = attention.o_proj.weight
        self._gate_up, _ = _pack(mlp.gate_proj, mlp.up_proj)
        self._down = mlp.down_proj.weight
        self._kernels = _Kernels.plain()

    def __call__(
        self,
        hidden: torch.Tensor,
        norms: Sequence[Norm],
        rope: Rope,
        mask: Mask,
        kv: PoolCache,
    ) -> torch.Tensor:
        query, key, value = self.project(hidden, norms[0], rope)
        key, value = kv.update(key, value, self.index)
        return self.mix(self.attend(query, key, value, mask), hidden, norms)

    def project(self, hidden: torch.Tensor, norm: Norm, rope: Rope) -> tuple[torch.Tensor, ...]:
        """Hidden [B, n, W] -> query [B, heads, n, D], key and value [B, KV heads, n, D]."""
        scale, shift, _ = norm
        sizes = (self._eps, self._key_heads, self._head_dim)
        return self._kernels.project(hidden, scale, shift, self._into, *rope, *sizes)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Mask
    ) -> torch.Tensor:
        """-> [B, n, heads * D]."""
        mixed, _ = pool_attention(None, query, key, value, mask, self._scaling)
        return mixed.flatten(2)

    def mix(
        self, mixed: torch.Tensor, hidden: torch.Tensor, norms: Sequence[Norm]
    ) -> torch.Tensor:
        """What attention gave, and the residual -> the layer's output [B, n, W]."""
        (_, _, gate), norm = norms
        weights = (self._out, self._gate_up, self._down)
        return self._kernels.mix(mixed, hidden, gate, *norm, *weights, self._eps)


class _VisionBlock(_WithKernels):
    """One SigLIP layer."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._heads, self._eps = attention.num_heads, layer.layer_norm1.eps
        self._kernels = _Kernels.plain()
        packed = _pack(attention.q_proj, attention.k_proj, attention.v_proj)
        self._norm_in = (layer.layer_norm1.weight, layer.layer_norm1.bias, *packed)
        pairs = (attention.out_proj, layer.layer_norm2, mlp.fc1, mlp.fc2)
        self._rest = [tensor for each in pairs for tensor in (each.weight, each.bias)]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self._kernels.project_image(
            hidden, *self._norm_in, self._heads, self._eps
        )
        mixed = scaled_dot_product_attention(query, key, value)
        return self._kernels.mix_image(mixed, hidden, *self._rest, self._eps)


def _project(
    hidden: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor | None,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    key_heads: int,
    head_dim: int,
) -> tuple[torch.Tensor, ...]:
    heads = linear(_rms_norm(hidden, scale, shift, eps), weight)
    heads = heads.view(*hidden.shape[:2], -1, head_dim).transpose(1, 2)
    query, key, value = heads.split([heads.shape[1] - 2 * key_heads, key_heads, key_heads], 1)
    query, key = apply_rotary_pos_emb(query, key, cos, sin)
    return query, key, value


def _mix(
    mixed: torch.Tensor,
    hidden: torch.Tensor,
    attention_gate: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor | None,
    mlp_gate: torch.Tensor | None,
    out: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    hidden = hidden + _gated(linear(mixed, out), attention_gate)
    gate, up = linear(_rms_norm(hidden, scale, shift, eps), gate_up).chunk(2, dim=-1)
    return hidden + _gated(linear(_gelu(gate) * up, down), mlp_gate)


def _project_image(
    hidden: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    heads: int,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    normed = layer_norm(hidden, hidden.shape[-1:], norm_weight, norm_bias, eps)
    packed = linear(normed, weight, bias).view(*hidden.shape[:2], 3, heads, -1)
    return packed.permute(2, 0, 3, 1, 4).unbind()


def _mix_image(
    mixed: torch.Tensor,
    hidden: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    up_weight: torch.Tensor,
    up_bias: torch.Tensor,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    hidden = hidden + linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias)
    normed = layer_norm(hidden, hidden.shape[-1:], norm_weight, norm_bias, eps)
    return hidden + linear(_gelu(linear(normed, up_weight, up_bias)), down_weight, down_bias)


def _rms_norm(
    hidden: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None, eps: float
) -> torch.Tensor:
    exact = hidden.float()
    normed = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps) * scale
    return (normed if shift is None else normed + shift).to(hidden.dtype)


def _gated(value: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    return value if gate is None else value * gate


def _gelu(value: torch.Tensor) -> torch.Tensor:
    """GELU with tanh; compiled for a CPU, exp is three times as fast as the tanh it equals."""
    if not torch.compiler.is_compiling():
        return gelu(value, approximate='tanh')
    exact = value.float()
    inner = 2 * math.sqrt(2 / math.pi) * (exact + 0.044715 * exact * exact * exact)
    return (exact * torch.sigmoid(inner)).to(value.dtype)


def _pack(*layers: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights one under another, once in memory: each layer's own becomes a view of them."""
    weight = torch.cat([layer.weight.data for layer in layers])
    start = 0
    for layer in layers:
        layer.weight.data = weight[start : start + layer.out_features]
        start += layer.out_features
    if layers[0].bias is None:
        return weight, None
    return weight, torch.cat([layer.bias.data for layer in layers])


def _fixed_norms(layer: nn.Module) -> tuple[Norm, Norm]:
    """A language layer's two norms, which nothing modulates."""
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    first, second = ((1.0 + norm.weight.float(), None, None) for norm in norms)
    return first, second
