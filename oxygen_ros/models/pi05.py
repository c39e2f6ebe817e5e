"""pi0.5: PaliGemma with a flow-matching action expert over its KV cache.

Source: openpi pi0_pytorch.py and gemma.py, LeRobot modeling_pi05.py. The expert's layers hold
transformers' attention and MLP between adaptive norms.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import GemmaConfig

from oxygen_ros.checkpoint.arch import Pi05Arch
from oxygen_ros.models.base import FixedInputs, Prefilled
from oxygen_ros.models.guidance import Guide
from oxygen_ros.models.kv import PoolCache
from oxygen_ros.models.paligemma import PaliGemma
from oxygen_ros.models.pi05_expert import Expert, Modulation, flow_times, time_embedding
from oxygen_ros.models.pi05_layers import Layers, Rope
from oxygen_ros.models.pi05_sizes import Pi05Options
from oxygen_ros.processing.pi05 import Pi05Inputs

DENOISE_STEPS = 10
_PROMPT_STEP = 32  # fixed shapes pad a prompt by less than this


class Pi05(PaliGemma):
    """The whole model on one device in one dtype."""

    expert: Expert

    def __init__(
        self, arch: Pi05Arch, options: Pi05Options, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(arch, options, device, dtype)
        self._modulations: dict[int, list[tuple[Modulation, ...]]] = {}

    def _make_action_side(self, config: GemmaConfig) -> None:
        self.expert = Expert(config)
        self.time_mlp_in = nn.Linear(config.hidden_size, config.hidden_size)
        self.time_mlp_out = nn.Linear(config.hidden_size, config.hidden_size)

    # -- prefix

    def fixed_shapes(self) -> list[FixedInputs]:
        """Every number of cameras with prompts of 32, 64, ... tokens and of the longest."""
        longest, side = self.options.max_prompt_tokens, self.arch.image_size
        prompts = [*range(_PROMPT_STEP, longest, _PROMPT_STEP), longest]
        cameras = range(1, self.options.max_cameras + 1)
        return [
            (torch.zeros(count, 3, side, side), torch.zeros(n, dtype=torch.int64))
            for count in cameras
            for n in prompts
        ]

    def fixed_inputs(self, inputs: Pi05Inputs) -> FixedInputs:
        """The prompt padded to the next of these lengths."""
        length, longest = len(inputs.token_ids), self.options.max_prompt_tokens
        padded = min(-(-length // _PROMPT_STEP) * _PROMPT_STEP, longest)
        words = nn.functional.pad(inputs.token_ids, (0, padded - length))
        return inputs.pixel_values, words

    def prefill_fixed(
        self, inputs: FixedInputs, length: torch.Tensor, kv: PoolCache
    ) -> torch.Tensor:
        """Padding lies behind the prompt, where nobody reads it."""
        pixels, words = inputs
        total = len(pixels) * self.arch.tokens_per_camera + len(words)
        mask = torch.arange(total, device=self.device) < length
        return self._prefix(pixels.to(self.dtype), words, length - 1, mask[None, None, None], kv)

    # -- actions

    def act(
        self,
        prefilled: Prefilled,
        kv: PoolCache,
        noise: torch.Tensor,
        steps: int,
        guide: Guide | None = None,
    ) -> torch.Tensor:
        """Euler steps from noise at t = 1 to actions at t = 0, [H, A] in float32."""
        first = torch.tensor([prefilled.length + prefilled.position_offset], device=self.device)
        return self._denoise(first, kv, noise, steps, guide)

    def act_fixed(
        self, length: torch.Tensor, kv: PoolCache, noise: torch.Tensor, steps: int
    ) -> torch.Tensor:
        """See FixedShapes."""
        return self._denoise(length, kv, noise, steps, None)

    def _velocity(
        self,
        actions: torch.Tensor,
        condition: Sequence[Modulation],
        rope: Rope,
        kv: PoolCache,
        layers: Layers,
    ) -> torch.Tensor:
        """See PaliGemma; condition: of every norm."""
        hidden = layers.expert(self.action_in_proj(actions.to(self.dtype)), condition, rope, kv)
        hidden = self.expert.norm(hidden, condition[-1])
        return self.action_out_proj(hidden).float()

    def _conditions(self, steps: int) -> list[tuple[Modulation, ...]]:
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
