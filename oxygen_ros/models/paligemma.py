"""PaliGemma (SigLIP + Gemma) as pi0 and pi0.5 read it: a prefix, language, and an Euler loop.

Source: openpi pi0_pytorch.py and gemma.py, LeRobot modeling_pi05.py. The backbone is transformers'
own modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import GemmaConfig, GemmaModel, SiglipVisionModel

from oxygen_ros.checkpoint.arch import Pi05Arch
from oxygen_ros.models.base import Prefilled
from oxygen_ros.models.guidance import Guide, guided_velocity
from oxygen_ros.models.kv import KVWindow, PoolCache
from oxygen_ros.models.pi05_expert import flow_times
from oxygen_ros.models.pi05_fused import FusedLayers
from oxygen_ros.models.pi05_layers import Layers, PlainLayers, Rope
from oxygen_ros.models.pi05_sizes import Pi05Options, gemma_config, model_spec, siglip_config
from oxygen_ros.processing.pi05 import Pi05Inputs

# checkpoint name -> module name, longest prefix first
KEYS = {
    'paligemma_with_expert.paligemma.model.language_model.': 'lm.',
    'paligemma_with_expert.paligemma.model.vision_tower.vision_model.': 'vision.',
    'paligemma_with_expert.paligemma.model.multi_modal_projector.linear.': 'projector.',
    'paligemma_with_expert.paligemma.lm_head.': 'lm_head.',
    'paligemma_with_expert.gemma_expert.model.': 'expert.',
}


class PaliGemma(nn.Module):
    """Everything but how actions come from noise; weights are uninitialised until loaded.

    A subclass makes the layers of the action side, and says what one Euler step computes.
    """

    expert: nn.Module

    def __init__(
        self, arch: Pi05Arch, options: Pi05Options, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.arch, self.options, self.device, self.dtype = arch, options, device, dtype
        self.spec = model_spec(arch, options)
        lm_config = gemma_config(arch, 'lm')
        with torch.device('meta'):  # no memory and no random numbers for what is loaded next
            self.vision = SiglipVisionModel(siglip_config(arch))
            self.projector = nn.Linear(arch.vision_width, arch.lm_width)
            self.lm = GemmaModel(lm_config)
            self.lm_head = nn.Linear(arch.lm_width, arch.vocab_size, bias=False)
            self.action_in_proj = nn.Linear(arch.action_dim_padded, arch.expert_width)
            self.action_out_proj = nn.Linear(arch.expert_width, arch.action_dim_padded)
            self._make_action_side(gemma_config(arch, 'expert'))
        self.to_empty(device=device)
        self.to(dtype)
        self._restore_buffers(lm_config)
        self.requires_grad_(False).eval()
        self._plain = PlainLayers(self.vision, self.lm, self.expert)
        self._kinds: dict[str, Any] = {'plain': self._plain}
        self._layers: Layers = self._plain

    def _make_action_side(self, config: GemmaConfig) -> None:
        """Make `expert` and what stands around it."""
        raise NotImplementedError

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

    def use_layers(self, kind: str) -> None:
        """Run layers of a kind, see FastLayers, from now on; weights stay what they are."""
        if kind not in self._kinds:
            if 'fused' not in self._kinds:
                self._kinds['fused'] = FusedLayers(self.vision, self.lm, self.expert)
            if kind != 'fused':
                self._kinds[kind] = self._kinds['fused'].compiled(kind == 'all_compiled')
        self._layers = self._kinds[kind]

    # -- prefix

    def prefix_length(self, inputs: Pi05Inputs) -> int:
        """Image tokens of the cameras that are there, and the prompt; nothing is padded."""
        return len(inputs.pixel_values) * self.arch.tokens_per_camera + len(inputs.token_ids)

    def prefill(self, inputs: Pi05Inputs, kv: PoolCache) -> Prefilled:
        """Images and prompt as one bidirectional block, or the prompt causally behind it."""
        length = self.prefix_length(inputs)
        pixels = inputs.pixel_values.to(self.device, self.dtype)
        last = torch.tensor([length - 1], device=self.device)
        hidden = self._prefix(pixels, inputs.token_ids.to(self.device), last, None, kv)
        return Prefilled(length, 0, hidden)

    def embed_images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [cameras, 3, h, w] in [-1, 1] -> [cameras * tokens, W], all in one forward."""
        return self.projector(self._layers.see(pixels)).flatten(0, 1)

    def _prefix(
        self,
        pixels: torch.Tensor,
        token_ids: torch.Tensor,
        last: torch.Tensor,
        mask: torch.Tensor | None,
        kv: PoolCache,
    ) -> torch.Tensor:
        """-> [W] of the token number `last`, a tensor [1], after the final norm."""
        images = self.embed_images(pixels)
        embedded = torch.cat([images, self.lm.embed_tokens(token_ids)])[None]  # [1, S, W]
        slots = torch.arange(embedded.shape[1], device=self.device)
        if self.options.causal_prompt:
            seen = (slots[None] <= slots[:, None]) | (slots < len(images))
            mask = seen[None, None] if mask is None else mask & seen
        rope = self.lm.rotary_emb(embedded, position_ids=slots[None])
        return self.lm.norm(self._layers.prefix(embedded, rope, mask, kv, last)[0, 0])

    # -- language

    def extend(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, kv: KVWindow
    ) -> torch.Tensor:
        """Tokens [B, n] behind what the window's rows hold -> hidden [B, n, W]."""
        embedded = self.lm.embed_tokens(tokens)
        rope = self.lm.rotary_emb(embedded, position_ids=positions)
        return self.lm.norm(self._layers.extend(embedded, rope, mask, kv))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [B, W] -> logits [B, V] in float32."""
        return self.lm_head(hidden).float()

    # -- actions

    def _conditions(self, steps: int) -> Sequence[Any]:
        """What the flow time of each of so many steps tells _velocity()."""
        raise NotImplementedError

    def _velocity(
        self, actions: torch.Tensor, condition: Any, rope: Rope, kv: PoolCache, layers: Layers
    ) -> torch.Tensor:
        """One forward of the expert: noisy actions [1, H, A] -> velocity [1, H, A], float32."""
        raise NotImplementedError

    def _denoise(
        self,
        first: torch.Tensor,
        kv: PoolCache,
        noise: torch.Tensor,
        steps: int,
        guide: Guide | None,
    ) -> torch.Tensor:
        """first: position of the first action, a tensor [1]."""
        positions = (first + torch.arange(len(noise), device=self.device))[None]
        actions = noise.to(self.device, torch.float32)[None]
        rope = self.lm.rotary_emb(actions.to(self.dtype), position_ids=positions)
        times = flow_times(steps, self.options.time_rule).tolist()
        for time, condition in zip(times, self._conditions(steps), strict=True):
            if guide is None:
                velocity = self._velocity(actions, condition, rope, kv, self._layers)
            else:
                assert isinstance(kv, KVWindow)
                flow = partial(
                    self._velocity,
                    condition=condition,
                    rope=rope,
                    kv=kv.concatenating(),
                    layers=self._plain,
                )
                velocity = guided_velocity(flow, actions, time, guide.to(self.device))
            actions = actions - velocity / steps
        return actions[0]
