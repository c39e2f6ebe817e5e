"""pi0.5: PaliGemma (SigLIP + Gemma) with a flow-matching action expert over its KV cache.

Source: openpi pi0_pytorch.py and gemma.py, LeRobot modeling_pi05.py. The backbone is transformers'
own modules; the expert's layers hold transformers' attention and MLP between adaptive norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import GemmaConfig, GemmaModel, SiglipVisionConfig, SiglipVisionModel
from transformers.models.gemma.modeling_gemma import apply_rotary_pos_emb

from oxygen_ros.checkpoint.arch import Pi05Arch
from oxygen_ros.models.base import ModelSpec, Prefilled
from oxygen_ros.models.guidance import Guide, guided_velocity
from oxygen_ros.models.kv import ATTENTION, KVWindow, PrefixView
from oxygen_ros.models.pi05_expert import CACHE, Expert, Modulation, flow_times, time_embedding
from oxygen_ros.processing.pi05 import Pi05Inputs

_EOS = 1  # PaliGemma's <eos>
# checkpoint name -> module name, longest prefix first
KEYS = {
    'paligemma_with_expert.paligemma.model.language_model.': 'lm.',
    'paligemma_with_expert.paligemma.model.vision_tower.vision_model.': 'vision.',
    'paligemma_with_expert.paligemma.model.multi_modal_projector.linear.': 'projector.',
    'paligemma_with_expert.paligemma.lm_head.': 'lm_head.',
    'paligemma_with_expert.gemma_expert.model.': 'expert.',
}


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


class Pi05(nn.Module):
    """The whole model on one device in one dtype; weights are uninitialised until loaded."""

    def __init__(
        self, arch: Pi05Arch, options: Pi05Options, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.arch, self.options, self.device, self.dtype = arch, options, device, dtype
        self.spec = model_spec(arch, options)
        lm_config, expert_config = _gemma(arch, 'lm'), _gemma(arch, 'expert')
        with torch.device('meta'):  # no memory and no random numbers for what is loaded next
            self.vision = SiglipVisionModel(_siglip(arch))
            self.projector = nn.Linear(arch.vision_width, arch.lm_width)
            self.lm = GemmaModel(lm_config)
            self.lm_head = nn.Linear(arch.lm_width, arch.vocab_size, bias=False)
            self.expert = Expert(expert_config)
            self.action_in_proj = nn.Linear(arch.action_dim_padded, arch.expert_width)
            self.action_out_proj = nn.Linear(arch.expert_width, arch.action_dim_padded)
            self.time_mlp_in = nn.Linear(arch.expert_width, arch.expert_width)
            self.time_mlp_out = nn.Linear(arch.expert_width, arch.expert_width)
        self.to_empty(device=device)
        self.to(dtype)
        self._restore_buffers(lm_config)
        self.requires_grad_(False).eval()
        self._modulations: dict[int, list[tuple[Modulation, ...]]] = {}

    def _restore_buffers(self, config: GemmaConfig) -> None:
        """Buffers that no checkpoint holds: to_empty() left them undefined."""
        self.lm.rotary_emb = type(self.lm.rotary_emb)(config).to(self.device)
        self.lm.embed_tokens.embed_scale = torch.tensor(
            config.hidden_size**0.5, device=self.device, dtype=self.dtype
        )
        positions = self.vision.embeddings.num_positions
        self.vision.embeddings.position_ids = torch.arange(positions, device=self.device)[None]

    def checkpoint_parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter under its checkpoint name."""
        to_checkpoint = {module: name for name, module in KEYS.items()}
        named = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            prefix = next((p for p in to_checkpoint if name.startswith(p)), '')
            named[to_checkpoint.get(prefix, '') + name[len(prefix) :]] = parameter
        return named

    def tie_head(self) -> None:
        """Let head and embedding be one matrix."""
        self.lm_head.weight = self.lm.embed_tokens.weight

    def tie_if_equal(self) -> bool:
        """Tie them when a checkpoint stores the same matrix twice; returns whether they are."""
        if torch.equal(self.lm_head.weight, self.lm.embed_tokens.weight):
            self.tie_head()
        return self.lm_head.weight is self.lm.embed_tokens.weight

    # -- prefix

    def prefix_length(self, inputs: Pi05Inputs) -> int:
        """Image tokens of the cameras that are there, and the prompt; nothing is padded."""
        return len(inputs.pixel_values) * self.arch.tokens_per_camera + len(inputs.token_ids)

    def prefill(self, inputs: Pi05Inputs, kv: KVWindow) -> Prefilled:
        """Images and prompt as one bidirectional block, or the prompt causally behind it."""
        images = self.embed_images(inputs.pixel_values.to(self.device, self.dtype))
        words = self.lm.embed_tokens(inputs.token_ids.to(self.device))
        embedded = torch.cat([images, words])[None]  # [1, S, W]
        length = embedded.shape[1]
        mask = None
        if self.options.causal_prompt:
            slots = torch.arange(length, device=self.device)
            seen = slots[None] <= slots[:, None]
            seen[: len(images), : len(images)] = True
            mask = seen[None, None]
        positions = torch.arange(length, device=self.device)[None]
        rope = self.lm.rotary_emb(embedded, position_ids=positions)
        hidden = self._layers(self.lm.layers[:-1], embedded, rope, mask, kv)
        return Prefilled(length, 0, self.lm.norm(self._last_of_prefix(hidden, rope, kv)[0, 0]))

    def embed_images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [cameras, 3, h, w] in [-1, 1] -> [cameras * tokens, W], all in one forward."""
        features = self.vision(pixel_values=pixels).last_hidden_state
        return self.projector(features).flatten(0, 1)

    def _layers(
        self,
        layers: Iterable[nn.Module],
        hidden: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        kv: KVWindow,
    ) -> torch.Tensor:
        for layer in layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rope, **{CACHE: kv})
        return hidden

    def _last_of_prefix(
        self, hidden: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], kv: KVWindow
    ) -> torch.Tensor:
        """The last layer on a prefix [1, S, W] -> [1, 1, W] of its last token.

        Of all other tokens only keys and values are read, so only these are computed.
        """
        layer, (cos, sin), before = self.lm.layers[-1], rope, hidden.shape[1] - 1
        attention, normed = layer.self_attn, layer.input_layernorm(hidden[:, :before])
        heads = (1, before, self.arch.kv_heads, self.arch.head_dim)
        keys = attention.k_proj(normed).view(heads).transpose(1, 2)
        values = attention.v_proj(normed).view(heads).transpose(1, 2)
        _, keys = apply_rotary_pos_emb(keys, keys, cos[:, :before], sin[:, :before])
        kv.update(keys, values, attention.layer_idx)
        rope = (cos[:, before:], sin[:, before:])
        return self._layers([layer], hidden[:, before:], rope, None, kv.starting_at(before))

    # -- language

    def extend(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, kv: KVWindow
    ) -> torch.Tensor:
        """Tokens [B, n] behind what the window's rows hold -> hidden [B, n, W]."""
        embedded = self.lm.embed_tokens(tokens)
        rope = self.lm.rotary_emb(embedded, position_ids=positions)
        return self.lm.norm(self._layers(self.lm.layers, embedded, rope, mask, kv))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [B, W] -> logits [B, V] in float32."""
        return self.lm_head(hidden).float()

    # -- actions

    def act(
        self,
        prefilled: Prefilled,
        kv: KVWindow,
        noise: torch.Tensor,
        steps: int,
        guide: Guide | None = None,
    ) -> torch.Tensor:
        """Euler steps from noise at t = 1 to actions at t = 0, [H, A] in float32."""
        horizon = len(noise)
        first = prefilled.length + prefilled.position_offset
        positions = torch.arange(first, first + horizon, device=self.device)[None]
        actions = noise.to(self.device, torch.float32)[None]
        rope = self.lm.rotary_emb(actions.to(self.dtype), position_ids=positions)
        times = flow_times(steps, self.options.time_rule).tolist()
        for time, modulations in zip(times, self._modulation(steps), strict=True):
            if guide is None:
                velocity = self._velocity(actions, modulations, rope, kv)
            else:
                flow = partial(
                    self._velocity, modulations=modulations, rope=rope, kv=kv.concatenating()
                )
                velocity = guided_velocity(flow, actions, time, guide.to(self.device))
            actions = actions - velocity / steps
        return actions[0]

    def _velocity(
        self,
        actions: torch.Tensor,
        modulations: Sequence[Modulation],
        rope: tuple[torch.Tensor, torch.Tensor],
        kv: KVWindow | PrefixView,
    ) -> torch.Tensor:
        """One forward of the expert: noisy actions [1, H, A] -> velocity [1, H, A], float32."""
        hidden = self.action_in_proj(actions.to(self.dtype))
        for index, layer in enumerate(self.expert.layers):
            pair = (modulations[2 * index], modulations[2 * index + 1])
            hidden = layer(hidden, pair, rope, kv)
        hidden = self.expert.norm(hidden, modulations[-1])
        return self.action_out_proj(hidden).float()

    def _modulation(self, steps: int) -> list[tuple[Modulation, ...]]:
        """Modulations of each step and norm, computed once: they depend on the flow time alone."""
        if steps not in self._modulations:
            arch, rule = self.arch, self.options.time_rule
            times = flow_times(steps, rule)
            embedded = time_embedding(
                times, arch.expert_width, arch.min_period, arch.max_period, rule
            ).to(self.device, self.dtype)
            silu = nn.functional.silu
            condition = silu(self.time_mlp_out(silu(self.time_mlp_in(embedded))))  # [steps, W]
            per_norm = [norm.modulations(condition) for norm in self.expert.norms()]
            self._modulations[steps] = list(zip(*per_norm, strict=True))
        return self._modulations[steps]


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
        suffix_slots=arch.horizon,
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


def _gemma(arch: Pi05Arch, which: str) -> GemmaConfig:
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


def _siglip(arch: Pi05Arch) -> SiglipVisionConfig:
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
