"""pi0.5's options and sizes, known before there is a model, and transformers' configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import GemmaConfig, SiglipVisionConfig

from oxygen_ros.checkpoint.arch import Pi05Arch
from oxygen_ros.models.base import ModelSpec
from oxygen_ros.models.kv import ATTENTION

_EOS = 1  # PaliGemma's <eos>


@dataclass(frozen=True)
class Pi05Options:
    """What differs between checkpoints beside their sizes.

    max_cameras, max_prompt_tokens: the longest prefix. time_rule: see flow_times().
    causal_prompt: prompt words see only what is before them (OxyGen's layout), not each other.
    """

    max_cameras: int
    max_prompt_tokens: int
    time_rule: str = 'float32_of_step'
    causal_prompt: bool = False


def model_spec(arch: Pi05Arch, options: Pi05Options) -> ModelSpec:
    """What the engine allocates by; known before there is a model."""
    return ModelSpec(
        layers=arch.depth,
        kv_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        horizon=arch.horizon,
        action_dim=arch.action_dim_padded,
        vocab_size=arch.vocab_size,
        max_prefix=options.max_cameras * arch.tokens_per_camera + options.max_prompt_tokens,
        suffix_slots=arch.horizon + (1 if arch.state_dim_padded else 0),
        eos_ids=frozenset({_EOS}),
    )


def work_bytes(arch: Pi05Arch, options: Pi05Options, rows: int, value_bytes: int) -> int:
    """About the bytes that the longest forward holds beside weights and KV.

    Of vision tower and language model: what a gated MLP makes and a few copies of the hidden
    state; attention scores in float32; logits with their sorted copies for each row.
    """
    patches = options.max_cameras * arch.tokens_per_camera
    prefix = patches + options.max_prompt_tokens
    vision = patches * (2 * arch.vision_mlp + 8 * arch.vision_width) * value_bytes
    language = prefix * (3 * arch.lm_mlp + 8 * arch.lm_width) * value_bytes
    scores = arch.heads * prefix**2 * 4
    logits = rows * arch.vocab_size * (value_bytes + 4 * 4)
    return vision + language + scores + logits


def gemma_config(arch: Pi05Arch, which: str) -> GemmaConfig:
    """Both transformers share heads and rope; sizes and attention are ours."""
    width, mlp = (
        (arch.lm_width, arch.lm_mlp) if which == 'lm' else (arch.expert_width, arch.expert_mlp)
    )
    extra: dict[str, Any] = {'attn_implementation': ATTENTION}
    return GemmaConfig(
        vocab_size=arch.vocab_size,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=arch.depth,
        num_attention_heads=arch.heads,
        num_key_value_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        hidden_act='gelu_pytorch_tanh',
        rms_norm_eps=arch.rms_eps,
        rope_parameters={'rope_type': 'default', 'rope_theta': arch.rope_theta},
        **extra,
    )


def siglip_config(arch: Pi05Arch) -> SiglipVisionConfig:
    """The vision tower without its pooling head."""
    return SiglipVisionConfig(
        hidden_size=arch.vision_width,
        intermediate_size=arch.vision_mlp,
        num_hidden_layers=arch.vision_layers,
        num_attention_heads=arch.vision_heads,
        image_size=arch.image_size,
        patch_size=arch.patch,
        hidden_act='gelu_pytorch_tanh',
        layer_norm_eps=1e-6,
        vision_use_head=False,
        attn_implementation='sdpa',
    )
